-- get_queue.sql: one queue with its options, partitions and counters.
-- In     p_args: queue text, limit integer (partitions listed at most).
-- Out    the page, with "partitionsTruncated":true where there are more partitions than are listed; or {"error":"Queue not found"}.
-- Locks  none. Cost: that of queue_partitions.
-- Caller src/http/resources.rs. Source: data plane 8.5; operations 5.8.2.
create or replace function queen.get_queue(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    q queen.queues;
    v_page json;
begin
    select * into q
    from queen.queues as r
    where r.tenant_id = p_tenant and r.name = p_args ->> 'queue';
    if not found then
        return json_build_object('error', 'Queue not found');
    end if;
    v_page := (
        select json_build_object(
            'id', q.id,
            'name', q.name,
            'namespace', q.namespace,
            'task', q.task,
            'createdAt', queen.utc_ms(q.created_at),
            'options', (
                -- Namespace and task before the 19 others, in wire order; json keeps the order.
                select json_object_agg(o.key, o.value order by o.ord)
                from (
                    select 'namespace' as key, to_json(q.namespace) as value, -2::bigint as ord
                    union all
                    select 'task', to_json(q.task), -1
                    union all
                    select e.key, e.value, e.ord
                    from json_each(queen.queue_options(q)) with ordinality as e (key, value, ord)
                ) as o
            ),
            'partitions', coalesce(
                json_agg(
                    json_build_object(
                        'id', p.partition_id::text,
                        'name', p.name,
                        'createdAt', queen.utc_ms(p.created_at),
                        'stats', p.stats,
                        'oldestMessage', queen.utc_ms(p.oldest),
                        'newestMessage', queen.utc_ms(p.newest)
                    )
                    order by p.name
                ) filter (where p.partition_id is not null),
                '[]'
            ),
            'totals', (array_agg(p.totals))[1],
            'retainedBytes', coalesce(max(z.bytes), 0),
            'segments', json_build_object(
                'segments', coalesce(max(z.segments), 0),
                'messages', (array_agg(p.totals))[1] -> 'total'
            )
        )
        from queen.queue_partitions(q.id, (p_args ->> 'limit')::integer) as p
        left join queen.queue_sizes as z on z.queue_id = q.id
    );
    if exists (
        select from queen.partitions as p where p.queue_id = q.id and p.name >= '' order by p.name
        offset (p_args ->> 'limit')::integer limit 1
    ) then
        v_page := (left(v_page::text, -1) || ', "partitionsTruncated" : true}')::json;
    end if;
    return v_page;
end;
$$;
