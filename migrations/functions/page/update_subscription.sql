-- update_subscription.sql: rewrites the timestamp of a group's registrations on all queues of a tenant.
-- In     p_args: group text, timestamp text (with a zone).
-- Out    {"rowsUpdated":n}. Cursors stay; partitions met afterwards are seeded by it.
-- Locks  group rows in id order. Again harmless.
-- Caller src/http/groups.rs. Source: data plane 11.4.
create or replace function queen.update_subscription(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_groups bigint[];
    v_updated bigint;
begin
    v_groups := array(
        select g.id
        from queen.queues as q
        join queen.groups as g on g.queue_id = q.id
        where q.tenant_id = p_tenant and g.name = p_args ->> 'group' and g.mode is not null
    );
    perform 1 from queen.groups as g where g.id = any (v_groups) order by g.id for no key update;
    update queen.groups as g
    set start_at = (p_args ->> 'timestamp')::timestamptz
    where g.id = any (v_groups);
    get diagnostics v_updated = row_count;
    return json_build_object('rowsUpdated', v_updated);
end;
$$;
