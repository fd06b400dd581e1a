-- count_page_partitions.sql: the half of queen.count_page that is about the queue: its sums, the partitions with most to do, the oldest message.
-- In     as queen.count_page.
-- Does   the last page publishes in queue_counts and pending_ranks; the others keep their sums in the row of queen.count_walks, and ranks as
--        those of group 0.
-- Locks  as queen.count_page. Cost: the partitions and cursors of the page, and the ranks.
-- Plan   row by row through the indexes, whatever statistics say: hashing would read the cursors of all queues for each page. Whose rank
--        is lost is found by its place in the table (ctid), so that it takes no join.
-- Caller count_page. Source: operations 5.7.
create or replace function queen.count_page_partitions(p_walk queen.count_walks, p_ids bigint[], p_next bigint, p_ranks integer)
returns void
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_queue constant uuid := p_walk.queue_id;
    v_later constant boolean := coalesce(p_walk.next, 0) > 0;
    v_last constant boolean := p_next is null;
    v_sum queen.count_walks;
    v_oldest timestamptz;
begin
    if v_last then
        delete from queen.pending_ranks as n where n.queue_id = v_queue;
    end if;

    with counted as materialized (
        select * from queen.counts_of(p_ids)
    ),
    ranked as materialized (
        select u.*, row_number() over (order by u.behind desc, u.partition_id) as place
        from (
            select c.partition_id, c.pending as behind, c.wanted, null::tid as kept_at
            from counted as c
            union all
            select r.partition_id, r.behind, r.wanted, r.ctid
            from queen.count_walk_ranks as r
            where v_later and r.queue_id = v_queue and r.group_id = 0
        ) as u
    ),
    published as (
        insert into queen.pending_ranks (queue_id, partition_id, pending)
        select v_queue, r.partition_id, r.behind
        from ranked as r
        where v_last and r.place <= p_ranks
    ),
    kept as (
        insert into queen.count_walk_ranks (queue_id, group_id, partition_id, behind, wanted)
        select v_queue, 0, r.partition_id, r.behind, r.wanted
        from ranked as r
        where not v_last and r.place <= p_ranks and r.kept_at is null
    ),
    fallen as (
        delete from queen.count_walk_ranks as r
        where r.ctid = any (array(
            select r.kept_at from ranked as r where not v_last and r.place > p_ranks and r.kept_at is not null
        ))
    ),
    recent as (
        select u.newest
        from (
            select c.newest from counted as c where c.newest is not null
            union all
            select k.newest from unnest(p_walk.recent) as k (newest)
        ) as u
        order by u.newest desc
        limit 1000
    )
    select
        coalesce(p_walk.partitions, 0) + count(*),
        coalesce(p_walk.total, 0) + coalesce(sum(c.total), 0),
        coalesce(p_walk.pending, 0) + coalesce(sum(c.pending), 0),
        coalesce(p_walk.processing, 0) + coalesce(sum(c.processing), 0),
        coalesce(p_walk.partitions_pending, 0) + count(*) filter (where c.pending > 0),
        coalesce(p_walk.partitions_ready, 0) + count(*) filter (where c.pending > c.processing),
        coalesce(p_walk.leases, 0) + coalesce(sum(c.leases), 0),
        coalesce(p_walk.leased_partitions, 0) + count(*) filter (where c.leases > 0),
        coalesce(p_walk.leased, 0) + coalesce(sum(c.leased), 0),
        coalesce((select array_agg(r.newest order by r.newest desc) from recent as r), '{}'),
        (
            select min(s.created_at)
            from ranked as r
            cross join lateral queen.stored_at(r.partition_id, r.wanted) as s
            where v_last and r.place <= p_ranks and r.behind > 0
        )
    into v_sum.partitions, v_sum.total, v_sum.pending, v_sum.processing, v_sum.partitions_pending, v_sum.partitions_ready,
        v_sum.leases, v_sum.leased_partitions, v_sum.leased, v_sum.recent, v_oldest
    from counted as c;

    if v_last then
        insert into queen.queue_counts as k (
            queue_id, partitions, total, pending, processing, partitions_pending, partitions_ready, leases,
            leased_partitions, leased, oldest_at, recent_at
        )
        select v_queue, v_sum.partitions, v_sum.total, v_sum.pending, v_sum.processing, v_sum.partitions_pending,
            v_sum.partitions_ready, v_sum.leases, v_sum.leased_partitions, v_sum.leased, v_oldest,
            array(
                select r.newest
                from unnest(v_sum.recent) with ordinality as r (newest, place)
                where r.place in (1, 10, 100, 1000)
                order by r.place
            )
        on conflict on constraint queue_counts_pk do update
        set (partitions, total, pending, processing, partitions_pending, partitions_ready, leases, leased_partitions, leased,
                oldest_at, recent_at, counted_at)
            = (excluded.partitions, excluded.total, excluded.pending, excluded.processing, excluded.partitions_pending,
                excluded.partitions_ready, excluded.leases, excluded.leased_partitions, excluded.leased,
                excluded.oldest_at, excluded.recent_at, clock_timestamp());
    else
        update queen.count_walks as w
        set (next, walked_at, partitions, total, pending, processing, partitions_pending, partitions_ready, leases,
                leased_partitions, leased, recent)
            = (p_next, clock_timestamp(), v_sum.partitions, v_sum.total, v_sum.pending, v_sum.processing,
                v_sum.partitions_pending, v_sum.partitions_ready, v_sum.leases, v_sum.leased_partitions, v_sum.leased,
                v_sum.recent)
        where w.queue_id = v_queue;
    end if;
end;
$$;
