-- cluster_metrics.sql: what the database knows for a scrape: lifetime counters, dead letters, the newest minute of queues.
-- In     p_args: limit integer (queues named at most). Covers all tenants: queues of one name are one.
-- Out    an object; telemetry/prometheus.rs knows its keys. `parked`: time that polls were parked, by the time that the
--        reports of the minute cover. Brokers report alike, so that is the time of any of them; a minute, where none says.
--        It is a level, so it is that of the queue's newest minute that is over: of the minute that is now some brokers have told
--        and others have not. Of a queue that has none, the minute that is now has to do.
-- Locks  none. Cost: the index of the dead letters, and the queues that did something in the last five minutes.
-- Caller src/http/status.rs. Source: operations 5.4.2, 5.4.3.
create or replace function queen.cluster_metrics(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
as $$
declare
    t queen.totals;
begin
    select * into t from queen.totals as x;
    return (
        with dead as (
            select r.name, sum(d.letters)::bigint as letters
            from (
                select x.queue_id, count(*) as letters from queen.dead_letters as x group by x.queue_id
            ) as d
            join queen.queues as r on r.id = d.queue_id
            group by r.name
        ),
        covered as (
            select b.minute, nullif(max(b.covered_us), 0)::float8 as us
            from queen.broker_minutes as b
            where b.minute > statement_timestamp() - interval '5 minutes'
            group by b.minute
        ),
        minutes as (
            select r.name, m.minute, sum(m.push_requests)::bigint as push_requests, sum(m.push_messages)::bigint as pushed,
                sum(m.pop_messages)::bigint as popped, sum(m.pop_empty)::bigint as pop_empty,
                sum(m.transactions)::bigint as transactions, sum(m.ack_messages)::bigint as acked,
                sum(m.ack_failed)::bigint as ack_failed, sum(m.conflated)::bigint as conflated,
                sum(m.parked_us)::float8 as parked_us, (sum(m.lag_us) / nullif(sum(m.claims), 0) / 1000.0)::float8 as lag_ms,
                max(m.lag_max_us) / 1000.0 as lag_max_ms
            from queen.queue_minutes as m
            join queen.queues as r on r.id = m.queue_id
            where m.minute > statement_timestamp() - interval '5 minutes'
            group by r.name, m.minute
        ),
        newest as (
            select m.*, row_number() over (partition by m.name order by m.minute desc) as nth,
                first_value(m.parked_us / coalesce(c.us, 60e6)) over (
                    partition by m.name
                    order by m.minute = date_trunc('minute', statement_timestamp()), m.minute desc
                ) as parked
            from minutes as m
            left join covered as c on c.minute = m.minute
        )
        select json_build_object(
            'pushRequests', coalesce(t.push_requests, 0),
            'pushMessages', coalesce(t.push_messages, 0),
            'popRequests', coalesce(t.pop_requests, 0),
            'popMessages', coalesce(t.pop_messages, 0),
            'ackRequests', coalesce(t.ack_requests, 0),
            'ackMessages', coalesce(t.ack_messages, 0),
            'ackFailed', coalesce(t.ack_failed, 0),
            'deadLettered', coalesce(t.dead_lettered, 0),
            'transactions', coalesce(t.transactions, 0),
            'dbErrors', coalesce(t.db_errors, 0),
            'deadLetters', coalesce((select sum(d.letters)::bigint from dead as d), 0),
            'deadLettersByQueue', coalesce((
                select json_agg(json_build_object('queue', l.name, 'count', l.letters) order by l.name)
                from (
                    select * from dead as d order by d.letters desc, d.name limit (p_args ->> 'limit')::integer
                ) as l
            ), '[]'),
            'queueMinutes', coalesce((
                select json_agg(
                    json_build_object(
                        'queue', l.name, 'pushRequests', l.push_requests, 'pushed', l.pushed, 'popped', l.popped,
                        'popEmpty', l.pop_empty, 'transactions', l.transactions, 'acked', l.acked,
                        'ackFailed', l.ack_failed, 'conflated', l.conflated,
                        'lagMs', coalesce(l.lag_ms, 0), 'lagMaxMs', coalesce(l.lag_max_ms, 0),
                        'parked', l.parked,
                        'age', floor(extract(epoch from statement_timestamp() - l.minute))::bigint
                    )
                    order by l.name
                )
                from (
                    select *
                    from newest as m
                    where m.nth = 1
                    order by m.pushed + m.popped desc, m.parked desc, m.name
                    limit (p_args ->> 'limit')::integer
                ) as l
            ), '[]')
        )
    );
end;
$$;
