-- list_tasks.sql: the tasks of a tenant's queues, by name, with counters.
-- In     p_args: limit integer.
-- Out    {"tasks":[...]}; queues without one are left out; pending leaves leased messages out.
-- Locks  none. Cost: the partitions and cursors of the tenant's queues.
-- Caller src/http/resources.rs. Source: data plane 8.8; operations 5.8.6.
create or replace function queen.list_tasks(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_ids uuid[];
begin
    v_ids := array(select r.id from queen.queues as r where r.tenant_id = p_tenant and r.task <> '');
    return (
        with counted as (
            select
                n.task,
                count(distinct n.id) as queues,
                count(c.partition_id) as partitions,
                coalesce(sum(c.total), 0) as total,
                coalesce(sum(c.pending - c.processing), 0) as pending
            from queen.queues as n
            left join queen.partition_counts(v_ids) as c on c.queue_id = n.id
            where n.id = any (v_ids)
            group by n.task
            order by n.task
            limit (p_args ->> 'limit')::integer
        )
        select json_build_object('tasks', coalesce(json_agg(
            json_build_object(
                'task', k.task,
                'queues', k.queues,
                'partitions', k.partitions,
                'messages', json_build_object('total', k.total, 'pending', k.pending)
            )
            order by k.task
        ), '[]'))
        from counted as k
    );
end;
$$;
