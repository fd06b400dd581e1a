-- changed_partitions.sql: partitions written since an instant, for many queues, and the time up to which that is all.
-- In     p_args: entries [{queue, since text or null, after bigint (null: no cursor of ours), limit}].
-- Out    {"safeTime","store","degraded","entries":[...]}, entries in order, in the shape of the answer; next: the last number.
-- Does   safeTime (queen.safe_time) is read before the data.
-- Locks  none. Cost: a walk over the partitions of a queue until limit are found.
-- Caller src/http/fetch.rs. Source: state plane 9; rule 4.
create or replace function queen.changed_partitions(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
as $$
declare
    v_safe timestamptz;
    v_blind boolean;
    v_entry jsonb;
    v_queue uuid;
    v_limit integer;
    v_page json;
    v_count integer;
    v_last bigint;
    v_out json[] := '{}';
begin
    select s.at, s.degraded into v_safe, v_blind from queen.safe_time() as s;

    -- From here on statements see everything that had committed by then.
    for v_entry in select e from jsonb_array_elements(p_args -> 'entries') with ordinality as a (e, ord) order by ord loop
        select q.id into v_queue
        from queen.queues as q
        where q.tenant_id = p_tenant and q.name = v_entry ->> 'queue';
        if not found then
            v_out := v_out || json_build_object('queue', v_entry ->> 'queue', 'error', 'UNKNOWN_TOPIC_OR_PARTITION');
            continue;
        end if;
        if v_entry ->> 'after' is null then
            v_out := v_out || json_build_object('queue', v_entry ->> 'queue', 'error', 'BAD_CURSOR');
            continue;
        end if;
        v_limit := (v_entry ->> 'limit')::integer;
        select
            json_agg(
                json_build_object(
                    'name', n.name, 'id', n.id::text, 'lastOffset', n.last_offset, 'logStart', n.log_start,
                    'lastWriteAt', queen.utc_us(n.last_created_at)
                )
                order by n.id
            ),
            count(*),
            max(n.id)
        into v_page, v_count, v_last
        from (
            select p.id, p.name, p.last_offset, p.log_start, p.last_created_at
            from queen.partitions as p
            where p.queue_id = v_queue
                and p.id + 0 > (v_entry ->> 'after')::bigint
                and p.last_created_at >= coalesce((v_entry ->> 'since')::timestamptz, '-infinity')
                and p.last_offset >= 0
            order by p.id + 0
            limit v_limit
        ) as n;
        v_out := v_out || json_build_object(
            'queue', v_entry ->> 'queue',
            'partitions', coalesce(v_page, '[]'),
            'next', case when v_count = v_limit and v_count > 0 then v_last::text end);
    end loop;
    return json_build_object('safeTime', queen.utc_us(v_safe), 'store', queen.incarnation(), 'degraded', coalesce(v_blind, false), 'entries', array_to_json(v_out));
end;
$$;
