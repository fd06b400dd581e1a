-- redrive_report.sql: a redrive as its routes show it.
-- In     p_redrive: the row.
-- Caller queen.start_redrive, queen.get_redrive.
create or replace function queen.redrive_report(p_redrive queen.redrives)
returns json
language plpgsql stable
as $$
begin
    return json_build_object(
        'id', p_redrive.id, 'queue', p_redrive.queue, 'consumerGroup', p_redrive.group_name, 'error', p_redrive.error,
        'toQueue', p_redrive.to_queue, 'toPartition', p_redrive.to_partition, 'rate', p_redrive.rate,
        'dryRun', p_redrive.dry_run, 'state', p_redrive.state, 'matched', p_redrive.matched, 'moved', p_redrive.moved,
        'duplicate', p_redrive.duplicate, 'gone', p_redrive.gone, 'failed', p_redrive.failed,
        'lastError', p_redrive.last_error, 'createdAt', queen.utc_ms(p_redrive.created_at),
        'updatedAt', queen.utc_ms(p_redrive.updated_at), 'finishedAt', queen.utc_ms(p_redrive.finished_at)
    );
end;
$$;
