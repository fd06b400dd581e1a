-- status.sql: the state of the whole database, whatever the tenant.
-- In     p_args: from, to text (times, or null: the last hour), queue, namespace, task text or null, limit integer
--        (queues listed and error texts grouped at most).
-- Out    the page, or {"invalid":"from"} for a time that cannot be read.
-- Locks  none. Cost: that of queue_sums, the dead letters, and the minutes of the span.
-- Caller src/http/status.rs. Source: operations 5.6.1.
create or replace function queen.status(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
set timezone = 'UTC'
as $$
declare
    v_to timestamptz;
    v_from timestamptz;
    v_minutes numeric;
    v_width integer;
    v_throughput json;
    v_filtered boolean := coalesce(p_args ->> 'queue', p_args ->> 'namespace', p_args ->> 'task') is not null;
    v_ids uuid[];
    t queen.totals;
    -- A date, and perhaps a time and its zone; PostgreSQL would take 'yesterday' as well.
    c_time constant text := '^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?( *(Z|z|[+-]\d\d(:?\d\d)?))?)?$';
begin
    if p_args ->> 'to' !~ c_time then
        return json_build_object('invalid', 'to');
    elsif p_args ->> 'from' !~ c_time then
        return json_build_object('invalid', 'from');
    end if;
    begin
        v_to := coalesce((p_args ->> 'to')::timestamp with time zone, statement_timestamp());
        v_from := coalesce((p_args ->> 'from')::timestamp with time zone, v_to - interval '1 hour');
    exception when data_exception then
        return json_build_object('invalid', 'from or to');
    end;
    v_minutes := extract(epoch from v_to - v_from) / 60;
    v_ids := array(
        select r.id
        from queen.queues as r
        where r.tenant_id <> 'ffffffff-ffff-ffff-ffff-ffffffffffff' -- These are being removed.
            and (p_args ->> 'queue' is null or r.name = p_args ->> 'queue')
            and (p_args ->> 'namespace' is null or r.namespace = p_args ->> 'namespace')
            and (p_args ->> 'task' is null or r.task = p_args ->> 'task')
    );
    v_width := case
        when v_minutes <= 60 then 1
        when v_minutes <= 360 then 5
        when v_minutes <= 1440 then 15
        when v_minutes <= 10080 then 60
        else 360
    end;
    v_throughput := queen.throughput(v_from, v_to, v_width, case when v_filtered then v_ids end);
    select * into t from queen.totals as x;
    return (
        with counted as materialized (
            select * from queen.queue_sums(v_ids, false, 0) as c
        ),
        summed as (
            select
                coalesce(sum(c.pending - c.processing), 0) as pending,
                coalesce(sum(c.processing), 0) as processing,
                coalesce(sum(c.leases), 0) as leases,
                coalesce(sum(c.leased_partitions), 0) as leased_partitions,
                coalesce(sum(c.leased), 0) as leased
            from counted as c
        ),
        dead as materialized (
            select d.queue_id, d.partition_id, d.error from queen.dead_letters as d
        ),
        dead_of as (
            select d.queue_id, count(*) as letters from dead as d group by d.queue_id
        )
        select json_build_object(
            'timeRange', json_build_object('from', queen.utc_ms(v_from), 'to', queen.utc_ms(v_to)),
            'bucketMinutes', v_width,
            'pointCount', json_array_length(v_throughput),
            'throughput', v_throughput,
            'queues', coalesce((
                select json_agg(
                    json_build_object(
                        'id', l.id,
                        'name', l.name,
                        'namespace', l.namespace,
                        'task', l.task,
                        'partitions', l.partitions,
                        'totalConsumed', greatest(0, l.total - l.pending - l.letters)
                    )
                    order by l.name, l.id
                )
                from (
                    select r.id, r.name, r.namespace, r.task, c.partitions, c.total, c.pending,
                        coalesce(d.letters, 0) as letters
                    from counted as c
                    join queen.queues as r on r.id = c.queue_id
                    left join dead_of as d on d.queue_id = c.queue_id
                    where c.total > 0
                    order by r.name, r.id
                    limit (p_args ->> 'limit')::integer
                ) as l
            ), '[]'),
            'messages', json_build_object(
                'total', coalesce(t.push_messages, 0),
                'pending', s.pending,
                'processing', s.processing,
                'completed', coalesce(t.ack_messages, 0),
                'failed', coalesce(t.ack_failed, 0),
                'deadLetter', coalesce(t.dead_lettered, 0),
                'requests', json_build_object(
                    'push', coalesce(t.push_requests, 0),
                    'pop', coalesce(t.pop_requests, 0),
                    'ack', coalesce(t.ack_requests, 0)
                ),
                'batchEfficiency', json_build_object(
                    'push', coalesce(round(t.push_messages / nullif(t.push_requests, 0)::numeric, 2), 0.00),
                    'pop', coalesce(round(t.pop_messages / nullif(t.pop_requests, 0)::numeric, 2), 0.00),
                    'ack', coalesce(round(t.ack_messages / nullif(t.ack_requests, 0)::numeric, 2), 0.00)
                )
            ),
            'leases', json_build_object(
                'active', s.leases,
                'partitionsWithLeases', s.leased_partitions,
                'totalBatchSize', s.leased,
                'totalAcked', 0
            ),
            'deadLetterQueue', json_build_object(
                'totalMessages', coalesce(t.dead_lettered, 0),
                'currentMessages', (select count(*) from dead as d),
                'affectedPartitions', (select count(distinct d.partition_id) from dead as d),
                'topErrors', coalesce((
                    select json_agg(
                        json_build_object('error', e.error, 'count', e.count)
                        order by e.count desc, e.error
                    )
                    from (
                        select coalesce(nullif(d.error, ''), 'unknown') as error, count(*) as count
                        from dead as d
                        group by 1
                        order by 2 desc, 1
                        limit 5
                    ) as e
                ), '[]')
            ),
            'workers', coalesce((
                select json_agg(
                    json_build_object(
                        'hostname', w.hostname,
                        'workerId', 0,
                        'avgEventLoopLagMs', round(coalesce(w.loop_lag_us, 0) / 1000.0),
                        'maxEventLoopLagMs', round(w.loop_lag_max_us / 1000.0),
                        'freeSlots', w.free,
                        'dbConnections', w.connections,
                        'jobQueueSize', null,
                        'messagesProcessed', w.messages
                    )
                    order by w.hostname, w.pid
                )
                from (
                    select
                        m.hostname,
                        m.pid,
                        sum(m.loop_lag_us)::numeric / nullif(sum(m.loop_lag_samples), 0) as loop_lag_us,
                        max(m.loop_lag_max_us) as loop_lag_max_us,
                        min(m.pool_size - m.pool_active) as free,
                        max(m.pool_active) as connections,
                        sum(m.push_messages + m.ack_messages) as messages
                    from queen.broker_minutes as m
                    where m.minute > statement_timestamp() - interval '3 minutes'
                    group by m.hostname, m.pid
                ) as w
            ), '[]'),
            'errors', json_build_object(
                'dbErrors', coalesce(t.db_errors, 0),
                'ackFailed', coalesce(t.ack_failed, 0),
                'dlqMessages', coalesce(t.dead_lettered, 0)
            ),
            'statsAge', coalesce(floor(extract(epoch from clock_timestamp() - t.updated_at)), -1)::bigint
        )
        from summed as s
    );
end;
$$;
