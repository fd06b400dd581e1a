-- lagging_groups.sql: partitions in which a group has left a message waiting longer than a threshold.
-- In     p_args: seconds bigint (strictly more counts), limit integer (rows), probes integer (partitions looked at).
-- Out    an array, longest wait first. Complete unless more than `probes` partitions lag.
-- Locks  none. Cost: that of furthest_behind, and an index probe per lagging partition up to `probes`.
-- Caller src/http/groups.rs. Source: data plane 11.2.
create or replace function queen.lagging_groups(p_tenant uuid, p_args jsonb)
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
        where q.tenant_id = p_tenant
    );
    return (
        with late as (
            select
                l.*,
                floor(extract(epoch from statement_timestamp() - l.oldest))::bigint as age
            from (
                select w.*, o.created_at as oldest
                from (
                    select *
                    from queen.furthest_behind(v_groups, (p_args ->> 'probes')::integer) as c
                    where c.lag > 0
                ) as w
                cross join lateral queen.stored_at(w.partition_id, w.wanted) as o
            ) as l
        ),
        listed as (
            select *
            from late as l
            where l.age > (p_args ->> 'seconds')::bigint
            order by l.oldest, l.group_name, l.partition_id
            limit (p_args ->> 'limit')::integer
        )
        select coalesce(json_agg(
            json_build_object(
                'consumer_group', l.group_name,
                'queue_name', l.queue,
                'partition_name', l.partition,
                'partition_id', l.partition_id::text,
                'worker_id', l.lease_id,
                'offset_lag', l.lag,
                'time_lag_seconds', l.age,
                'lag_hours', round(l.age / 3600.0, 2),
                'oldest_unconsumed_at', queen.utc_ms(l.oldest),
                'last_consumed_at', null
            )
            order by l.oldest, l.group_name, l.partition_id
        ), '[]')
        from listed as l
    );
end;
$$;
