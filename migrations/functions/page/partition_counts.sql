-- partition_counts.sql: the counters of every partition of some queues.
-- In     p_queues: ids of queues.
-- Out    one row per partition. wanted: offset of the oldest message that the slowest group still wants. Named groups
--        count; the group-less consumer only where no named group has a cursor, so that a stray pop pins nothing.
-- Locks  none.
-- Cost   one index range of partitions per queue and one of cursors per partition.
-- Plan   callers pass a variable and set plan_cache_mode = force_custom_plan: one small queue is read by index, all
--        queues by hashing, and only the value tells which.
-- Caller the functions beside this one. Source: operations 5.7.
create or replace function queen.partition_counts(p_queues uuid[])
returns table (
    queue_id uuid,
    partition_id bigint,
    name text,
    created_at timestamptz,
    newest timestamptz,
    wanted bigint,
    total bigint,
    pending bigint,
    processing bigint,
    leases bigint,
    leased bigint,
    last_leased timestamptz
)
language sql stable
as $$
    with cursor_of as (
        select
            c.partition_id,
            coalesce(
                min(c.committed) filter (where c.name <> '__QUEUE_MODE__'),
                min(c.committed)
            ) as worst,
            sum(c.batch_end - c.committed) filter (where c.lease_expires_at > statement_timestamp()) as leased,
            count(*) filter (where c.lease_expires_at > statement_timestamp()) as leases,
            max(c.leased_at) as last_leased
        from (
            select c.partition_id, g.name, c.committed, c.batch_end, c.lease_expires_at, c.leased_at
            from queen.partitions as p
            join queen.cursors as c on c.partition_id = p.id
            join queen.groups as g on g.id = c.group_id
            where p.queue_id = any (p_queues) and p.id + 0 > 0
            union all
            -- Of groups that were registered without cursors, as queen.group_cursors has them.
            select
                p.id, g.name,
                queen.seed_of(g, p.id, p.log_start, p.last_offset, p.last_created_at),
                null, null, null
            from queen.groups as g
            join queen.partitions as p on p.queue_id = g.queue_id and p.id + 0 > 0
            where g.queue_id = any (p_queues)
                and queen.is_meant(g, p.id)
                and not exists (select from queen.cursors as c where c.partition_id = p.id and c.group_id = g.id)
        ) as c
        group by c.partition_id
    ),
    counted as (
        select
            p.queue_id,
            p.id,
            p.name,
            p.created_at,
            case when p.last_offset >= p.log_start then p.last_created_at end as newest,
            greatest(coalesce(k.worst, -1), p.log_start - 1) + 1 as wanted,
            p.last_offset - p.log_start + 1 as total,
            greatest(0, p.last_offset - greatest(coalesce(k.worst, -1), p.log_start - 1)) as pending,
            coalesce(k.leased, 0)::bigint as leased,
            coalesce(k.leases, 0) as leases,
            k.last_leased
        from queen.partitions as p
        left join cursor_of as k on k.partition_id = p.id
        where p.queue_id = any (p_queues) and p.id + 0 > 0
    )
    select
        c.queue_id, c.id, c.name, c.created_at, c.newest, c.wanted, c.total, c.pending,
        least(c.pending, c.leased), c.leases, c.leased, c.last_leased
    from counted as c;
$$;
