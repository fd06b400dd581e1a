-- seek_group.sql: moves the cursors of one group in a queue, or in one partition of it.
-- In     p_args: queue, group text; partition text or null (all); and one of toEnd true, timestamp text, offset bigint
--        (the next message to be delivered, brought into what is stored).
-- Out    {"found":bool,"moved":n}. found: the queue has such a partition.
-- Does   makes missing cursors, ends leases, resets counters. The registration stays, and what was retired. New versions, so that no memory
--        of the rows as they were matches.
-- Locks  queue row FOR KEY SHARE, group row FOR KEY SHARE, partition rows FOR KEY SHARE in id order (a cleanup cannot
--        take them), then cursor rows in the same order.
-- Again  harmless.
-- Caller src/http/groups.rs. Source: data plane 11.5; rules 3, 19, 25.
create or replace function queen.seek_group(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_partition text := p_args ->> 'partition';
    v_to_end boolean := coalesce((p_args ->> 'toEnd')::boolean, false);
    v_at timestamptz := (p_args ->> 'timestamp')::timestamptz;
    v_offset bigint := (p_args ->> 'offset')::bigint;
    v_queue uuid;
    v_group bigint;
    v_ids bigint[];
    v_made bigint[];
    v_moved bigint;
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    select q.id into v_queue
    from queen.queues as q
    where q.tenant_id = p_tenant and q.name = p_args ->> 'queue'
    for key share;
    if not exists (
        select 1
        from queen.partitions as p
        where p.queue_id = v_queue and (v_partition is null and p.id + 0 > 0 or p.name = v_partition)
    ) then
        return json_build_object('found', false, 'moved', 0);
    end if;

    insert into queen.groups (queue_id, name)
    values (v_queue, p_args ->> 'group')
    on conflict on constraint groups_name do nothing;
    select g.id into v_group
    from queen.groups as g
    where g.queue_id = v_queue and g.name = p_args ->> 'group'
    for key share;
    if not found then
        raise exception 'the group was deleted meanwhile' using errcode = 'serialization_failure';
    end if;

    v_ids := array(
        select p.id
        from queen.partitions as p
        where p.queue_id = v_queue and (v_partition is null and p.id + 0 > 0 or p.name = v_partition)
        order by p.id + 0
        for key share
    );
    -- Statements of their own: each sees what was pushed, or made, while the one before waited.
    with made as (
        insert into queen.cursors (partition_id, group_id, committed)
        select
            p.id,
            v_group,
            case
                when v_to_end then p.last_offset
                when v_offset is not null then least(greatest(v_offset, p.log_start) - 1, p.last_offset)
                else queen.offset_before(p.id, p.log_start, p.last_offset, v_at)
            end
        from queen.partitions as p
        where p.id = any (v_ids)
            and not exists (select from queen.cursors as c where c.partition_id = p.id and c.group_id = v_group)
        order by p.id
        returning partition_id
    )
    select coalesce(array_agg(m.partition_id), '{}') into v_made from made as m;
    v_ids := array(select unnest(v_ids) except select unnest(v_made));
    perform from queen.cursors as c
    where c.partition_id = any (v_ids) and c.group_id = v_group
    order by c.partition_id
    for update;
    update queen.cursors as c
    set version = nextval('queen.versions'),
        committed = case
            when v_to_end then p.last_offset
            when v_offset is not null then least(greatest(v_offset, p.log_start) - 1, p.last_offset)
            else queen.offset_before(p.id, p.log_start, p.last_offset, v_at)
        end,
        retired = coalesce(c.retired, c.committed + 1),
        lease_id = null,
        lease_expires_at = null,
        batch_end = null,
        conflating = false,
        retry_count = 0,
        attempt_start = null,
        attempt_count = 0
    from queen.partitions as p
    where p.id = any (v_ids) and c.partition_id = p.id and c.group_id = v_group;
    get diagnostics v_moved = row_count;
    v_moved := v_moved + cardinality(v_made);
    return json_build_object('found', v_moved > 0, 'moved', v_moved);
end;
$$;
