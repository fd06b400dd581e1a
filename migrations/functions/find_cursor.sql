-- find_cursor.sql: the cursor of a named group on a partition. Made when the registration left it to be made; else nothing is made.
-- Out    one row when the partition exists; group and cursor columns are null when there is no cursor.
-- Locks  none, or those of queen.seed_cursors.
-- Caller src/store/cold.rs, find_cursor. Source: data plane 5.4, step 1.
drop function if exists queen.find_cursor(bigint, text);
create or replace function queen.find_cursor(p_partition bigint, p_group text)
returns table (
    last_offset bigint,
    log_start bigint,
    group_id bigint,
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
as $$
#variable_conflict use_column
begin
    perform from queen.groups as g
    join queen.partitions as p on p.queue_id = g.queue_id
    cross join lateral queen.seed_cursors(g.id, null, null, array[p.id]) as s
    where p.id = p_partition
        and g.name = p_group collate "C"
        and g.seed_at is not null
        and p.id >> 12 <= g.high_water
        and not exists (select from queen.cursors as c where c.partition_id = p.id and c.group_id = g.id offset 0);
    return query
    select p.last_offset, p.log_start, c.group_id, c.version, c.committed, c.lease_id, c.lease_expires_at, c.batch_end,
        c.retry_count, c.attempt_start, c.attempt_count, c.conflating
    from queen.partitions as p
    left join queen.groups as g on g.queue_id = p.queue_id and g.name = p_group collate "C"
    left join queen.cursors as c on c.partition_id = p.id and c.group_id = g.id
    where p.id = p_partition;
end;
$$;
