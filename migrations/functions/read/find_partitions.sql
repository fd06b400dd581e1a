-- find_partitions.sql: partitions of one tenant by number, with their names and the options of their queues.
-- Out    one row per number that exists; ord is its 1-based place.
-- Locks  none.
-- The columns are those of queen.find_lanes, written again: what finds the rows is joined the other way round, and a shared view
-- would leave it to the planner which way that is.
-- Caller src/store/cold.rs, find_partitions. Source: data plane 5.4, step 1.
drop function if exists queen.find_partitions(uuid, bigint[]);
create or replace function queen.find_partitions(p_tenant uuid, p_partition bigint[])
returns table (
    ord bigint,
    queue_id uuid,
    lease_time integer,
    retry_limit integer,
    dead_letter boolean,
    delayed_processing integer,
    window_buffer integer,
    dedup_window_seconds integer,
    min_pop_wait_time integer,
    encryption_enabled boolean,
    partition_id bigint,
    last_offset bigint,
    log_start bigint,
    last_created_at timestamptz,
    queue_name text,
    partition_name text,
    completed_retention_seconds integer
)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = off
as $$
#variable_conflict use_column
begin
    return query
    select a.ord, q.id, coalesce(q.lease_time, 60), q.retry_limit, q.dead_letter_queue or q.dlq_after_max_retries,
        q.delayed_processing, q.window_buffer, q.dedup_window_seconds, q.min_pop_wait_time, q.encryption_enabled,
        p.id, p.last_offset, p.log_start, p.last_created_at, q.name, p.name, q.completed_retention_seconds
    from unnest(p_partition) with ordinality as a (id, ord)
    cross join lateral (select * from queen.partitions as p where p.id = a.id offset 0) as p
    -- By number alone: with the tenant beside it a plan may walk over all queues of the tenant.
    cross join lateral (select * from queen.queues as q where q.id = p.queue_id offset 0) as q
    where q.tenant_id = p_tenant;
end;
$$;
