-- find_lanes.sql: partitions by their names, with the options of their queues.
-- In     parallel arrays, at most a few hundred.
-- Out    one row per entry that exists; ord is its 1-based place.
-- Locks  none.
-- Caller src/store/cold.rs, find_lanes; queen.provision, queen.bundle, queen.settle_bundle. Source: data plane 2, 8.2.
drop function if exists queen.find_lanes(uuid[], text[], text[]);
create or replace function queen.find_lanes(p_tenant uuid[], p_queue text[], p_partition text[])
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
        p.id, p.last_offset, p.log_start, p.last_created_at, q.completed_retention_seconds
    from unnest(p_tenant, p_queue, p_partition) with ordinality as a (tenant_id, queue, name, ord)
    -- Row by row through the indexes, even while the tables are so small that the planner would turn it round.
    cross join lateral (
        select * from queen.queues as q where q.tenant_id = a.tenant_id and q.name = a.queue collate "C" offset 0
    ) as q
    cross join lateral (
        select * from queen.partitions as p where p.queue_id = q.id and p.name = a.name collate "C" offset 0
    ) as p;
end;
$$;
