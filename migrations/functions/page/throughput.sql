-- throughput.sql: the series of the status page: what was done in each bucket of a span of time, newest bucket first.
-- In     p_minutes: width of a bucket. p_queues: queues that count, or null for the sums of all brokers. What is not
--        counted per queue stays that of all brokers.
-- Out    a JSON array, empty when nothing was counted.
-- Locks  none. Cost: the minutes of the span, times the brokers and the queues that did something.
-- Caller queen.status. Source: operations 5.6.1; buckets begin at multiples of their width from midnight UTC.
create or replace function queen.throughput(
    p_from timestamptz,
    p_to timestamptz,
    p_minutes integer,
    p_queues uuid[]
)
returns json
language sql stable
set jit = off
set timezone = 'UTC'
as $$
    with brokers as (
        select
            date_bin(make_interval(mins => p_minutes), m.minute, timestamptz '2000-01-01 00:00:00+00') as bucket,
            sum(m.push_messages) as pushed,
            sum(m.pop_messages) as popped,
            sum(m.ack_messages) as acked,
            sum(m.loop_lag_us)::numeric / nullif(sum(m.loop_lag_samples), 0) as loop_lag_us,
            max(m.loop_lag_max_us) as loop_lag_max_us,
            min(m.pool_size - m.pool_active) as free,
            sum(m.db_errors) as db_errors,
            sum(m.ack_failed) as ack_failed,
            sum(m.dead_lettered) as dead_lettered,
            avg(m.cpu_user_pct)::numeric as cpu_user,
            avg(m.cpu_sys_pct)::numeric as cpu_sys,
            avg(m.rss_mb)::numeric as rss,
            avg(m.pool_active) as active,
            avg(m.pool_idle) as idle,
            avg(m.pool_size) as size
        from queen.broker_minutes as m
        where m.minute between date_trunc('minute', p_from) and p_to
        group by 1
    ),
    queues as (
        select
            date_bin(make_interval(mins => p_minutes), m.minute, timestamptz '2000-01-01 00:00:00+00') as bucket,
            sum(m.push_messages) as pushed,
            sum(m.pop_messages) as popped,
            sum(m.ack_messages) as acked,
            sum(m.ack_failed) as failed,
            sum(m.lag_us) / nullif(sum(m.claims), 0) as lag_us,
            max(m.lag_max_us) as lag_max_us
        from queen.queue_minutes as m
        where m.minute between date_trunc('minute', p_from) and p_to
            and (p_queues is null or m.queue_id = any (p_queues))
        group by 1
    ),
    series as (
        select b.*, coalesce(q.lag_us, 0) as lag_us, coalesce(q.lag_max_us, 0) as lag_max_us,
            case when p_queues is null then b.pushed else coalesce(q.pushed, 0) end as ingested,
            case when p_queues is null then b.popped else coalesce(q.popped, 0) end as taken,
            case when p_queues is null then b.acked else coalesce(q.acked, 0) end as processed,
            case when p_queues is null then b.ack_failed else coalesce(q.failed, 0) end as refused
        from brokers as b
        left join queues as q on q.bucket = b.bucket
    )
    select coalesce(
        json_agg(
            json_build_object(
                'timestamp', to_char(s.bucket, 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
                'ingested', s.ingested,
                'processed', s.processed,
                'popMessages', s.taken,
                'ingestedPerSecond', round(s.ingested / (p_minutes * 60.0), 2),
                'processedPerSecond', round(s.processed / (p_minutes * 60.0), 2),
                'popPerSecond', round(s.taken / (p_minutes * 60.0), 2),
                'avgLagMs', round(s.lag_us / 1000.0),
                'maxLagMs', round(s.lag_max_us / 1000.0),
                'avgEventLoopLagMs', round(coalesce(s.loop_lag_us, 0) / 1000.0),
                'maxEventLoopLagMs', round(s.loop_lag_max_us / 1000.0),
                'minFreeSlots', s.free,
                'dbErrors', s.db_errors,
                'ackFailed', s.refused,
                'dlqCount', s.dead_lettered,
                'queenCpuUserPct', round(s.cpu_user, 2),
                'queenCpuSysPct', round(s.cpu_sys, 2),
                'queenRssMb', round(s.rss, 1),
                'dbPoolActive', round(s.active, 1),
                'dbPoolIdle', round(s.idle, 1),
                'dbPoolSize', round(s.size, 1)
            )
            order by s.bucket desc
        ),
        '[]'
    )
    from series as s;
$$;
