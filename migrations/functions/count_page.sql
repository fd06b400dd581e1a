-- count_page.sql: counts a page of a queue's partitions and of its groups' cursors, and adds what was counted of the pages before.
-- In     p_walk: the queue, its groups, and what was counted until there; `next` null or 0: this is its first page. p_ids: the page's
--        partitions. p_next: the partition at which the page after this one begins; null: this is the last one. p_ranks:
--        partitions ranked per queue and group.
-- Does   the last page publishes: what pages of the screen read changes, and what was kept until then goes. The others only keep.
-- Locks  none that waits, beside the row of queen.count_walks, which the caller has.
-- Cost   the partitions and cursors of the page, twice, and the ranks.
-- Plan   row by row through the indexes, whatever statistics say: hashing would read the cursors of all queues for each page. Whose rank
--        is lost is found by its place in the table (ctid), so that it takes no join.
-- Caller count_queue. Source: operations 5.7.
create or replace function queen.count_page(p_walk queen.count_walks, p_ids bigint[], p_next bigint, p_ranks integer)
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
    v_groups constant bigint[] := p_walk.groups;
    v_later constant boolean := coalesce(p_walk.next, 0) > 0;
    v_last constant boolean := p_next is null;
    v_sum queen.count_walks;
    v_oldest timestamptz;
begin
    if v_last then
        delete from queen.pending_ranks as n where n.queue_id = v_queue;
        delete from queen.lag_ranks as n where n.group_id = any (v_groups);
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

    with counted as materialized (
        select * from queen.cursors_of(v_groups, p_ids)
    ),
    ranked as materialized (
        select u.*, row_number() over (partition by u.group_id order by u.lag desc, u.partition_id) as place
        from (
            select c.group_id, c.partition_id, c.lag, c.wanted, null::tid as kept_at
            from counted as c
            union all
            select r.group_id, r.partition_id, r.behind, r.wanted, r.ctid
            from queen.count_walk_ranks as r
            where v_later and r.queue_id = v_queue and r.group_id = any (v_groups)
        ) as u
    ),
    published as (
        insert into queen.lag_ranks (group_id, partition_id, lag)
        select r.group_id, r.partition_id, r.lag
        from ranked as r
        where v_last and r.place <= p_ranks
    ),
    kept as (
        insert into queen.count_walk_ranks (queue_id, group_id, partition_id, behind, wanted)
        select v_queue, r.group_id, r.partition_id, r.lag, r.wanted
        from ranked as r
        where not v_last and r.place <= p_ranks and r.kept_at is null
    ),
    fallen as (
        delete from queen.count_walk_ranks as r
        where r.ctid = any (array(
            select r.kept_at from ranked as r where not v_last and r.place > p_ranks and r.kept_at is not null
        ))
    ),
    late as (
        select r.group_id, min(s.created_at) as oldest
        from ranked as r
        cross join lateral queen.stored_at(r.partition_id, r.wanted) as s
        where v_last and r.place <= p_ranks and r.lag > 0
        group by r.group_id
    ),
    summed as materialized (
        select
            u.group_id, sum(u.cursors) as cursors, sum(u.lagging) as lagging, sum(u.ready) as ready,
            sum(u.members) as members, sum(u.lag) as lag, sum(u.processing) as processing, bool_or(u.consumed) as consumed
        from (
            select
                c.group_id,
                count(*) filter (where c.met) as cursors,
                count(*) filter (where c.lag > 0) as lagging,
                count(*) filter (where c.lag > c.processing) as ready,
                count(c.lease_id) as members,
                sum(c.lag) as lag,
                sum(c.processing) as processing,
                coalesce(bool_or(c.met and c.committed >= 0), false) as consumed
            from counted as c
            group by c.group_id
            union all
            select k.group_id, k.cursors, k.lagging, k.ready, k.members, k.lag, k.processing, k.consumed
            from queen.count_walk_groups as k
            where v_later and k.queue_id = v_queue and k.group_id = any (v_groups)
        ) as u
        group by u.group_id
    ),
    kept_sums as (
        insert into queen.count_walk_groups as k (
            queue_id, group_id, cursors, lagging, ready, members, lag, processing, consumed
        )
        select v_queue, s.group_id, s.cursors, s.lagging, s.ready, s.members, s.lag, s.processing, s.consumed
        from summed as s
        where not v_last
        on conflict on constraint count_walk_groups_pk do update
        set (cursors, lagging, ready, members, lag, processing, consumed)
            = (excluded.cursors, excluded.lagging, excluded.ready, excluded.members, excluded.lag, excluded.processing,
                excluded.consumed)
    )
    insert into queen.group_counts as k (
        group_id, cursors, lagging, ready, members, lag, processing, consumed, oldest_at
    )
    select s.group_id, s.cursors, s.lagging, s.ready, s.members, s.lag, s.processing, s.consumed, l.oldest
    from summed as s
    left join late as l on l.group_id = s.group_id
    where v_last
    on conflict on constraint group_counts_pk do update
    set (cursors, lagging, ready, members, lag, processing, consumed, oldest_at, counted_at)
        = (excluded.cursors, excluded.lagging, excluded.ready, excluded.members, excluded.lag, excluded.processing,
            excluded.consumed, excluded.oldest_at, clock_timestamp());

    if v_last and v_later then
        perform queen.forget_count(v_queue);
    end if;
end;
$$;
