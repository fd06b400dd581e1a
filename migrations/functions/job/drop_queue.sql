-- drop_queue.sql: one bounded step of removing a deleted queue: partitions and cursors, then dead letters, then the queue.
-- In     p_args: queue uuid, or null for any that was left behind; limit integer (partitions, or dead letters); after bigint, absent in the
--        first step: what the last one said, so that a step does not walk over the dead index entries of all before it.
-- Out    {"left":bool,"after":bigint}: whether another step has something to do; after is absent when that begins at the front.
-- Locks  partition rows by id, then their cursor rows by (partition, group), each by an ordered locking select of its own, as
--        all that wait for them do. The last step: queue row, then group rows by id. A push in flight ends first; the next
--        one finds nothing.
-- Later  segments and evidence of the dead ids, which nothing can reach, are left to purge_dead.
-- Again  yes: call it until nothing is left.
-- Caller src/http/resources.rs, purge_dead. Source: data plane 8.7, 7.6; rule 3.
create or replace function queen.drop_queue(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_limit constant integer := (p_args ->> 'limit')::integer;
    v_queue uuid := (p_args ->> 'queue')::uuid;
    v_after constant bigint := coalesce((p_args ->> 'after')::bigint, 0);
    v_ids bigint[];
    v_done integer;
begin
    select q.id into v_queue
    from queen.queues as q
    where q.tenant_id = 'ffffffff-ffff-ffff-ffff-ffffffffffff' and (v_queue is null or q.id = v_queue)
    order by q.id
    limit 1;
    if not found then
        return json_build_object('left', false);
    end if;

    v_ids := array(
        select p.id
        from queen.partitions as p
        where p.queue_id = v_queue and p.id + 0 > v_after
        order by p.id + 0
        limit v_limit
        for update
    );
    if cardinality(v_ids) > 0 then
        perform 1
        from queen.cursors as c
        where c.partition_id = any (v_ids)
        order by c.partition_id, c.group_id
        for update;
        delete from queen.cursors as c where c.partition_id = any (v_ids);
        with gone as (
            delete from queen.partitions as p
            where p.id = any (v_ids)
            returning p.id
        )
        insert into queen.dead_partitions (partition_id)
        select g.id
        from gone as g
        on conflict on constraint dead_partitions_pk do nothing;
        return json_build_object('left', true, 'after', v_ids[cardinality(v_ids)]);
    end if;

    delete from queen.dead_letters as d
    where d.id in (select t.id from queen.dead_letters as t where t.queue_id = v_queue limit v_limit);
    get diagnostics v_done = row_count;
    if v_done = v_limit then
        return json_build_object('left', true);
    end if;

    perform 1 from queen.queues as q where q.id = v_queue for update;
    perform 1
    from queen.groups as g
    where g.queue_id = v_queue
    order by g.id
    for update;
    if exists (select from queen.partitions as p where p.queue_id = v_queue and p.id + 0 > 0) then
        return json_build_object('left', true);
    end if;
    delete from queen.groups as g where g.queue_id = v_queue;
    delete from queen.queue_sizes as z where z.queue_id = v_queue;
    delete from queen.queues as q where q.id = v_queue;
    return json_build_object('left', exists (
        select from queen.queues as q where q.tenant_id = 'ffffffff-ffff-ffff-ffff-ffffffffffff' and p_args ->> 'queue' is null
    ));
end;
$$;
