-- queue_flags.sql: what a shard must know of queues before it plans a push to them.
-- In     p_args: queues, an array of names.
-- Out    a JSON array of those that are encrypted, [] for none. A queue that does not exist is not.
-- Locks  none. Costs one index probe per name.
-- Caller src/core_thread.rs, src/jobs/redrive.rs. Source: operations 3.2.
create or replace function queen.queue_flags(p_tenant uuid, p_args jsonb)
returns json
language sql stable
set jit = off
set enable_seqscan = off
begin atomic
    select coalesce(json_agg(q.name), '[]')
    from jsonb_array_elements_text(p_args -> 'queues') as n (name)
    cross join lateral (
        select q.name
        from queen.queues as q
        where q.tenant_id = p_tenant and q.name = n.name collate "C" and q.encryption_enabled
        offset 0
    ) as q;
end;
