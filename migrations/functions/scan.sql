-- scan.sql: a page of a queue's partitions in which a group has something left, of one shard of one broker.
-- In     p_shards: how many shards the broker has; a partition's is its placement slot (low 12 bits) modulo that. p_after: exclusive.
-- Out    ascending ids. Cursor columns are null where the group never met the partition.
-- Locks  none. Reads the index of the queue's partitions from p_after on, and one cursor each.
-- Caller src/store/cold.rs, scan. Source: data plane 4.3; architecture 13, rule 11.
drop function if exists queen.scan(uuid, bigint, integer, integer, bigint, integer);
create or replace function queen.scan(
    p_queue uuid,
    p_group bigint,
    p_shard integer,
    p_shards integer,
    p_after bigint,
    p_limit integer
)
returns table (
    partition_id bigint,
    name text,
    last_offset bigint,
    log_start bigint,
    last_created_at timestamptz,
    version bigint,
    committed bigint,
    lease_id uuid,
    lease_expires_at timestamptz,
    batch_end bigint,
    retry_count integer,
    attempt_start bigint,
    attempt_count integer,
    conflating boolean
)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    return query
    select p.id, p.name, p.last_offset, p.log_start, p.last_created_at,
        c.version, c.committed, c.lease_id, c.lease_expires_at, c.batch_end, c.retry_count, c.attempt_start,
        c.attempt_count, c.conflating
    from queen.partitions as p
    left join lateral (
        select c.* from queen.cursors as c where c.partition_id = p.id and c.group_id = p_group offset 0
    ) as c on true
    where p.queue_id = p_queue
        and p.id > p_after
        and (p.id & 4095) % p_shards = p_shard
        and p.last_offset > greatest(coalesce(c.committed, -1), p.log_start - 1)
    order by p.id
    limit p_limit;
end;
$$;
