-- cluster_metrics.sql: what the database knows for a scrape: lifetime counters and dead letters.
-- In     p_args: limit integer (queues named at most). Covers all tenants.
-- Out    an object; telemetry/prometheus.rs knows its keys.
-- Locks  none. Cost: the index of the dead letters.
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
            ), '[]')
        )
    );
end;
$$;
