-- mark_partitions.sql: makes due markers for partitions of queues that have a retention rule.
-- In     p_args: limit integer (partitions per call).
-- Out    {"marked":n}; fewer than limit: nothing is left to mark.
-- Does   new partitions are found by their numbers, the last minute's again, because a younger number may be seen first.
--        Changed rules, and a day gone by, make a queue be walked from its beginning.
-- Locks  rows of its own tables; one runner at a time, by queen.claim_task.
-- Cost   the queues with a rule, and the partitions it marks.
-- Caller src/jobs.rs. Source: operations 6.3; architecture 13, rule 14.
create or replace function queen.mark_partitions(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_left integer := (p_args ->> 'limit')::integer;
    v_now timestamptz := clock_timestamp();
    v_queue record;
    v_marked integer;
    v_seen bigint;
    v_last bigint;
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
    set rules = excluded.rules, seen = 0, walked_at = v_now
    where r.rules <> excluded.rules or r.walked_at < v_now - interval '1 day';

    delete from queen.retention_queues as r
    where not exists (
        select 1
        from queen.queues as q
        where q.id = r.queue_id
            and (q.max_wait_time_seconds > 0
                or (q.retention_enabled and (q.retention_seconds > 0 or q.completed_retention_seconds > 0)))
    );

    for v_queue in select r.queue_id, r.seen from queen.retention_queues as r order by r.queue_id loop
        exit when v_left <= 0;
        with found as (
            select p.id, p.created_at
            from queen.partitions as p
            where p.queue_id = v_queue.queue_id and p.id > v_queue.seen
            order by p.id
            limit v_left
        ),
        added as (
            insert into queen.retention_marks as m (partition_id, look_at)
            select f.id, v_now from found as f
            on conflict on constraint retention_marks_pk do update
            set look_at = excluded.look_at
            where v_queue.seen = 0 and m.look_at > excluded.look_at
            returning 1
        )
        select
            count(*),
            (select max(f.id) from found as f where f.created_at < v_now - interval '1 minute'),
            (select max(f.id) from found as f)
        into v_marked, v_seen, v_last
        from found;
        v_left := v_left - v_marked;
        -- A page of young partitions only must not be read for ever.
        v_seen := case when v_left <= 0 then coalesce(v_seen, v_last) else v_seen end;
        if v_seen is not null then
            update queen.retention_queues as r set seen = v_seen where r.queue_id = v_queue.queue_id;
        end if;
    end loop;
    return json_build_object('marked', (p_args ->> 'limit')::integer - v_left);
end;
$$;
