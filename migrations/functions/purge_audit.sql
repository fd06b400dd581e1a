-- purge_audit.sql: deletes audit rows older than the metrics age: one bounded step.
-- In     p_args: days integer, limit integer.
-- Out    {"rows":n}.
-- Locks  rows nobody else touches.
-- Caller src/jobs.rs. Source: operations 6.7.
create or replace function queen.purge_audit(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_deleted integer;
begin
    delete from queen.retention_audit as a
    where a.id in (
        select o.id
        from queen.retention_audit as o
        where o.removed_at < clock_timestamp() - make_interval(days => (p_args ->> 'days')::integer)
        order by o.removed_at
        limit (p_args ->> 'limit')::integer
    );
    get diagnostics v_deleted = row_count;
    return json_build_object('rows', v_deleted);
end;
$$;
