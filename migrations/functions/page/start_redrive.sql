-- start_redrive.sql: records a bulk replay of the dead letters of one queue that match a filter.
-- In     p_args: queue text; group, error (a part of the text), from, to, toQueue, toPartition text or null; rate
--        integer; dryRun boolean; running integer (at most so many at a time per tenant).
-- Out    the report; or {"busy":n}. A dry run counts and is done.
-- Locks  none that waits. Cost: counting what matches.
-- Again  makes another one: a row moves once all the same.
-- Caller src/http/redrives.rs.
create or replace function queen.start_redrive(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_running bigint;
    v_row queen.redrives;
begin
    delete from queen.redrives as r where r.tenant_id = p_tenant and r.finished_at < v_now - interval '30 days';
    select count(*) into v_running from queen.redrives as r where r.tenant_id = p_tenant and r.state = 'running';
    if v_running >= (p_args ->> 'running')::bigint then
        return json_build_object('busy', v_running);
    end if;
    insert into queen.redrives (
        tenant_id, queue, group_name, error, failed_from, failed_to, to_queue, to_partition, rate, dry_run, state,
        finished_at, matched
    )
    select
        p_tenant, p_args ->> 'queue', p_args ->> 'group', p_args ->> 'error',
        coalesce((p_args ->> 'from')::timestamptz, '-infinity'),
        least((p_args ->> 'to')::timestamptz, v_now),
        p_args ->> 'toQueue', p_args ->> 'toPartition', (p_args ->> 'rate')::integer, (p_args ->> 'dryRun')::boolean,
        case when (p_args ->> 'dryRun')::boolean then 'done' else 'running' end,
        case when (p_args ->> 'dryRun')::boolean then v_now end,
        count(d.id)
    from queen.queues as q
    join queen.dead_letters as d on d.queue_id = q.id
    where q.tenant_id = p_tenant
        and q.name = p_args ->> 'queue'
        and (p_args ->> 'group' is null or d.group_name = p_args ->> 'group')
        and (p_args ->> 'error' is null or position(p_args ->> 'error' in d.error) > 0)
        and d.failed_at >= coalesce((p_args ->> 'from')::timestamptz, '-infinity')
        and d.failed_at <= least((p_args ->> 'to')::timestamptz, v_now)
    returning * into v_row;
    return queen.redrive_report(v_row);
end;
$$;
