-- purge_dead_letters.sql: deletes the dead letters of one message, or a bounded step of those of a queue or of one group.
-- In     p_args: queue text, group text or null, limit integer, after: what the step before said, or null; or partition bigint and
--        transaction text.
-- Out    {"deleted":n,"left":boolean,"after":text}; left: it deleted the limit, and there may be more from `after` on, newest first.
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
    v_after timestamptz;
    v_deleted bigint;
begin
    if p_args ->> 'queue' is not null then
        -- By the index of the queue, from where the step before ended: what is of other groups is not read again.
        select array_agg(n.id), min(n.failed_at) into v_ids, v_after
        from (
            select d.id, d.failed_at
            from queen.dead_letters as d
            where d.queue_id = (
                    select q.id from queen.queues as q where q.tenant_id = p_tenant and q.name = p_args ->> 'queue'
                )
                and d.failed_at <= coalesce((p_args ->> 'after')::timestamptz, 'infinity')
                and (p_args ->> 'group' is null or d.group_name = p_args ->> 'group')
            order by d.failed_at desc, d.id
            limit (p_args ->> 'limit')::integer
        ) as n;
    else
        v_ids := array(
            select d.id
            from queen.dead_letters as d
            join queen.queues as q on q.id = d.queue_id
            where d.partition_id = (p_args ->> 'partition')::bigint
                and d.transaction_id = p_args ->> 'transaction'
                and q.tenant_id = p_tenant
        );
    end if;
    perform from queen.dead_letters as d where d.id = any (v_ids) order by d.id for update;
    delete from queen.dead_letters as d where d.id = any (v_ids);
    get diagnostics v_deleted = row_count;
    return json_build_object(
        'deleted', v_deleted,
        'left', coalesce(cardinality(v_ids) >= (p_args ->> 'limit')::integer, false),
        'after', v_after
    );
end;
$$;
