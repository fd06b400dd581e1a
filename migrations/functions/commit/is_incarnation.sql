-- is_incarnation.sql: whether this is the store that the caller means.
-- Out    true. Fails (57QW1, which counts as passing) on another one.
-- Does   stands as a condition beside the call that it guards. It depends on no row, so that it is looked at once, before the first one is made.
-- Locks  none.
-- Caller src/store/client.rs, for every cold call; queen.add_writer. Source: rule 12.
create or replace function queen.is_incarnation(p_incarnation text)
returns boolean
language plpgsql stable
as $$
begin
    if p_incarnation = queen.incarnation() then
        return true;
    end if;
    raise exception 'the store is %, not %', queen.incarnation(), p_incarnation using errcode = '57QW1';
end;
$$;
