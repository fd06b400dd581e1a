-- list_namespaces.sql: the namespaces of a tenant's queues, by name, with counters.
-- In     p_args: limit integer.
-- Out    {"namespaces":[...]}; queues without one are left out; pending leaves leased messages out.
-- Locks  none. Cost: the partitions and cursors of the tenant's queues.
-- Caller src/http/resources.rs. Source: data plane 8.8; operations 5.8.6.
create or replace function queen.list_namespaces(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_ids uuid[];
begin
    v_ids := array(select r.id from queen.queues as r where r.tenant_id = p_tenant and r.namespace <> '');
    return (
        with counted as (
            select
                n.namespace,
                count(distinct n.id) as queues,
                count(c.partition_id) as partitions,
                coalesce(sum(c.total), 0) as total,
                coalesce(sum(c.pending - c.processing), 0) as pending
            from queen.queues as n
            left join queen.partition_counts(v_ids) as c on c.queue_id = n.id
            where n.id = any (v_ids)
            group by n.namespace
            order by n.namespace
            limit (p_args ->> 'limit')::integer
        )
        select json_build_object('namespaces', coalesce(json_agg(
            json_build_object(
                'namespace', k.namespace,
                'queues', k.queues,
                'partitions', k.partitions,
                'messages', json_build_object('total', k.total, 'pending', k.pending)
            )
            order by k.namespace
        ), '[]'))
        from counted as k
    );
end;
$$;
