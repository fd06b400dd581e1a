-- make_partitions.sql: creates the partitions that are missing in queues that are there.
-- In     parallel arrays; names may repeat. p_slot: placement slot of the names, 0 to 4095, which becomes the low 12 bits of the number.
-- Out    the numbers of those it made; null where it made none. None is made in a queue that is gone.
-- Locks  queue rows FOR KEY SHARE in (tenant, name) order, which a registration excludes: a partition born during one
--        would miss its cursor. Then inserts in (queue, name) order, so two callers never deadlock.
-- Again  harmless.
-- Caller queen.provision, queen.bundle. Source: data plane 2; rules 6 and 24.
create or replace function queen.make_partitions(p_tenant uuid[], p_queue text[], p_partition text[], p_slot integer[])
returns bigint[]
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = off
as $$
#variable_conflict use_column
declare
    v_made bigint[];
begin
    -- One after another, so that they are locked in this order and no plan walks over all queues for it.
    perform q.id
    from (
        select distinct a.tenant_id, a.queue collate "C" as queue
        from unnest(p_tenant, p_queue) as a (tenant_id, queue)
        order by a.tenant_id, a.queue collate "C"
    ) as a
    cross join lateral (
        select q.id from queen.queues as q where q.tenant_id = a.tenant_id and q.name = a.queue for key share offset 0
    ) as q;
    -- A statement of its own: what was done before the locks is seen.
    with made as (
        insert into queen.partitions (id, queue_id, name)
        select nextval('queen.partition_numbers') << 12 | m.slot, m.queue_id, m.name
        from (
            select distinct on (q.id, a.name collate "C") q.id as queue_id, a.name, a.slot
            from unnest(p_tenant, p_queue, p_partition, p_slot) as a (tenant_id, queue, name, slot)
            cross join lateral (
                select q.id from queen.queues as q where q.tenant_id = a.tenant_id and q.name = a.queue collate "C" offset 0
            ) as q
            where not exists (
                select from queen.partitions as p where p.queue_id = q.id and p.name = a.name collate "C" offset 0
            )
            order by q.id, a.name collate "C"
        ) as m
        on conflict do nothing
        returning id
    )
    select array_agg(m.id) into v_made from made as m;
    return v_made;
end;
$$;
