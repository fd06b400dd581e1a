-- note_growth.sql: a line of the commit log that says: this partition may have grown.
-- In     p_partition: null for none, nothing is written then.
-- Locks  the writer's row until the transaction ends.
-- Caller src/store/cold.rs, in the statement that moves a dead letter, behind it. Source: rule 8.
create or replace function queen.note_growth(p_writer bigint, p_partition bigint)
returns void
language plpgsql volatile
as $$
declare
    v_seq bigint;
begin
    if p_partition is null then
        return;
    end if;
    v_seq := queen.next_line(p_writer);
    update queen.commits as c
    set seq = v_seq, lanes = array[p_partition], changed = false, tenant_id = null, queue = null
    where c.writer = p_writer and c.slot = (v_seq & 255)::integer;
end;
$$;
