-- cleanup_partitions.sql: one step of a walk over all partitions that removes those empty and idle for long.
-- In     p_args: days integer, slice integer (partitions looked at), limit integer (removed at most).
-- Out    {"removed":n,"looked":n}; looked 0: the walk is at its end and begins anew.
-- Does   a partition goes with its cursors; its number is dead, what is left under it goes in steps. Spared: stored
--        messages, dead letters, a live lease, a group that registered on it or leased it inside the window.
-- Locks  partition rows FOR UPDATE, SKIP LOCKED, in id order; judged again under the lock; then cursor rows in order.
-- Again  harmless. The walk's place is in queen.system_state.
-- Caller src/jobs/retention.rs. Source: operations 6.5; rules 3, 25.
create or replace function queen.cleanup_partitions(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_cutoff timestamptz := queen.spool_floor() - make_interval(days => (p_args ->> 'days')::integer);
    v_after bigint;
    v_looked integer;
    v_until bigint;
    v_ids bigint[];
begin
    v_after := coalesce((select (s.value #>> '{}')::bigint from queen.system_state as s where s.key = 'cleanup_after'), 0);
    select count(*), max(n.id) into v_looked, v_until
    from (
        select p.id
        from queen.partitions as p
        where p.id > v_after
        order by p.id
        limit (p_args ->> 'slice')::integer
    ) as n;
    v_ids := array(
        select p.id
        from queen.partitions as p
        where p.id > v_after and p.id <= v_until
            and p.created_at < v_cutoff and p.last_created_at < v_cutoff and p.last_offset < p.log_start
        order by p.id
        limit (p_args ->> 'limit')::integer
        for update skip locked
    );
    if cardinality(v_ids) = (p_args ->> 'limit')::integer then
        -- The rest of the slice is for the next step.
        v_until := v_ids[cardinality(v_ids)];
    end if;
    -- A statement of its own: what was done before the locks is seen.
    v_ids := array(
        select p.id
        from queen.partitions as p
        where p.id = any (v_ids)
            and not exists (select 1 from queen.segments as s where s.partition_id = p.id and s.base_offset >= p.log_start)
            and not exists (select 1 from queen.dead_letters as d where d.partition_id = p.id)
            and not exists (
                select 1
                from queen.cursors as c
                where c.partition_id = p.id and (c.lease_expires_at >= v_cutoff or c.leased_at >= v_cutoff)
            )
            and not exists (
                select 1
                from queen.cursors as c
                join queen.groups as g on g.id = c.group_id
                where c.partition_id = p.id and g.registered_at >= v_cutoff
            )
            -- On a large queue it has no cursors, and means the partitions that were there.
            and not exists (
                select 1
                from queen.groups as g
                where g.queue_id = p.queue_id and g.registered_at >= v_cutoff and queen.is_meant(g, p.id)
            )
        order by p.id
    );
    if cardinality(v_ids) > 0 then
        perform 1
        from queen.cursors as c
        where c.partition_id = any (v_ids)
        order by c.partition_id, c.group_id
        for update;
        delete from queen.cursors as c where c.partition_id = any (v_ids);
        insert into queen.retention_audit (queue_id, partition_id, rule, messages)
        select p.queue_id, p.id, '__partition_deleted__', 0
        from queen.partitions as p
        where p.id = any (v_ids);
        delete from queen.partitions as p where p.id = any (v_ids);
        insert into queen.dead_partitions (partition_id)
        select i from unnest(v_ids) as i
        on conflict on constraint dead_partitions_pk do nothing;
    end if;
    insert into queen.system_state as s (key, value)
    values ('cleanup_after', to_jsonb(coalesce(v_until, 0)))
    on conflict on constraint system_state_pk do update
    set value = excluded.value, updated_at = clock_timestamp();
    return json_build_object('removed', cardinality(v_ids), 'looked', v_looked);
end;
$$;
