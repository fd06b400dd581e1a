-- release_task.sql: ends a run of a periodic task and says when the next one is due. Overruns do not pile up.
-- In     p_args: task text, fence bigint (of the claim; a run that lost its lease changes nothing).
-- Out    {}.
-- Locks  the task's row.
-- Caller src/jobs.rs. Source: operations 6.4.
create or replace function queen.release_task(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
as $$
begin
    update queen.maintenance_leases as m
    set holder = null,
        expires_at = null,
        next_due_at = greatest(m.next_due_at + m.period_ms * interval '1 millisecond', clock_timestamp()),
        last_run_at = clock_timestamp(),
        last_end_at = clock_timestamp(),
        last_duration_ms = (extract(epoch from clock_timestamp() - m.last_start_at) * 1000)::bigint,
        runs = m.runs + 1
    where m.task = p_args ->> 'task' and m.fence = (p_args ->> 'fence')::bigint;
    return json_build_object();
end;
$$;
