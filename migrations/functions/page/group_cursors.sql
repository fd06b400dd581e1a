-- group_cursors.sql: where some consumer groups stand in every partition of their queues.
-- In     p_groups: numbers of groups.
-- Out    one row per partition with a cursor, and per partition of a registered group's queue without one: where queen.seed_of puts it.
--        met: there is a cursor, or the registration would have made it in a smaller queue. lag: messages stored and not completed.
-- Locks  none. Cost: the cursors of the groups. Plan: callers pass a variable and set plan_cache_mode = force_custom_plan.
-- Caller the functions beside this one. Source: data plane 11.
drop function if exists queen.group_cursors(uuid, text);
drop function if exists queen.group_cursors(bigint[]);
create or replace function queen.group_cursors(p_groups bigint[])
returns table (
    queue_id uuid,
    queue text,
    group_id bigint,
    group_name text,
    conflation boolean,
    partition_id bigint,
    partition text,
    met boolean,
    committed bigint,
    retired bigint,
    lag bigint,
    processing bigint,
    wanted bigint,
    last_created_at timestamptz,
    lease_id uuid -- of a live lease
)
language sql stable
as $$
    select
        w.queue_id, w.queue, w.group_id, w.group_name, w.conflation, w.id, w.partition, w.met, w.committed, w.retired,
        w.lag,
        case when w.lease_id is null then 0 else least(w.lag, w.batch_end - w.committed) end,
        greatest(w.committed, w.log_start - 1) + 1,
        w.last_created_at, w.lease_id
    from (
        select *, greatest(0, v.last_offset - greatest(v.committed, v.log_start - 1)) as lag
        from (
            select
                q.id as queue_id, q.name as queue, g.id as group_id, g.name as group_name, g.conflation,
                p.id, p.name as partition, p.log_start, p.last_offset, p.last_created_at,
                c.partition_id is not null or queen.is_meant(g, p.id) as met, c.batch_end, coalesce(c.retired, c.committed + 1, 0) as retired,
                coalesce(c.committed, queen.seed_of(g, p.id, p.log_start, p.last_offset, p.last_created_at)) as committed,
                case when c.lease_expires_at > statement_timestamp() then c.lease_id end as lease_id
            from queen.groups as g
            join queen.queues as q on q.id = g.queue_id
            join queen.partitions as p on p.queue_id = q.id and p.id + 0 > 0
            left join queen.cursors as c on c.partition_id = p.id and c.group_id = g.id
            where g.id = any (p_groups) and (c.partition_id is not null or g.mode is not null)
        ) as v
        where v.committed is not null
    ) as w;
$$;
