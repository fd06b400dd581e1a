-- furthest_behind.sql: the partitions in which some groups are furthest behind, as queen.group_cursors tells of them.
-- In     p_groups: numbers of groups. p_limit: rows at most.
-- Out    most lag first. Of groups that the reconciler counted, those partitions that it ranked; figures are of now.
-- Locks  none. Cost: the cursors of groups that were not counted, of which a large database has few; some index probes per row.
-- Caller get_group, lagging_groups. Source: data plane 11.
drop function if exists queen.furthest_behind(bigint[], integer);
create or replace function queen.furthest_behind(p_groups bigint[], p_limit integer)
returns table (
    queue_id uuid,
    queue text,
    group_id bigint,
    group_name text,
    partition_id bigint,
    partition text,
    retired bigint,
    lag bigint,
    wanted bigint,
    lease_id uuid
)
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    v_counted bigint[];
    v_others bigint[];
begin
    v_counted := array(select k.group_id from queen.group_counts as k where k.group_id = any (p_groups));
    v_others := array(select a.id from unnest(p_groups) as a (id) where a.id <> all (v_counted));
    return query
    select f.queue_id, f.queue, f.group_id, f.group_name, f.partition_id, f.partition, f.retired, f.lag, f.wanted,
        f.lease_id
    from (
        select c.queue_id, c.queue, c.group_id, c.group_name, c.partition_id, c.partition, c.retired, c.lag, c.wanted,
            c.lease_id
        from queen.group_cursors(v_others) as c
        where cardinality(v_others) > 0
        union all
        select v.queue_id, v.queue, v.group_id, v.group_name, v.id, v.partition, v.retired,
            greatest(0, v.last_offset - v.reached), v.reached + 1, v.lease_id
        from (
            select q.id as queue_id, q.name as queue, g.id as group_id, g.name as group_name, p.id,
                p.name as partition, p.last_offset, coalesce(c.retired, c.committed + 1, 0) as retired,
                greatest(
                    coalesce(
                        c.committed,
                        queen.seed_of(g, p.id, p.log_start, p.last_offset, p.last_created_at)
                    ),
                    p.log_start - 1
                ) as reached,
                case when c.lease_expires_at > statement_timestamp() then c.lease_id end as lease_id
            from (
                select n.group_id, n.partition_id
                from queen.lag_ranks as n
                where n.group_id = any (v_counted)
                order by n.lag desc, n.partition_id
                limit p_limit
            ) as n
            join queen.groups as g on g.id = n.group_id
            join queen.queues as q on q.id = g.queue_id
            -- Row by row through the index, however many there are.
            cross join lateral (select * from queen.partitions as p where p.id = n.partition_id offset 0) as p
            left join lateral (
                select * from queen.cursors as c where c.partition_id = n.partition_id and c.group_id = n.group_id offset 0
            ) as c on true
        ) as v
    ) as f
    order by f.lag desc, f.partition_id
    limit p_limit;
end;
$$;
