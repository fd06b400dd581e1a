-- add_writer.sql: a new writer of the commit log, with an empty ring, for commits on this store.
-- In     p_replaces: a writer whose place it takes, 0 for none. p_incarnation: the store that the caller means.
-- Out    its number, which was drawn: a sequence would go back with a store that is restored. Fails (57QW1) on another store.
-- Locks  nothing that others wait for.
-- Caller src/store/log.rs, add_writer. Source: rules 8, 9 and 12.
create or replace function queen.add_writer(p_broker uuid, p_replaces bigint, p_incarnation text)
returns bigint
language plpgsql volatile
as $$
declare
    v_writer bigint := ('x' || right(gen_random_uuid()::text, 12))::bit(48)::bigint << 14 | (random() * 16383)::integer;
begin
    perform queen.is_incarnation(p_incarnation);
    update queen.writers as w set retired_at = clock_timestamp() where w.writer = p_replaces;
    insert into queen.writers (writer, broker) values (v_writer, p_broker);
    insert into queen.commits (writer, slot, incarnation)
    select v_writer, i, p_incarnation
    from generate_series(0, 255) as i;
    return v_writer;
end;
$$;
