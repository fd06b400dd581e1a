-- counts_of.sql: the counters of some partitions, as they are now.
-- In     p_ids: partition numbers, few, or those of a page that is counted.
-- Out    as queen.partition_counts.
-- Locks  none. Cost: one index probe of partitions and a short range of cursors each.
-- Caller the pages beside this one, count_page_partitions. Source: operations 5.7.
create or replace function queen.counts_of(p_ids bigint[])
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
language plpgsql stable
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
    return query
    select
        c.queue_id, c.id, c.name, c.created_at,
        case when c.last_offset >= c.log_start then c.last_created_at end,
        c.reached + 1, c.last_offset - c.log_start + 1,
        greatest(0, c.last_offset - c.reached),
        least(greatest(0, c.last_offset - c.reached), c.leased),
        c.leases, c.leased, c.last_leased
    from (
        select p.*, greatest(coalesce(k.worst, -1), p.log_start - 1) as reached,
            coalesce(k.leased, 0)::bigint as leased, coalesce(k.leases, 0) as leases, k.last_leased
        from unnest(p_ids) as a (id)
        cross join lateral (select * from queen.partitions as p where p.id = a.id offset 0) as p
        left join lateral (
            select
                coalesce(
                    min(w.committed) filter (where g.name <> '__QUEUE_MODE__'),
                    min(w.committed)
                ) as worst,
                sum(c.batch_end - c.committed) filter (where c.lease_expires_at > statement_timestamp()) as leased,
                count(*) filter (where c.lease_expires_at > statement_timestamp()) as leases,
                max(c.leased_at) as last_leased
            from queen.groups as g
            left join lateral (
                select * from queen.cursors as c where c.partition_id = p.id and c.group_id = g.id offset 0
            ) as c on true
            cross join lateral (
                select coalesce(c.committed, queen.seed_of(g, p.id, p.log_start, p.last_offset, p.last_created_at)) as committed
            ) as w
            where g.queue_id = p.queue_id
                and (c.partition_id is not null or queen.is_meant(g, p.id))
        ) as k on true
    ) as c;
end;
$$;
