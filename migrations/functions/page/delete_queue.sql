-- delete_queue.sql: takes a queue's name away; what it has is removed by queen.drop_queue, step by step.
-- In     p_args: queue text.
-- Out    {"deleted":..,"queue":..,"existed":..}, with "id" when it existed. From here on the name is free: pushes and pops make
--        another queue. Pushes to partitions of the old one that know their numbers end when those are dropped, and the
--        caller answers after that.
-- Locks  the queue row FOR UPDATE: waits for partition creation and registration, which hold it, and keeps new ones out.
-- Does   moves the queue to tenant ffffffff-ffff-ffff-ffff-ffffffffffff, where the clean-up finds it should the caller die.
-- Again  harmless.
-- Caller src/http/resources.rs. Source: data plane 8.7, 7.6; rule 3.
create or replace function queen.delete_queue(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_name text := p_args ->> 'queue';
    v_queue uuid;
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    select r.id into v_queue
    from queen.queues as r
    where r.tenant_id = p_tenant and r.name = v_name
    for update;
    if not found then
        return json_build_object(
            'deleted', false, 'queue', v_name, 'existed', false,
            'message', 'Queue not found, nothing was deleted');
    end if;
    update queen.queues as r
    set tenant_id = 'ffffffff-ffff-ffff-ffff-ffffffffffff', name = r.id::text
    where r.id = v_queue;
    return json_build_object('deleted', true, 'queue', v_name, 'existed', true, 'id', v_queue);
end;
$$;
