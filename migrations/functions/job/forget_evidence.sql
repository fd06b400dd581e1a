-- forget_evidence.sql: deletes dedup evidence whose clock has passed: one bounded step of one partition.
-- In     p_args: limit integer (rows per step).
-- Out    {"due":bool,"rows":n}; due false: nothing is due.
-- Locks  its marker, skipping those of others, and rows that only grow old. No partition row.
-- Again  goes on where it was.
-- Caller src/jobs/retention.rs. Source: operations 6.1, 6.2; rule 14.
create or replace function queen.forget_evidence(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_now timestamptz := clock_timestamp();
    v_floor timestamptz := queen.spool_floor();
    v_id bigint;
    v_kept interval;
    v_deleted integer;
    v_oldest timestamptz;
begin
    select m.partition_id into v_id
    from queen.evidence_marks as m
    where m.look_at <= v_now
    order by m.look_at
    limit 1
    for update skip locked;
    if not found then
        return json_build_object('due', false, 'rows', 0);
    end if;
    select make_interval(secs => greatest(q.dedup_window_seconds, q.completed_retention_seconds, 900))
    into v_kept
    from queen.partitions as p
    cross join lateral (select * from queen.queues as q where q.id = p.queue_id offset 0) as q
    where p.id = v_id;
    if not found then
        -- The partition is dead: its rows go with its number.
        delete from queen.evidence_marks as m where m.partition_id = v_id;
        return json_build_object('due', true, 'rows', 0);
    end if;
    delete from queen.evidence as e
    where e.partition_id = v_id and e.base_offset <= (
        select max(n.base_offset)
        from (
            select t.base_offset, t.created_at
            from queen.evidence as t
            where t.partition_id = v_id
            order by t.base_offset
            limit (p_args ->> 'limit')::integer
        ) as n
        where n.created_at < v_floor - v_kept
    );
    get diagnostics v_deleted = row_count;
    select e.created_at into v_oldest
    from queen.evidence as e
    where e.partition_id = v_id
    order by e.base_offset
    limit 1;
    if v_oldest is null then
        delete from queen.evidence_marks as m where m.partition_id = v_id;
    else
        -- Nothing deleted: held back by a spool, so again in a while.
        update queen.evidence_marks as m
        set look_at = greatest(v_oldest + v_kept, case when v_deleted = 0 then v_now + interval '1 second' end)
        where m.partition_id = v_id;
    end if;
    return json_build_object('due', true, 'rows', v_deleted);
end;
$$;
