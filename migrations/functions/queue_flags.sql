-- queue_flags.sql: what a shard must know of queues before it plans a push to them.
-- In     p_args: queues, an array of names.
-- Out    a JSON array of those that are encrypted, [] for none. A queue that does not exist is not.
--        As brokers up to 0.1.0 ask, with queue, one name: {"encrypted":bool}.
-- Locks  none. Costs one index probe per name.
-- Caller src/core_thread.rs, src/jobs/redrive.rs. Source: operations 3.2.
create or replace function queen.queue_flags(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    if p_args ? 'queue' then
        return json_build_object('encrypted', exists (
            select 1
            from queen.queues as q
            where q.tenant_id = p_tenant and q.name = (p_args ->> 'queue') collate "C" and q.encryption_enabled
        ));
    end if;
    return (
        select coalesce(json_agg(q.name), '[]')
        from jsonb_array_elements_text(p_args -> 'queues') as n (name)
        cross join lateral (
            select q.name
            from queen.queues as q
            where q.tenant_id = p_tenant and q.name = n.name collate "C" and q.encryption_enabled
            offset 0
        ) as q
    );
end;
$$;
