-- note_change.sql: a line of the commit log that says: read this queue anew.
-- In     p_queue: null for all queues of all tenants.
-- Locks  the writer's row until the transaction ends.
-- Caller src/store/cold.rs, in the statement that makes the change, behind it. Source: rule 8; operations 7.2.
create or replace function queen.note_change(p_writer bigint, p_tenant uuid, p_queue text)
returns void
language plpgsql volatile
as $$
declare
    v_seq bigint := queen.next_line(p_writer);
begin
    update queen.commits as c
    set seq = v_seq, lanes = '{}', changed = true, tenant_id = p_tenant, queue = p_queue
    where c.writer = p_writer and c.slot = (v_seq & 255)::integer;
end;
$$;
