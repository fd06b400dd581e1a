-- retain_step.sql: looks at the partition that is due longest: one bounded step of one partition.
-- In     p_args: limit integer (segments per step), periodMs bigint (of the task).
-- Out    {"due":bool,"messages":n,"segments":n}; due false: nothing is due.
-- Does   segments below log_start are deleted first, their keys kept as evidence while they are young. Only when none is
--        left, log_start is moved, in a transaction of its own, so that a push never waits for a delete.
--        A consumed message is one that every group of the partition completed; a registered group that has no
--        cursor in the partition has completed what queen.seed_of says.
-- Locks  its marker, skipping those of others. To move log_start: the partition row FOR UPDATE, SKIP LOCKED, then the
--        cursors are read by a new statement: an answered seek is seen.
-- Again  goes on where it was.
-- Caller src/jobs/retention.rs. Source: data plane 12; operations 6.2, 6.3; rules 14, 25.
create or replace function queen.retain_step(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_limit integer := (p_args ->> 'limit')::integer;
    v_now timestamptz := clock_timestamp();
    v_mark queen.retention_marks;
    v_queue queen.queues;
    v_rules record;
    v_partition queen.partitions;
    v_evidence timestamptz;
    v_below bigint;
    v_deleted integer;
    v_completed bigint;
    v_to bigint;
    v_rule text;
    v_oldest timestamptz;
    v_held boolean;
begin
    select * into v_mark
    from queen.retention_marks as m
    where m.look_at <= v_now
    order by m.look_at
    limit 1
    for update skip locked;
    if not found then
        return json_build_object('due', false, 'messages', 0, 'segments', 0);
    end if;
    select * into v_partition from queen.partitions as p where p.id = v_mark.partition_id;
    select * into v_queue from queen.queues as q where q.id = v_partition.queue_id;
    select * into v_rules from queen.retention_rules(v_queue, v_now);

    -- What an earlier step put below log_start.
    v_evidence := queen.spool_floor() - make_interval(secs =>
        greatest(v_queue.dedup_window_seconds, v_queue.completed_retention_seconds, 900));
    v_below := (
        select max(n.base_offset)
        from (
            select s.base_offset, s.count
            from queen.segments as s
            where s.partition_id = v_partition.id and s.base_offset < v_partition.log_start
            order by s.base_offset
            limit v_limit
        ) as n
        where n.base_offset + n.count <= v_partition.log_start
    );
    if v_below is not null then
        with gone as (
            delete from queen.segments as s
            where s.partition_id = v_partition.id and s.base_offset <= v_below
            returning s.base_offset, s.count, s.created_at, s.accepted_at, s.keys
        ),
        kept as (
            insert into queen.evidence (partition_id, base_offset, count, created_at, accepted_at, keys)
            select v_partition.id, g.base_offset, g.count, g.created_at, g.accepted_at, g.keys
            from gone as g
            where g.created_at >= v_evidence
            returning 1
        ),
        marked as (
            insert into queen.evidence_marks (partition_id, look_at)
            select v_partition.id, v_now + (min(g.created_at) - v_evidence)
            from gone as g
            where g.created_at >= v_evidence
            having count(*) > 0
            on conflict on constraint evidence_marks_pk do nothing
        )
        select count(*) into v_deleted from gone;
        return json_build_object('due', true, 'messages', 0, 'segments', v_deleted);
    end if;
    if v_rules.window_secs is null or v_partition.id is null then
        delete from queen.retention_marks as m where m.partition_id = v_mark.partition_id;
        return json_build_object('due', true, 'messages', 0, 'segments', 0);
    end if;

    select * into v_partition from queen.partitions as p where p.id = v_mark.partition_id for update skip locked;
    if not found then
        -- A push, a seek or a clean-up has it: soon again.
        update queen.retention_marks as m set look_at = v_now + interval '100 milliseconds'
        where m.partition_id = v_mark.partition_id;
        return json_build_object('due', true, 'messages', 0, 'segments', 0);
    end if;
    if v_rules.completed is not null then
        select min(coalesce(
            c.committed,
            queen.seed_of(g, v_partition.id, v_partition.log_start, v_partition.last_offset, v_partition.last_created_at)
        ))
        into v_completed
        from queen.groups as g
        left join lateral (
            select * from queen.cursors as c where c.partition_id = v_partition.id and c.group_id = g.id offset 0
        ) as c on true
        where g.queue_id = v_partition.queue_id and (c.partition_id is not null or g.mode is not null);
    end if;
    select
        max(n.base_offset + n.count),
        case
            when bool_or(n.age) then 'retention'
            when bool_or(n.eviction) then 'max_wait_time_eviction'
            else 'completed_retention'
        end
    into v_to, v_rule
    from (
        select
            s.base_offset, s.count,
            coalesce(s.created_at < v_rules.age, false) as age,
            coalesce(s.created_at < v_rules.eviction, false) as eviction,
            coalesce(s.created_at < v_rules.completed and s.base_offset + s.count - 1 <= v_completed, false) as completed
        from (
            select s.base_offset, s.count, s.created_at
            from queen.segments as s
            where s.partition_id = v_partition.id and s.base_offset >= v_partition.log_start
            order by s.base_offset
            limit v_limit
        ) as s
    ) as n
    where n.age or n.eviction or n.completed;
    if v_to is not null then
        update queen.partitions as p set log_start = v_to where p.id = v_partition.id;
        insert into queen.retention_audit (queue_id, partition_id, rule, messages)
        values (v_partition.queue_id, v_partition.id, v_rule, v_to - v_partition.log_start);
        update queen.retention_marks as m set misses = 0 where m.partition_id = v_mark.partition_id;
        return json_build_object('due', true, 'messages', v_to - v_partition.log_start, 'segments', 0);
    end if;

    -- Nothing to remove now.
    select s.created_at into v_oldest
    from queen.segments as s
    where s.partition_id = v_partition.id and s.base_offset >= v_partition.log_start
    order by s.base_offset
    limit 1;
    if v_oldest is null then
        -- What is pushed from here on is found by a walk of queen.mark_partitions.
        delete from queen.retention_marks as m where m.partition_id = v_mark.partition_id;
        return json_build_object('due', true, 'messages', 0, 'segments', 0);
    end if;
    v_held := v_oldest < v_rules.completed;
    update queen.retention_marks as m
    set misses = case when v_held then m.misses + 1 else 0 end,
        -- When the first rule takes the oldest message. The null of a rule that is off does not count.
        look_at = least(
            v_oldest + (v_now - v_rules.age),
            v_oldest + (v_now - v_rules.eviction),
            case
                -- Held back by a group: each time twice as long, to 256 periods.
                when v_held
                then v_now + (p_args ->> 'periodMs')::bigint * (1 << least(m.misses, 8)) * interval '1 millisecond'
                else v_oldest + (v_now - v_rules.completed)
            end
        )
    where m.partition_id = v_mark.partition_id;
    return json_build_object('due', true, 'messages', 0, 'segments', 0);
end;
$$;
