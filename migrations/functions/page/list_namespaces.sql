-- list_namespaces.sql: the namespaces of a tenant's queues, by name, with counters.
-- In     p_args: limit integer.
-- Out    {"namespaces":[...]}.
-- Locks  none. Cost: that of label_sums.
-- Caller src/http/resources.rs. Source: data plane 8.8; operations 5.8.6.
create or replace function queen.list_namespaces(p_tenant uuid, p_args jsonb)
returns json
language sql stable
as $$
    select json_build_object('namespaces', queen.label_sums(p_tenant, 'namespace', (p_args ->> 'limit')::integer));
$$;
