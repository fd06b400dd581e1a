-- provision.sql: creates the queues and partitions that are missing, then reads them all.
-- In     parallel arrays; p_slot: see queen.make_partitions.
-- Out    as queen.find_lanes. An entry is missing when its queue was deleted meanwhile.
-- Locks  none where all of them are there, and nothing is written then: a partition that left memory is met again without waiting for the disk.
--        Else those of queen.make_queues, then of queen.make_partitions.
-- Again  harmless. Ids are read by a statement of their own: insert-or-select in one may find neither.
-- Caller src/store/cold.rs, provision. Source: data plane 2; rules 6 and 24.
drop function if exists queen.provision(uuid[], text[], text[], integer[]);
create or replace function queen.provision(p_tenant uuid[], p_queue text[], p_partition text[], p_slot integer[])
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
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if not exists (
        select from unnest(p_tenant, p_queue, p_partition) as a (tenant_id, queue, name)
        where not exists (
            select from queen.queues as q
            cross join lateral (
                select from queen.partitions as p where p.queue_id = q.id and p.name = a.name collate "C" offset 0
            ) as p
            where q.tenant_id = a.tenant_id and q.name = a.queue collate "C" offset 0
        )
    ) then
        return query select * from queen.find_lanes(p_tenant, p_queue, p_partition);
        return;
    end if;
    perform queen.make_queues(p_tenant, p_queue);
    perform queen.make_partitions(p_tenant, p_queue, p_partition, p_slot);
    return query select * from queen.find_lanes(p_tenant, p_queue, p_partition);
end;
$$;
