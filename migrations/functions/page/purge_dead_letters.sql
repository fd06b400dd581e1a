-- purge_dead_letters.sql: deletes the dead letters of a queue, of one group, or of one message.
-- In     p_args: queue text and group text or null; or partition bigint and transaction text.
-- Out    {"deleted":n}.
-- Locks  the rows, in id order.
-- Again  harmless.
-- Caller src/http/dead_letters.rs. Source: data plane 9.3, 10.2.
create or replace function queen.purge_dead_letters(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_ids uuid[];
    v_deleted bigint;
begin
    if p_args ->> 'queue' is not null then
        v_ids := array(
            select d.id
            from queen.queues as q
            join queen.dead_letters as d on d.queue_id = q.id
            where q.tenant_id = p_tenant
                and q.name = p_args ->> 'queue'
                and (p_args ->> 'group' is null or d.group_name = p_args ->> 'group')
            order by d.id
            for update of d
        );
    else
        v_ids := array(
            select d.id
            from queen.dead_letters as d
            join queen.queues as q on q.id = d.queue_id
            where d.partition_id = (p_args ->> 'partition')::bigint
                and d.transaction_id = p_args ->> 'transaction'
                and q.tenant_id = p_tenant
            order by d.id
            for update of d
        );
    end if;
    delete from queen.dead_letters as d where d.id = any (v_ids);
    get diagnostics v_deleted = row_count;
    return json_build_object('deleted', v_deleted);
end;
$$;
