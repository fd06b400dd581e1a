-- find_cursors.sql: cursors of named groups on partitions. Made where the registration left them to be made; else nothing is made.
-- In     parallel arrays, at most a few hundred.
-- Out    one row per entry that has a cursor; ord is its 1-based place.
-- Locks  none where every cursor is there, or those of queen.seed_cursors, group after group in id order: so groups behind partitions, against
--        the order of all others. No cycle: who holds a partition waits for no group (delete_group takes none, the clean-up skips locked ones).
-- Again  harmless.
-- Caller src/store/cold.rs, find_cursors. Source: data plane 5.4, step 1.
create or replace function queen.find_cursors(p_partition bigint[], p_group text[])
returns table (
    ord bigint,
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
declare
    v_group bigint;
    v_partitions bigint[];
begin
    for v_group, v_partitions in
        select g.id, array_agg(distinct a.partition_id order by a.partition_id)
        from unnest(p_partition, p_group) as a (partition_id, name)
        cross join lateral (select * from queen.partitions as p where p.id = a.partition_id offset 0) as p
        cross join lateral (
            select * from queen.groups as g where g.queue_id = p.queue_id and g.name = a.name collate "C" offset 0
        ) as g
        where queen.is_meant(g, p.id)
            and not exists (select from queen.cursors as c where c.partition_id = p.id and c.group_id = g.id offset 0)
        group by g.id
        order by g.id
    loop
        perform from queen.seed_cursors(v_group, null, null, v_partitions);
    end loop;
    return query
    select a.ord, c.group_id, c.version, c.committed, c.lease_id, c.lease_expires_at, c.batch_end, c.retry_count,
        c.attempt_start, c.attempt_count, c.conflating
    from unnest(p_partition, p_group) with ordinality as a (partition_id, name, ord)
    cross join lateral (select * from queen.partitions as p where p.id = a.partition_id offset 0) as p
    cross join lateral (
        select * from queen.groups as g where g.queue_id = p.queue_id and g.name = a.name collate "C" offset 0
    ) as g
    cross join lateral (
        select * from queen.cursors as c where c.partition_id = p.id and c.group_id = g.id offset 0
    ) as c;
end;
$$;
