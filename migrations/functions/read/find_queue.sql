-- find_queue.sql: a queue by its name, with its options; makes nothing.
-- Out    one row when it exists.
-- Locks  none.
-- Caller src/store/cold.rs, find_queue. Source: data plane 8.2.
drop function if exists queen.find_queue(uuid, text);
create or replace function queen.find_queue(p_tenant uuid, p_queue text)
returns table (
    queue_id uuid,
    lease_time integer,
    retry_limit integer,
    dead_letter boolean,
    delayed_processing integer,
    window_buffer integer,
    dedup_window_seconds integer,
    min_pop_wait_time integer,
    encryption_enabled boolean,
    completed_retention_seconds integer
)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
    return query
    select q.id, coalesce(q.lease_time, 60), q.retry_limit, q.dead_letter_queue or q.dlq_after_max_retries,
        q.delayed_processing, q.window_buffer, q.dedup_window_seconds, q.min_pop_wait_time, q.encryption_enabled,
        q.completed_retention_seconds
    from queen.queues as q
    where q.tenant_id = p_tenant and q.name = p_queue collate "C";
end;
$$;
