-- retention_rules.sql: the cutoffs of one queue at a moment; null where a rule is off.
-- In     p_queue: the row; p_now.
-- Out    one row. window_secs: the shortest rule, in which nothing can become due. Whatever a rule says, a sink hold
--        keeps what is younger than its maximum: what the sink has committed cannot be read yet.
-- Locks  none.
-- Caller queen.retain_step, queen.mark_partitions. Source: data plane 12; operations 6.2.
create or replace function queen.retention_rules(p_queue queen.queues, p_now timestamptz)
returns table (age timestamptz, completed timestamptz, eviction timestamptz, window_secs integer)
language sql immutable
as $$
    select
        case when r.age > 0 then p_now - make_interval(secs => greatest(r.age, r.hold)) end,
        case when r.completed > 0 then p_now - make_interval(secs => greatest(r.completed, r.hold)) end,
        case when r.eviction > 0 then p_now - make_interval(secs => greatest(r.eviction, r.hold)) end,
        greatest(least(nullif(r.age, 0), nullif(r.completed, 0), nullif(r.eviction, 0)), r.hold)
    from (
        select
            case when p_queue.retention_enabled then p_queue.retention_seconds else 0 end as age,
            case when p_queue.retention_enabled then p_queue.completed_retention_seconds else 0 end as completed,
            p_queue.max_wait_time_seconds as eviction,
            case when p_queue.retention_sink_hold <> '' then p_queue.retention_sink_hold_max_seconds else 0 end as hold
    ) as r;
$$;
