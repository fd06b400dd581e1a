-- delete_queue.sql: deletes a queue with its partitions, cursors, groups and dead letters.
-- In     p_args: queue text.
-- Out    {"deleted":..,"queue":..,"existed":..}.
-- Locks  queue row, then group rows by id, partition rows by id, cursor rows by (partition, group), each by an ordered
--        locking select of its own, as all that wait for them do: whoever waits, waits in that order. A push in flight ends first; the next one finds nothing.
-- Later  segments and evidence of the dead ids, which nothing can reach, are left to purge_dead.
-- Again  harmless.
-- Caller src/http/resources.rs. Source: data plane 8.7, 7.6; architecture 13, rule 3.
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
    -- FOR UPDATE waits for partition creation and registration, which hold the row, and keeps new ones out.
    select r.id into v_queue
    from queen.queues as r
    where r.tenant_id = p_tenant and r.name = v_name
    for update;
    if not found then
        return json_build_object(
            'deleted', false, 'queue', v_name, 'existed', false,
            'message', 'Queue not found, nothing was deleted');
    end if;

    perform 1
    from queen.groups as g
    where g.queue_id = v_queue
    order by g.id
    for update;

    perform 1
    from queen.partitions as p
    where p.queue_id = v_queue
    order by p.id
    for update;

    perform 1
    from queen.cursors as c
    where c.partition_id in (select p.id from queen.partitions as p where p.queue_id = v_queue)
    order by c.partition_id, c.group_id
    for update;

    delete from queen.cursors as c
    where c.partition_id in (select p.id from queen.partitions as p where p.queue_id = v_queue);

    with gone as (
        delete from queen.partitions as p
        where p.queue_id = v_queue
        returning p.id
    )
    insert into queen.dead_partitions (partition_id)
    select g.id
    from gone as g
    on conflict on constraint dead_partitions_pk do nothing;

    delete from queen.groups as g where g.queue_id = v_queue;
    delete from queen.dead_letters as d where d.queue_id = v_queue;
    delete from queen.queue_sizes as z where z.queue_id = v_queue;
    delete from queen.queues as r where r.id = v_queue;
    return json_build_object('deleted', true, 'queue', v_name, 'existed', true);
end;
$$;
