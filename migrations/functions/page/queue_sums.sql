-- queue_sums.sql: the counters of whole queues.
-- In     p_live: partitions and total as they are now, also of queues that the reconciler counted. p_probes: partitions of
--        the other queues whose oldest message is looked up, most pending first; 0 looks none up.
-- Out    one row per queue that has a partition. Exact, unless the reconciler counted the queue: then as it was then.
-- Locks  none. Cost: the partitions and cursors of queues that were not counted, of which a large database has few; with
--        p_live the partition rows of the others.
-- Caller the pages beside this one. Source: operations 5.7, 5.8.1.
create or replace function queen.queue_sums(p_queues uuid[], p_live boolean, p_probes integer)
returns table (
    queue_id uuid,
    partitions bigint,
    total bigint,
    pending bigint,
    processing bigint,
    partitions_pending bigint,
    partitions_ready bigint,
    leases bigint,
    leased_partitions bigint,
    leased bigint,
    oldest_at timestamptz
)
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    v_counted uuid[];
    v_others uuid[];
begin
    v_counted := array(select k.queue_id from queen.queue_counts as k where k.queue_id = any (p_queues));
    v_others := array(select a.id from unnest(p_queues) as a (id) where a.id <> all (v_counted));
    if p_live and cardinality(v_counted) = 1 then
        -- Grouping costs as much as reading, and here is nothing to group.
        return query
        select k.queue_id, l.partitions, l.total::bigint, least(k.pending, l.total)::bigint,
            least(k.processing, l.total)::bigint,
            k.partitions_pending, k.partitions_ready, k.leases, k.leased_partitions, k.leased, k.oldest_at
        from queen.queue_counts as k
        cross join (
            select count(*) as partitions, sum(p.last_offset - p.log_start + 1) as total
            from queen.partitions as p
            where p.queue_id = v_counted[1] and p.id + 0 > 0
        ) as l
        where k.queue_id = v_counted[1] and l.partitions > 0;
    elsif p_live then
        return query
        select k.queue_id, l.partitions, l.total::bigint, least(k.pending, l.total)::bigint,
            least(k.processing, l.total)::bigint,
            k.partitions_pending, k.partitions_ready, k.leases, k.leased_partitions, k.leased, k.oldest_at
        from queen.queue_counts as k
        join (
            select p.queue_id, count(*) as partitions, sum(p.last_offset - p.log_start + 1) as total
            from queen.partitions as p
            where p.queue_id = any (v_counted) and p.id + 0 > 0
            group by p.queue_id
        ) as l on l.queue_id = k.queue_id
        where k.queue_id = any (v_counted);
    else
        return query
        select k.queue_id, k.partitions, k.total, k.pending, k.processing, k.partitions_pending, k.partitions_ready,
            k.leases, k.leased_partitions, k.leased, k.oldest_at
        from queen.queue_counts as k
        where k.queue_id = any (v_counted) and k.partitions > 0;
    end if;
    if cardinality(v_others) > 0 then
        return query
        with counted as materialized (
            select * from queen.partition_counts(v_others)
        ),
        late as (
            select l.queue_id, min(s.created_at) as oldest
            from (
                select * from counted as c where c.pending > 0 order by c.pending desc limit p_probes
            ) as l
            cross join lateral queen.stored_at(l.partition_id, l.wanted) as s
            group by l.queue_id
        )
        select c.queue_id, count(*), sum(c.total)::bigint, sum(c.pending)::bigint, sum(c.processing)::bigint,
            count(*) filter (where c.pending > 0), count(*) filter (where c.pending > c.processing),
            sum(c.leases)::bigint, count(*) filter (where c.leases > 0), sum(c.leased)::bigint, min(l.oldest)
        from counted as c
        left join late as l on l.queue_id = c.queue_id
        group by c.queue_id;
    end if;
end;
$$;
