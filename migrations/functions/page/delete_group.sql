-- delete_group.sql: deletes the cursors of a group, with its leases and, if asked, its registrations.
-- In     p_args: group text, queue text or null (all queues of the tenant), metadata boolean.
-- Out    {"deleted":n,"queues":[names]}: cursors, and the queues in which the group was known.
-- Locks  queue rows FOR KEY SHARE, group rows FOR UPDATE, then cursor rows by (partition, group), each in order by a
--        locking select of its own. Dead letters stay.
-- Again  harmless.
-- Caller src/http/groups.rs. Source: data plane 11.6; rule 3.
create or replace function queen.delete_group(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_queues uuid[];
    v_groups bigint[];
    v_deleted bigint;
    v_unmade bigint;
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    v_queues := array(
        select q.id
        from queen.queues as q
        where q.tenant_id = p_tenant
            and (p_args ->> 'queue' is null or q.name = p_args ->> 'queue')
            and exists (select 1 from queen.groups as g where g.queue_id = q.id and g.name = p_args ->> 'group')
        order by q.id
        for key share
    );
    v_groups := array(
        select g.id
        from queen.groups as g
        where g.queue_id = any (v_queues) and g.name = p_args ->> 'group'
        order by g.id
        for update
    );
    perform 1
    from queen.partitions as p
    join queen.cursors as c on c.partition_id = p.id
    where p.queue_id = any (v_queues) and p.id + 0 > 0 and c.group_id = any (v_groups)
    order by c.partition_id, c.group_id
    for update of c;

    -- Those that a registration left to be made are gone as well.
    v_unmade := (
        select count(*)
        from queen.groups as g
        join queen.partitions as p on p.queue_id = g.queue_id and p.id + 0 > 0
        where g.id = any (v_groups)
            and queen.is_meant(g, p.id)
            and not exists (select from queen.cursors as c where c.partition_id = p.id and c.group_id = g.id)
    );
    delete from queen.cursors as c
    using queen.partitions as p
    where p.queue_id = any (v_queues) and p.id + 0 > 0 and c.partition_id = p.id and c.group_id = any (v_groups);
    get diagnostics v_deleted = row_count;
    v_deleted := v_deleted + v_unmade;

    if (p_args ->> 'metadata')::boolean then
        delete from queen.groups as g where g.id = any (v_groups);
    else
        -- From here on the record decides, as it is then.
        update queen.groups as g set seed_at = null where g.id = any (v_groups) and g.seed_at is not null;
    end if;
    return json_build_object(
        'deleted', v_deleted,
        'queues', coalesce((select json_agg(q.name order by q.name) from queen.queues as q where q.id = any (v_queues)), '[]')
    );
end;
$$;
