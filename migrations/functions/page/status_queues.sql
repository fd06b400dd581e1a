-- status_queues.sql: one page of a tenant's queues, newest first, with their counters.
-- In     p_args: queue, namespace, task text or null (exact), limit, offset integer.
-- Out    {"queues":[...],"pagination":{...}}; pending includes leased messages here.
-- Locks  none. Cost: that of queue_sums, and the dead letters of the queues on the page.
-- Caller src/http/status.rs. Source: operations 5.6.2.
create or replace function queen.status_queues(p_tenant uuid, p_args jsonb)
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
            and (p_args ->> 'queue' is null or r.name = p_args ->> 'queue')
            and (p_args ->> 'namespace' is null or r.namespace = p_args ->> 'namespace')
            and (p_args ->> 'task' is null or r.task = p_args ->> 'task')
        order by r.created_at desc, r.id
        limit (p_args ->> 'limit')::integer
        offset (p_args ->> 'offset')::integer
    );
    return (
        with dead as (
            select d.queue_id, count(*) as letters
            from queen.dead_letters as d
            where d.queue_id = any (v_ids)
            group by d.queue_id
        ),
        counted as (
            select
                c.*,
                greatest(0, c.total - c.pending - coalesce(d.letters, 0)) as completed,
                coalesce(d.letters, 0) as dead
            from queen.queue_sums(v_ids, false, 0) as c
            left join dead as d on d.queue_id = c.queue_id
        )
        select json_build_object(
            'queues', coalesce(json_agg(
                json_build_object(
                    'id', r.id,
                    'name', r.name,
                    'namespace', r.namespace,
                    'task', r.task,
                    'createdAt', queen.utc_ms(r.created_at),
                    'partitions', coalesce(c.partitions, 0),
                    'messages', json_build_object(
                        'total', coalesce(c.total, 0),
                        'pending', coalesce(c.pending, 0),
                        'processing', coalesce(c.processing, 0),
                        'completed', coalesce(c.completed, 0),
                        'deadLetter', coalesce(c.dead, 0)
                    )
                )
                order by r.created_at desc, r.id
            ), '[]'),
            'pagination', json_build_object(
                'limit', (p_args ->> 'limit')::integer,
                'offset', (p_args ->> 'offset')::integer
            )
        )
        from queen.queues as r
        left join counted as c on c.queue_id = r.id
        where r.id = any (v_ids)
    );
end;
$$;
