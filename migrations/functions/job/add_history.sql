-- add_history.sql: adds what one broker did since its last call to the minute that is now.
-- In     p_args: hostname text, pid integer, broker {the columns of queen.broker_minutes, in camelCase},
--        queues [{tenant, queue, pushRequests, pushed, popped, popEmpty, transactions, acked, ackFailed, conflated, lagUs,
--        claims, lagMaxUs, parkedUs}]. What a broker that does not count it leaves out is 0. p_tenant is not looked at.
-- Out    {}.
-- Locks  the broker's own row; rows of queues in the order of their ids; then that of the totals, for an instant.
-- Again  adds again: a caller whose outcome is unknown may count twice or lose a delta. Nothing decides on these.
-- Caller src/jobs.rs. Source: operations 5.11.
create or replace function queen.add_history(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_minute timestamptz := date_trunc('minute', statement_timestamp());
    v_broker jsonb := p_args -> 'broker';
begin
    insert into queen.broker_minutes as m (
        minute, hostname, pid, push_requests, push_messages, pop_requests, pop_messages, ack_requests, ack_messages,
        ack_failed, dead_lettered, db_errors, loop_lag_us, loop_lag_samples, loop_lag_max_us, cpu_user_pct,
        cpu_sys_pct, rss_mb, pool_active, pool_idle, pool_size, covered_us
    )
    select
        v_minute, p_args ->> 'hostname', (p_args ->> 'pid')::integer, b."pushRequests", b."pushMessages",
        b."popRequests", b."popMessages", b."ackRequests", b."ackMessages", b."ackFailed", b."deadLettered",
        b."dbErrors", b."loopLagUs", b."loopLagSamples", b."loopLagMaxUs", b."cpuUserPct", b."cpuSysPct", b."rssMb",
        b."poolActive", b."poolIdle", b."poolSize", coalesce(b."coveredUs", 0)
    from jsonb_to_record(v_broker) as b (
        "pushRequests" bigint, "pushMessages" bigint, "popRequests" bigint, "popMessages" bigint,
        "ackRequests" bigint, "ackMessages" bigint, "ackFailed" bigint, "deadLettered" bigint, "dbErrors" bigint,
        "loopLagUs" bigint, "loopLagSamples" bigint, "loopLagMaxUs" bigint, "cpuUserPct" double precision,
        "cpuSysPct" double precision, "rssMb" double precision, "poolActive" integer, "poolIdle" integer,
        "poolSize" integer, "coveredUs" bigint
    )
    on conflict on constraint broker_minutes_pk do update
    set push_requests = m.push_requests + excluded.push_requests,
        push_messages = m.push_messages + excluded.push_messages,
        pop_requests = m.pop_requests + excluded.pop_requests,
        pop_messages = m.pop_messages + excluded.pop_messages,
        ack_requests = m.ack_requests + excluded.ack_requests,
        ack_messages = m.ack_messages + excluded.ack_messages,
        ack_failed = m.ack_failed + excluded.ack_failed,
        dead_lettered = m.dead_lettered + excluded.dead_lettered,
        db_errors = m.db_errors + excluded.db_errors,
        loop_lag_us = m.loop_lag_us + excluded.loop_lag_us,
        loop_lag_samples = m.loop_lag_samples + excluded.loop_lag_samples,
        loop_lag_max_us = greatest(m.loop_lag_max_us, excluded.loop_lag_max_us),
        cpu_user_pct = excluded.cpu_user_pct,
        cpu_sys_pct = excluded.cpu_sys_pct,
        rss_mb = excluded.rss_mb,
        pool_active = excluded.pool_active,
        pool_idle = excluded.pool_idle,
        pool_size = excluded.pool_size,
        covered_us = m.covered_us + excluded.covered_us;
    insert into queen.queue_minutes as m (
        minute, queue_id, push_messages, pop_messages, ack_messages, lag_us, claims, lag_max_us, push_requests,
        pop_empty, transactions, ack_failed, conflated, parked_us
    )
    select
        v_minute, q.id, a.pushed, a.popped, a.acked, a."lagUs", a.claims, a."lagMaxUs", coalesce(a."pushRequests", 0),
        coalesce(a."popEmpty", 0), coalesce(a.transactions, 0), coalesce(a."ackFailed", 0), coalesce(a.conflated, 0),
        coalesce(a."parkedUs", 0)
    from jsonb_to_recordset(p_args -> 'queues') as a (
        tenant uuid, queue text, pushed bigint, popped bigint, acked bigint, "lagUs" bigint, claims bigint,
        "lagMaxUs" bigint, "pushRequests" bigint, "popEmpty" bigint, transactions bigint, "ackFailed" bigint,
        conflated bigint, "parkedUs" bigint
    )
    join queen.queues as q on q.tenant_id = a.tenant and q.name = a.queue collate "C"
    order by q.id
    on conflict on constraint queue_minutes_pk do update
    set push_messages = m.push_messages + excluded.push_messages,
        pop_messages = m.pop_messages + excluded.pop_messages,
        ack_messages = m.ack_messages + excluded.ack_messages,
        lag_us = m.lag_us + excluded.lag_us,
        claims = m.claims + excluded.claims,
        lag_max_us = greatest(m.lag_max_us, excluded.lag_max_us),
        push_requests = m.push_requests + excluded.push_requests,
        pop_empty = m.pop_empty + excluded.pop_empty,
        transactions = m.transactions + excluded.transactions,
        ack_failed = m.ack_failed + excluded.ack_failed,
        conflated = m.conflated + excluded.conflated,
        parked_us = m.parked_us + excluded.parked_us;
    -- Also of a broker that did nothing: how old what the pages say is.
    insert into queen.totals as t (updated_at)
    values (clock_timestamp())
    on conflict on constraint totals_pk do update set updated_at = excluded.updated_at;
    return json_build_object();
end;
$$;
