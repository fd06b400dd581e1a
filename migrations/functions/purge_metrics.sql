-- purge_metrics.sql: deletes audit rows and minutes older than the metrics age: one bounded step.
-- In     p_args: days integer, limit integer (rows of each table).
-- Out    {"rows":n}.
-- Locks  rows nobody else touches.
-- Caller src/jobs.rs. Source: operations 6.7.
create or replace function queen.purge_metrics(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_before timestamptz := clock_timestamp() - make_interval(days => (p_args ->> 'days')::integer);
    v_limit integer := (p_args ->> 'limit')::integer;
    v_rows integer;
    v_all integer;
begin
    delete from queen.retention_audit as a
    where a.id in (
        select o.id from queen.retention_audit as o where o.removed_at < v_before order by o.removed_at limit v_limit
    );
    get diagnostics v_all = row_count;
    delete from queen.broker_minutes as m
    where m.ctid = any (array(
        select o.ctid from queen.broker_minutes as o where o.minute < v_before order by o.minute limit v_limit
    ));
    get diagnostics v_rows = row_count;
    v_all := v_all + v_rows;
    delete from queen.queue_minutes as m
    where m.ctid = any (array(
        select o.ctid from queen.queue_minutes as o where o.minute < v_before order by o.minute limit v_limit
    ));
    get diagnostics v_rows = row_count;
    return json_build_object('rows', v_all + v_rows);
end;
$$;
