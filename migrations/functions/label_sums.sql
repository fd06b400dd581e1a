-- label_sums.sql: the counters of a tenant's queues by namespace or by task, in order; pending leaves leased messages out.
-- In     p_task: by task. Queues without one are left out.
-- Locks  none. Cost: that of queue_sums.
-- Caller list_namespaces, list_tasks. Source: data plane 8.8; operations 5.8.6.
create or replace function queen.label_sums(p_tenant uuid, p_task boolean, p_limit integer)
returns table (label text, queues bigint, partitions bigint, messages json)
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
declare
    v_ids uuid[];
begin
    v_ids := array(
        select r.id
        from queen.queues as r
        where r.tenant_id = p_tenant and case when p_task then r.task else r.namespace end <> ''
    );
    return query
    select
        case when p_task then r.task else r.namespace end as label,
        count(*),
        coalesce(sum(s.partitions), 0)::bigint,
        json_build_object('total', coalesce(sum(s.total), 0), 'pending', coalesce(sum(s.pending - s.processing), 0))
    from queen.queues as r
    left join queen.queue_sums(v_ids, true, 0) as s on s.queue_id = r.id
    where r.id = any (v_ids)
    group by 1
    order by 1
    limit p_limit;
end;
$$;
