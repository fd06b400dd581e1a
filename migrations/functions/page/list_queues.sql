-- list_queues.sql: the queues of a tenant, newest first, with their counters.
-- In     p_args: limit integer; live boolean: totals as they are now (the default), or as the reconciler counted them.
-- Out    {"queues":[...],"kvRows":0,...}. pending leaves leased messages out. retainedBytes and segments.segments are
--        as of the last measuring pass, 0 before it.
-- Locks  none. Cost: that of queue_sums.
-- Caller src/http/resources.rs. Source: data plane 8.4; operations 5.8.1.
create or replace function queen.list_queues(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_ids uuid[];
begin
    v_ids := array(
        select r.id
        from queen.queues as r
        where r.tenant_id = p_tenant
        order by r.created_at desc, r.id
        limit (p_args ->> 'limit')::integer
    );
    return (
        select json_build_object(
            'queues', coalesce(json_agg(
                json_build_object(
                    'id', r.id,
                    'name', r.name,
                    'namespace', r.namespace,
                    'task', r.task,
                    'createdAt', queen.utc_ms(r.created_at),
                    'partitions', coalesce(c.partitions, 0),
                    'retainedBytes', coalesce(z.bytes, 0),
                    'segments', json_build_object(
                        'segments', coalesce(z.segments, 0),
                        'messages', coalesce(c.total, 0)
                    ),
                    'messages', json_build_object(
                        'total', coalesce(c.total, 0),
                        'pending', coalesce(c.pending - c.processing, 0),
                        'processing', coalesce(c.processing, 0)
                    )
                )
                order by r.created_at desc, r.id
            ), '[]'),
            'kvRows', 0, 'kvBytes', 0, 'timerRows', 0, 'timerBytes', 0
        )
        from queen.queues as r
        left join queen.queue_sums(v_ids, coalesce((p_args ->> 'live')::boolean, true), 0) as c on c.queue_id = r.id
        left join queen.queue_sizes as z on z.queue_id = r.id
        where r.id = any (v_ids)
    );
end;
$$;
