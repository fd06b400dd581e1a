-- get_group.sql: one consumer group, queue by queue.
-- In     p_args: group text, limit integer (partitions at most, the furthest behind first).
-- Out    an object by queue; {} for a group nobody knows. Each queue has "partitionsTruncated":true where not all partitions of the
--        group are listed. totalConsumed counts positions retired, whatever was sought.
-- Locks  none. Cost: the group's cursors, and an index probe per listed partition that lags.
-- Caller src/http/groups.rs. Source: data plane 11.3.
create or replace function queen.get_group(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_groups bigint[];
begin
    v_groups := array(
        select g.id
        from queen.queues as q
        join queen.groups as g on g.queue_id = q.id
        where q.tenant_id = p_tenant and g.name = p_args ->> 'group'
    );
    return (
        with counted as (
            -- One more than is listed says that there are more.
            select c.*, row_number() over (order by c.lag desc, c.partition_id) as place
            from queen.furthest_behind(v_groups, (p_args ->> 'limit')::integer + 1) as c
        ),
        of_queue as (
            select
                c.queue_id,
                json_agg(
                    json_build_object(
                        'partition', c.partition,
                        'workerId', c.lease_id,
                        'lastConsumedAt', null,
                        'totalConsumed', c.retired,
                        'offsetLag', c.lag,
                        'timeLagSeconds', case when c.lag > 0 then greatest(0, coalesce(floor(extract(epoch from
                            statement_timestamp() - o.created_at)), 0))::bigint
                            else 0 end,
                        'leaseActive', c.lease_id is not null
                    )
                    order by c.partition
                ) as partitions
            from counted as c
            left join lateral queen.stored_at(c.partition_id, c.wanted) as o on c.lag > 0
            where c.place <= (p_args ->> 'limit')::integer
            group by c.queue_id
        )
        select coalesce(json_object_agg(
            q.name,
            case
                when exists (select from counted as c where c.place > (p_args ->> 'limit')::integer) then json_build_object(
                    'conflation', g.conflation, 'partitions', coalesce(o.partitions, '[]'), 'partitionsTruncated', true
                )
                else json_build_object('conflation', g.conflation, 'partitions', coalesce(o.partitions, '[]'))
            end
            order by q.name
        ), '{}')
        from queen.queues as q
        join queen.groups as g on g.queue_id = q.id
        left join of_queue as o on o.queue_id = q.id
        where q.tenant_id = p_tenant
            and g.name = p_args ->> 'group'
            and (g.mode is not null or o.queue_id is not null)
    );
end;
$$;
