-- purge_metrics.sql: deletes audit rows and minutes older than the metrics age, and minutes of queues in which nothing but polls
--        that found nothing, once no scrape tells of them: one bounded step.
-- In     p_args: days integer, limit integer (rows of each kind).
-- Out    {"rows":n,"left":bool}: left: there may be more.
-- Locks  rows nobody else touches.
-- Caller src/jobs/retention.rs. Source: operations 5.4.3, 6.7.
create or replace function queen.purge_metrics(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
as $$
declare
    v_before timestamptz := clock_timestamp() - make_interval(days => (p_args ->> 'days')::integer);
    -- Scrapes tell of five minutes.
    v_idle_before timestamptz := clock_timestamp() - interval '10 minutes';
    v_limit integer := (p_args ->> 'limit')::integer;
    v_rows integer;
    v_all integer;
    v_left boolean;
begin
    delete from queen.retention_audit as a
    where a.id in (
        select o.id from queen.retention_audit as o where o.removed_at < v_before order by o.removed_at limit v_limit
    );
    get diagnostics v_rows = row_count;
    v_all := v_rows;
    v_left := v_rows = v_limit;
    delete from queen.broker_minutes as m
    where m.ctid = any (array(
        select o.ctid from queen.broker_minutes as o where o.minute < v_before order by o.minute limit v_limit
    ));
    get diagnostics v_rows = row_count;
    v_all := v_all + v_rows;
    v_left := v_left or v_rows = v_limit;
    delete from queen.queue_minutes as m
    where m.ctid = any (array(
        select o.ctid from queen.queue_minutes as o where o.minute < v_before order by o.minute limit v_limit
    ));
    get diagnostics v_rows = row_count;
    v_all := v_all + v_rows;
    v_left := v_left or v_rows = v_limit;
    delete from queen.queue_minutes as m
    where m.ctid = any (array(
        select o.ctid
        from queen.queue_minutes as o
        where o.minute < v_idle_before
            -- As the index queue_minutes_idle has it.
            and o.push_requests = 0 and o.push_messages = 0 and o.pop_messages = 0 and o.transactions = 0
            and o.ack_messages = 0 and o.ack_failed = 0
        order by o.minute
        limit v_limit
    ));
    get diagnostics v_rows = row_count;
    return json_build_object('rows', v_all + v_rows, 'left', v_left or v_rows = v_limit);
end;
$$;
