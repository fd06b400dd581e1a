-- make_queues.sql: creates the queues that are missing, with default options and a namespace and task out of the name.
-- In     names may repeat.
-- Out    the ids of those it made; null where it made none.
-- Locks  waits for a transaction that creates one of the same queues; in (tenant, name) order.
-- Again  harmless.
-- Caller queen.provision, queen.open_group, queen.bundle. Source: data plane 2.
create or replace function queen.make_queues(p_tenant uuid[], p_queue text[])
returns uuid[]
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = off
as $$
#variable_conflict use_column
declare
    v_made uuid[];
begin
    with made as (
        insert into queen.queues (tenant_id, name, namespace, task)
        select distinct a.tenant_id, a.name collate "C", split_part(a.name, '.', 1), split_part(a.name, '.', 2)
        from unnest(p_tenant, p_queue) as a (tenant_id, name)
        where not exists (
            select from queen.queues as q where q.tenant_id = a.tenant_id and q.name = a.name collate "C" offset 0
        )
        order by a.tenant_id, a.name collate "C"
        on conflict do nothing
        returning id
    )
    select array_agg(m.id) into v_made from made as m;
    return v_made;
end;
$$;
