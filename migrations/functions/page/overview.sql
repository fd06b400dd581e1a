-- overview.sql: the numbers of the first page.
-- In     p_args: limit integer (partitions whose lag is looked up at most).
-- Out    the page. For the default tenant it covers the whole database, with lifetime counters; for another one its
--        own queues, with stored counts. Throughput is that of the last five minutes, whole database or own queues alike.
-- Locks  none. Cost: that of queue_sums.
-- Caller src/http/resources.rs. Source: operations 5.8.5.
create or replace function queen.overview(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_all boolean := p_tenant = '00000000-0000-0000-0000-000000000001';
    v_ids uuid[];
    v_dead bigint;
    v_ingested bigint;
    v_processed bigint;
    t queen.totals;
begin
    v_ids := array(
        select r.id
        from queen.queues as r
        -- Without those that are being removed.
        where r.tenant_id = p_tenant or (v_all and r.tenant_id <> 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    );
    select * into t from queen.totals as x;
    select count(*) into v_dead from queen.dead_letters as d where not v_all and d.queue_id = any (v_ids);
    if v_all then
        select sum(m.push_messages), sum(m.ack_messages) into v_ingested, v_processed
        from queen.broker_minutes as m
        where m.minute > statement_timestamp() - interval '5 minutes';
    else
        select sum(m.push_messages), sum(m.ack_messages) into v_ingested, v_processed
        from queen.queue_minutes as m
        where m.minute > statement_timestamp() - interval '5 minutes' and m.queue_id = any (v_ids);
    end if;
    return (
        with lag as materialized (
            select s.partitions, s.total, s.pending, s.processing,
                greatest(0, coalesce(floor(extract(epoch from statement_timestamp() - s.oldest_at)), 0)) as lag_seconds
            from queen.queue_sums(v_ids, false, (p_args ->> 'limit')::integer) as s
        ),
        summed as (
            select
                coalesce(sum(l.partitions), 0) as partitions,
                coalesce(sum(l.total), 0) as total,
                coalesce(sum(l.pending - l.processing), 0) as pending,
                coalesce(sum(l.processing), 0) as processing,
                coalesce(sum(l.total - l.pending), 0) as completed,
                coalesce(round(avg(l.lag_seconds)), 0) as time_avg,
                coalesce(round(percentile_cont(0.5) within group (order by l.lag_seconds)), 0) as time_median,
                coalesce(max(l.lag_seconds), 0) as time_max,
                coalesce(round(avg(l.pending)), 0) as offset_avg,
                coalesce(max(l.pending), 0) as offset_max
            from lag as l
        )
        select json_build_object(
            'queues', cardinality(v_ids),
            'partitions', s.partitions,
            'namespaces', n.namespaces,
            'tasks', n.tasks,
            'messages', json_build_object(
                'total', case when v_all then coalesce(t.push_messages, 0) else s.total end,
                'pending', s.pending,
                'processing', s.processing,
                'completed', case when v_all then coalesce(t.ack_messages, 0)
                    else greatest(0, s.completed - v_dead) end,
                'failed', case when v_all then coalesce(t.ack_failed, 0) else 0 end,
                'deadLetter', case when v_all then coalesce(t.dead_lettered, 0) else v_dead end
            ),
            'lag', json_build_object(
                'time', json_build_object('avg', s.time_avg, 'median', s.time_median, 'min', 0, 'max', s.time_max),
                'offset', json_build_object('avg', s.offset_avg, 'median', 0, 'min', 0, 'max', s.offset_max)
            ),
            'throughput', json_build_object(
                'ingestedPerSecond', round(coalesce(v_ingested, 0) / 300.0, 2),
                'processedPerSecond', round(coalesce(v_processed, 0) / 300.0, 2)
            ),
            'timestamp', queen.utc_ms(clock_timestamp()),
            'statsAge', case when not v_all then 0
                else coalesce(floor(extract(epoch from clock_timestamp() - t.updated_at)), -1)::bigint end
        )
        from summed as s
        cross join (
            select
                count(distinct r.namespace) filter (where r.namespace <> '') as namespaces,
                count(distinct r.task) filter (where r.task <> '') as tasks
            from queen.queues as r
            where r.id = any (v_ids)
        ) as n
    );
end;
$$;
