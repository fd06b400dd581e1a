-- list_tasks.sql: the tasks of a tenant's queues, by name, with counters.
-- In     p_args: limit integer.
-- Out    {"tasks":[...]}; queues without one are left out; pending leaves leased messages out.
-- Locks  none. Cost: that of label_sums.
-- Caller src/http/resources.rs. Source: data plane 8.8; operations 5.8.6.
create or replace function queen.list_tasks(p_tenant uuid, p_args jsonb)
returns json
language sql stable
as $$
    select json_build_object('tasks', coalesce(json_agg(
        json_build_object(
            'task', l.label,
            'queues', l.queues,
            'partitions', l.partitions,
            'messages', l.messages
        )
        order by l.label
    ), '[]'))
    from queen.label_sums(p_tenant, true, (p_args ->> 'limit')::integer) as l;
$$;
