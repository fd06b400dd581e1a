-- label_sums.sql: the labels of a tenant's queues of one kind, by name, with counters.
-- In     p_label: 'namespace' or 'task'. p_limit: labels at most.
-- Out    an array in the shape of the two pages; queues without a label are left out; pending leaves leased messages out.
-- Locks  none. Cost: that of queue_sums.
-- Caller list_namespaces, list_tasks. Source: data plane 8.8; operations 5.8.6.
drop function if exists queen.label_sums(uuid, boolean, integer);
create or replace function queen.label_sums(p_tenant uuid, p_label text, p_limit integer)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_ids uuid[];
begin
    v_ids := array(
        select r.id
        from queen.queues as r
        where r.tenant_id = p_tenant and case when p_label = 'task' then r.task else r.namespace end <> ''
    );
    return (
        select coalesce(json_agg(
            json_build_object(
                p_label, l.label,
                'queues', l.queues,
                'partitions', l.partitions,
                'messages', json_build_object('total', l.total, 'pending', l.pending)
            )
            order by l.label
        ), '[]')
        from (
            select
                case when p_label = 'task' then r.task else r.namespace end as label,
                count(*) as queues,
                coalesce(sum(s.partitions), 0)::bigint as partitions,
                coalesce(sum(s.total), 0) as total,
                coalesce(sum(s.pending - s.processing), 0) as pending
            from queen.queues as r
            left join queen.queue_sums(v_ids, true, 0) as s on s.queue_id = r.id
            where r.id = any (v_ids)
            group by 1
            order by 1
            limit p_limit
        ) as l
    );
end;
$$;
