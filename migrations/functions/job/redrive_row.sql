-- redrive_row.sql: moves one dead letter for a redrive and counts it, in one transaction.
-- In     p_args: redrive uuid text, failedAt text, and what replay_dead_letter takes.
-- Out    {"result":"moved"|"duplicate"|"gone"|"failed"|"stopped","grown"}. grown: the partition that was moved to. stopped: cancelled meanwhile, nothing is done.
--        An error that passes (a deadlock, a lock that was not had in time) is raised: nothing is done, nothing is counted.
-- Locks  the redrive's row, then those of replay_dead_letter.
-- Again  gone: a row moves at most once, whatever crashed.
-- Caller src/jobs/redrive.rs.
create or replace function queen.redrive_row(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
as $$
declare
    v_done json;
    v_result text;
    v_error text;
begin
    perform 1
    from queen.redrives as r
    where r.id = (p_args ->> 'redrive')::uuid and r.state = 'running'
    for update;
    if not found then
        return json_build_object('result', 'stopped');
    end if;
    begin
        v_done := queen.replay_dead_letter(p_tenant, p_args);
        v_result := v_done ->> 'result';
    exception when others then
        -- Of the moment and not of the row: it comes again. Source: operations 4.5.
        if left(sqlstate, 2) in ('08', '40', '53', '55', '57', '58') or sqlstate = '25006' then
            raise;
        end if;
        v_result := 'failed';
        v_error := sqlerrm;
    end;
    update queen.redrives as r
    set moved = r.moved + (v_result = 'moved')::integer,
        duplicate = r.duplicate + (v_result = 'duplicate')::integer,
        gone = r.gone + (v_result = 'gone')::integer,
        failed = r.failed + (v_result = 'failed')::integer,
        last_error = coalesce(v_error, r.last_error),
        after_at = (p_args ->> 'failedAt')::timestamptz,
        after_id = (p_args ->> 'id')::uuid,
        updated_at = clock_timestamp()
    where r.id = (p_args ->> 'redrive')::uuid;
    return json_build_object('result', v_result, 'grown', v_done -> 'grown');
end;
$$;
