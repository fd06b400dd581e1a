-- count_page_cursors.sql: the half of queen.count_page that is about groups: of each its sums, the partitions it is furthest behind in, the
--        oldest message.
-- In     as queen.count_page.
-- Does   the last page publishes in group_counts and lag_ranks; the others keep sums in queen.count_walk_groups and ranks in count_walk_ranks.
-- Locks  as queen.count_page. Cost: the cursors of the page, and the ranks of all groups.
-- Plan   row by row through the indexes, whatever statistics say: hashing would read the cursors of all queues for each page. Whose rank
--        is lost is found by its place in the table (ctid), so that it takes no join.
-- Caller count_page. Source: operations 5.7.
create or replace function queen.count_page_cursors(p_walk queen.count_walks, p_ids bigint[], p_next bigint, p_ranks integer)
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
begin
    if v_last then
        delete from queen.lag_ranks as n where n.group_id = any (v_groups);
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
            union all
            -- One that has nothing left to count is published as that: its partitions may all be gone.
            select g.id, 0, 0, 0, 0, 0, 0, false
            from unnest(v_groups) as g (id)
            where v_last
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
end;
$$;
