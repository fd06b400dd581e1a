-- match_queues.sql: names of a tenant's queues that carry a namespace, a task, or both.
-- In     p_args: {"namespace": text or null, "task": text or null}; null (or absent) does not filter, equality is exact.
-- Out    a JSON array of names in name order, [] when nothing matches. Never null.
-- Locks  none.
-- Again  harmless: reads only.
-- Caller src/http/pop/matched.rs, discovery; one at a time for each (tenant, namespace, task) and core.
--        Source: data plane 4.1.
create or replace function queen.match_queues(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
as $$
begin
    return (
        select coalesce(json_agg(q.name order by q.name), '[]'::json)
        from queen.queues as q
        where q.tenant_id = p_tenant
            and (p_args ->> 'namespace' is null or q.namespace = p_args ->> 'namespace')
            and (p_args ->> 'task' is null or q.task = p_args ->> 'task')
    );
end;
$$;
