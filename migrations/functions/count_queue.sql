-- count_queue.sql: the reconciler's step: counts the next queue in id order and its groups; one queue per call.
-- In     p_args: after uuid text or null (a new pass); exact bigint (a database with no more partitions is counted by the pages
--        themselves: what was counted before is forgotten); ranks integer (partitions ranked per queue and per group, whose
--        oldest messages are looked up); skip boolean or null: the queue is only named. Covers all tenants.
-- Out    {"queue":uuid or null}: the queue counted, or passed over; null: the pass is over.
-- Locks  none that waits. Cost: the partitions and cursors of one queue, twice.
-- Caller src/jobs.rs. Source: operations 5.7, STATS_INTERVAL_MS.
create or replace function queen.count_queue(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_ranks constant integer := (p_args ->> 'ranks')::integer;
    v_queue uuid;
    v_groups bigint[];
begin
    if p_args ->> 'after' is null then
        if (
            select count(*) from (select from queen.partitions as p limit (p_args ->> 'exact')::bigint + 1) as p
        ) <= (p_args ->> 'exact')::bigint then
            delete from queen.queue_counts;
            delete from queen.group_counts;
            delete from queen.pending_ranks;
            delete from queen.lag_ranks;
            return json_build_object('queue', null);
        end if;
        delete from queen.queue_counts as k where not exists (select from queen.queues as q where q.id = k.queue_id);
        delete from queen.pending_ranks as n where not exists (select from queen.queues as q where q.id = n.queue_id);
        delete from queen.group_counts as k where not exists (select from queen.groups as g where g.id = k.group_id);
        delete from queen.lag_ranks as n where not exists (select from queen.groups as g where g.id = n.group_id);
    end if;
    select q.id into v_queue
    from queen.queues as q
    where q.id > coalesce((p_args ->> 'after')::uuid, '00000000-0000-0000-0000-000000000000')
    order by q.id
    limit 1;
    if not found or (p_args ->> 'skip')::boolean then
        return json_build_object('queue', v_queue);
    end if;
    v_groups := array(select g.id from queen.groups as g where g.queue_id = v_queue);

    delete from queen.pending_ranks as n where n.queue_id = v_queue;
    with counted as materialized (
        select * from queen.partition_counts(array[v_queue])
    ),
    ranked as materialized (
        select c.partition_id, c.pending, c.wanted
        from counted as c
        order by c.pending desc, c.partition_id
        limit v_ranks
    ),
    kept as (
        insert into queen.pending_ranks (queue_id, partition_id, pending)
        select v_queue, r.partition_id, r.pending from ranked as r
    ),
    recent as (
        select r.newest, row_number() over (order by r.newest desc) as place
        from (select c.newest from counted as c where c.newest is not null order by c.newest desc limit 1000) as r
    )
    insert into queen.queue_counts as k (
        queue_id, partitions, total, pending, processing, partitions_pending, partitions_ready, leases,
        leased_partitions, leased, oldest_at, recent_at
    )
    select v_queue, count(*), coalesce(sum(c.total), 0), coalesce(sum(c.pending), 0), coalesce(sum(c.processing), 0),
        count(*) filter (where c.pending > 0), count(*) filter (where c.pending > c.processing),
        coalesce(sum(c.leases), 0), count(*) filter (where c.leases > 0), coalesce(sum(c.leased), 0),
        (
            select min(s.created_at)
            from ranked as r
            cross join lateral queen.stored_at(r.partition_id, r.wanted) as s
            where r.pending > 0
        ),
        coalesce((select array_agg(r.newest order by r.place) from recent as r where r.place in (1, 10, 100, 1000)), '{}')
    from counted as c
    on conflict on constraint queue_counts_pk do update
    set (partitions, total, pending, processing, partitions_pending, partitions_ready, leases, leased_partitions, leased,
            oldest_at, recent_at, counted_at)
        = (excluded.partitions, excluded.total, excluded.pending, excluded.processing, excluded.partitions_pending,
            excluded.partitions_ready, excluded.leases, excluded.leased_partitions, excluded.leased,
            excluded.oldest_at, excluded.recent_at, clock_timestamp());

    delete from queen.lag_ranks as n where n.group_id = any (v_groups);
    with counted as materialized (
        select * from queen.group_cursors(v_groups)
    ),
    ranked as materialized (
        select r.*
        from (
            select c.group_id, c.partition_id, c.lag, c.wanted,
                row_number() over (partition by c.group_id order by c.lag desc, c.partition_id) as place
            from counted as c
        ) as r
        where r.place <= v_ranks
    ),
    kept as (
        insert into queen.lag_ranks (group_id, partition_id, lag)
        select r.group_id, r.partition_id, r.lag from ranked as r
    ),
    late as (
        select r.group_id, min(s.created_at) as oldest
        from ranked as r
        cross join lateral queen.stored_at(r.partition_id, r.wanted) as s
        where r.lag > 0
        group by r.group_id
    )
    insert into queen.group_counts as k (
        group_id, cursors, lagging, ready, members, lag, processing, consumed, oldest_at
    )
    select c.group_id, count(*) filter (where c.met), count(*) filter (where c.lag > 0),
        count(*) filter (where c.lag > c.processing), count(c.lease_id), sum(c.lag), sum(c.processing),
        coalesce(bool_or(c.met and c.committed >= 0), false), min(l.oldest)
    from counted as c
    left join late as l on l.group_id = c.group_id
    group by c.group_id
    on conflict on constraint group_counts_pk do update
    set (cursors, lagging, ready, members, lag, processing, consumed, oldest_at, counted_at)
        = (excluded.cursors, excluded.lagging, excluded.ready, excluded.members, excluded.lag, excluded.processing,
            excluded.consumed, excluded.oldest_at, clock_timestamp());
    return json_build_object('queue', v_queue);
end;
$$;
