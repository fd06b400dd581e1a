-- list_groups.sql: the consumer groups of a tenant, one element per (group, queue).
-- In     p_args: limit integer (elements at most), probes integer (partitions whose oldest message is looked up).
-- Out    an array, by group then queue. maxTimeLag is exact unless more than `probes` partitions lag.
--        Of groups that the reconciler counted: as it was then.
-- Locks  none. Cost: the cursors of the other groups, and an index probe per lagging partition up to `probes`, most lag first.
-- Caller src/http/groups.rs. Source: data plane 11.1.
create or replace function queen.list_groups(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_others bigint[];
begin
    v_others := array(
        select g.id
        from queen.queues as q
        join queen.groups as g on g.queue_id = q.id
        where q.tenant_id = p_tenant and not exists (select from queen.group_counts as k where k.group_id = g.id)
    );
    return (
        with counted as materialized (
            select * from queen.group_cursors(v_others) as c where cardinality(v_others) > 0
        ),
        late as (
            select l.group_id, min(s.created_at) as oldest
            from (
                select * from counted as c where c.lag > 0 order by c.lag desc limit (p_args ->> 'probes')::integer
            ) as l
            cross join lateral queen.stored_at(l.partition_id, l.wanted) as s
            group by l.group_id
        ),
        summed as (
            select
                c.group_id,
                count(*) filter (where c.met) as cursors,
                count(*) filter (where c.lag > 0) as lagging,
                count(c.lease_id) as members,
                sum(c.lag)::bigint as lag,
                bool_or(c.met and c.committed >= 0) as consumed
            from counted as c
            group by c.group_id
            union all
            select k.group_id, k.cursors, k.lagging, k.members, k.lag, k.consumed
            from queen.group_counts as k
        ),
        listed as (
            select
                g.*, q.name as queue, s.cursors, s.lagging, s.members, s.lag, s.consumed,
                greatest(0, coalesce(floor(extract(epoch from
                    statement_timestamp() - coalesce(l.oldest, k.oldest_at))), 0))::bigint as age
            from queen.queues as q
            join queen.groups as g on g.queue_id = q.id
            left join summed as s on s.group_id = g.id
            left join late as l on l.group_id = g.id
            left join queen.group_counts as k on k.group_id = g.id
            where q.tenant_id = p_tenant and (g.mode is not null or s.cursors > 0)
            order by g.name, q.name
            limit (p_args ->> 'limit')::integer
        )
        select coalesce(json_agg(
            json_build_object(
                'name', l.name,
                'topics', json_build_array(l.queue),
                'queueName', l.queue,
                'members', coalesce(l.members, 0),
                'partitionCursors', coalesce(l.cursors, 0),
                'partitionsWithLag', coalesce(l.lagging, 0),
                'totalLag', coalesce(l.lag, 0),
                'maxTimeLag', l.age,
                'state', case when l.age > 300 then 'Lagging' when l.consumed then 'Stable' else 'Dead' end,
                'storage', 'segments',
                'subscriptionMode', l.mode,
                'subscriptionTimestamp', queen.utc_ms(l.start_at),
                'subscriptionCreatedAt', queen.utc_ms(l.registered_at),
                'conflation', l.conflation
            )
            order by l.name, l.queue
        ), '[]')
        from listed as l
    );
end;
$$;
