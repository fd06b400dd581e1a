-- cursors_of.sql: where some consumer groups of a queue stand in some of its partitions, as queen.group_cursors tells of all.
-- In     p_groups: numbers of groups. p_ids: partition numbers.
-- Out    as queen.group_cursors.
-- Locks  none. Cost: an index probe per partition, and one of cursors per partition and group.
-- Plan   row by row through the indexes, whatever statistics say, as queen.counts_of.
-- Caller count_page_cursors. Source: data plane 11.
create or replace function queen.cursors_of(p_groups bigint[], p_ids bigint[])
returns table (
    group_id bigint,
    partition_id bigint,
    met boolean,
    committed bigint,
    lag bigint,
    processing bigint,
    wanted bigint,
    lease_id uuid -- of a live lease
)
language sql stable
as $$
    select
        w.group_id, w.id, w.met, w.committed, w.lag,
        case when w.lease_id is null then 0 else least(w.lag, w.batch_end - w.committed) end,
        greatest(w.committed, w.log_start - 1) + 1,
        w.lease_id
    from (
        select *, greatest(0, v.last_offset - greatest(v.committed, v.log_start - 1)) as lag
        from (
            select
                g.id as group_id, p.id, p.log_start, p.last_offset, c.batch_end,
                c.partition_id is not null or queen.is_meant(g, p.id) as met,
                coalesce(c.committed, queen.seed_of(g, p.id, p.log_start, p.last_offset, p.last_created_at)) as committed,
                case when c.lease_expires_at > statement_timestamp() then c.lease_id end as lease_id
            from unnest(p_ids) as a (id)
            cross join lateral (select * from queen.partitions as p where p.id = a.id offset 0) as p
            join queen.groups as g on g.queue_id = p.queue_id and g.id = any (p_groups)
            left join lateral (
                select * from queen.cursors as c where c.partition_id = p.id and c.group_id = g.id offset 0
            ) as c on true
            where c.partition_id is not null or g.mode is not null
        ) as v
        where v.committed is not null
    ) as w;
$$;
