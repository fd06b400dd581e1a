-- note_change.sql: a line of the commit log that says: read this queue anew.
-- In     p_queue: null for all queues of all tenants.
-- Locks  the writer's row until the transaction ends, so that its lines are in the order of commit.
-- Caller src/store/cold.rs, in the statement that makes the change. Source: architecture 13, rule 8; operations 7.2.
create or replace function queen.note_change(p_writer bigint, p_tenant uuid, p_queue text)
returns void
language plpgsql volatile
as $$
declare
    v_seq bigint;
begin
    perform from queen.writers as w where w.writer = p_writer and w.retired_at is null for no key update;
    if not found then
        raise exception '% is no writer', p_writer using errcode = '57QW1';
    end if;
    -- A statement of its own: it sees what the lock was waited for.
    select max(c.seq) + 1 into v_seq from queen.commits as c where c.writer = p_writer;
    update queen.commits as c
    set seq = v_seq, changed = true, tenant_id = p_tenant, queue = p_queue
    where c.writer = p_writer and c.slot = (v_seq & 255)::integer;
end;
$$;
