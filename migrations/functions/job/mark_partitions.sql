-- mark_partitions.sql: makes due markers for partitions of queues that have a retention rule: one slice of a walk.
-- In     p_args: limit integer (partition rows per call), periodMs bigint (of the task).
-- Out    {"looked":n,"marked":n}; looked is less than limit: nothing is left to walk for now.
-- Does   a walk reads the partition rows of a queue in order and marks what was written since the last one, for when its
--        oldest message falls under the rule. A queue is walked once per its shortest rule, so that is found in time; a
--        partition found empty has no marker until then. Changed rules, and a day gone by, mark every partition with
--        something stored.
-- Locks  rows of its own tables; one runner at a time, by queen.claim_task.
-- Cost   the queues with a rule; 0.5 us per partition row of a walk, and some index probes for each one written since.
-- Caller src/jobs/retention.rs. Source: operations 6.3; rule 14.
create or replace function queen.mark_partitions(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_limit constant integer := (p_args ->> 'limit')::integer;
    v_period constant interval := coalesce((p_args ->> 'periodMs')::bigint, 5000) * interval '1 millisecond';
    v_now timestamptz := clock_timestamp();
    v_safe timestamptz;
    v_queue record;
    v_found record;
    v_looked integer := 0;
    v_marked integer := 0;
begin
    insert into queen.retention_queues as r (queue_id, rules)
    select
        q.id,
        concat_ws(' ', q.retention_enabled, q.retention_seconds, q.completed_retention_seconds,
            q.max_wait_time_seconds, q.retention_sink_hold, q.retention_sink_hold_max_seconds)
    from queen.queues as q
    where q.max_wait_time_seconds > 0
        or (q.retention_enabled and (q.retention_seconds > 0 or q.completed_retention_seconds > 0))
    on conflict on constraint retention_queues_pk do update
    set rules = excluded.rules, seen = 0, since = 'epoch', next_at = v_now, walked_at = v_now
    where r.rules <> excluded.rules or r.walked_at < v_now - interval '1 day';

    delete from queen.retention_queues as r
    where not exists (
        select 1
        from queen.queues as q
        where q.id = r.queue_id
            and (q.max_wait_time_seconds > 0
                or (q.retention_enabled and (q.retention_seconds > 0 or q.completed_retention_seconds > 0)))
    );

    -- Before the rows are read: what is committed later has a stamp above it, and is for the next walk.
    select s.at into v_safe from queen.safe_time() as s;
    for v_queue in
        select r.queue_id, r.seen, r.since, case when r.seen = 0 then v_safe else r.begun_at end as begun_at,
            w.window_secs * interval '1 second' as span
        from queen.retention_queues as r
        join queen.queues as q on q.id = r.queue_id
        cross join lateral queen.retention_rules(q, v_now) as w
        where r.next_at <= v_now
        order by r.next_at, r.queue_id
    loop
        exit when v_looked >= v_limit;
        with looked as materialized (
            select p.id, p.log_start, p.last_offset, p.last_created_at
            from queen.partitions as p
            where p.queue_id = v_queue.queue_id and p.id + 0 > v_queue.seen
            order by p.id + 0
            limit v_limit - v_looked
        ),
        added as (
            insert into queen.retention_marks as m (partition_id, look_at)
            select l.id, s.created_at + v_queue.span
            from looked as l
            cross join lateral (
                select s.created_at
                from queen.segments as s
                where s.partition_id = l.id and s.base_offset >= l.log_start
                order by s.base_offset
                limit 1
            ) as s
            where l.last_created_at >= v_queue.since and l.last_offset >= l.log_start
            -- A marker that is there knows better, unless the rules have changed.
            on conflict on constraint retention_marks_pk do update
            set look_at = excluded.look_at
            where v_queue.since = 'epoch' and excluded.look_at < m.look_at
            returning 1
        )
        select count(*) as looked, max(l.id) as last, (select count(*) from added) as marked
        into v_found
        from looked as l;
        v_marked := v_marked + v_found.marked;
        if v_found.looked < v_limit - v_looked then
            update queen.retention_queues as r
            set seen = 0, since = v_queue.begun_at, next_at = v_now + greatest(v_queue.span, 2 * v_period)
            where r.queue_id = v_queue.queue_id;
        else
            update queen.retention_queues as r
            set seen = v_found.last, begun_at = v_queue.begun_at
            where r.queue_id = v_queue.queue_id;
        end if;
        v_looked := v_looked + v_found.looked;
    end loop;
    return json_build_object('looked', v_looked, 'marked', v_marked);
end;
$$;
