-- scan.sql: a page of a queue's partitions in which a group has something left, of one shard of one broker.
-- In     p_shards: how many shards the broker has; a partition's is its placement slot (low 12 bits) modulo that. p_after: exclusive.
--        p_limit: rows at most; p_look: partitions looked at, at most.
-- Out    ascending ids, then one last row, whose partition is null. next, of the last row: go on after it; null: there are no more, or there were
--        p_limit rows, and the last of them is where to go on. Cursor columns are null where the group has no cursor.
-- Does   looks at a thousand partitions at a time and ends after the step in which 10 ms have passed: reads and seedings of pushes and pops wait
--        behind it on the same connection.
-- Locks  none. Cost: 0.6 us of CPU for each partition looked at, of which two shards have half.
-- Caller src/store/cold.rs, scan. Source: data plane 4.3; rule 11.
create or replace function queen.scan(
    p_queue uuid,
    p_group bigint,
    p_shard integer,
    p_shards integer,
    p_after bigint,
    p_limit integer,
    p_look integer
)
returns table (
    partition_id bigint,
    name text,
    last_offset bigint,
    log_start bigint,
    last_created_at timestamptz,
    version bigint,
    committed bigint,
    lease_id uuid,
    lease_expires_at timestamptz,
    batch_end bigint,
    retry_count integer,
    attempt_start bigint,
    attempt_count integer,
    conflating boolean,
    next bigint
)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_record queen.groups;
    v_to bigint;
    v_after bigint := p_after;
    v_left integer := p_limit;
    v_looks integer := p_look;
    v_rows integer;
    v_step integer;
    v_since timestamptz := '-infinity'; -- An older partition without a cursor that was not written since has nothing,
    v_since_younger timestamptz := '-infinity'; -- nor has a younger one. Source: queen.seed_of.
    v_end constant timestamptz := clock_timestamp() + interval '10 ms';
    v_step_max constant integer := 1000;
begin
    select g.* into v_record from queen.groups as g where g.id = p_group;
    if v_record.mode in ('new', 'timestamp') then
        v_since := coalesce(v_record.seed_at, v_record.start_at);
        v_since_younger := case v_record.mode when 'timestamp' then v_record.start_at else '-infinity' end;
    end if;
    loop
        v_step := least(v_looks, v_step_max);
        select p.id into v_to
        from queen.partitions as p
        where p.queue_id = p_queue and p.id + 0 > v_after
        order by p.id + 0
        offset v_step - 1
        limit 1;
        return query
        select p.id, p.name, p.last_offset, p.log_start, p.last_created_at,
            c.version, c.committed, c.lease_id, c.lease_expires_at, c.batch_end, c.retry_count, c.attempt_start,
            c.attempt_count, c.conflating, null::bigint
        from queen.partitions as p
        left join lateral (
            select c.* from queen.cursors as c where c.partition_id = p.id and c.group_id = p_group offset 0
        ) as c on true
        where p.queue_id = p_queue
            and p.id + 0 > v_after
            and p.id + 0 <= coalesce(v_to, 9223372036854775807)
            and (p.id & 4095) % p_shards = p_shard
            and p.last_offset >= p.log_start
            and case
                when c.partition_id is not null then p.last_offset > c.committed
                when v_record.high_water < p.id >> 12 then p.last_created_at >= v_since_younger
                else p.last_created_at >= v_since
            end
        order by p.id + 0
        limit v_left;
        get diagnostics v_rows = row_count;
        v_left := v_left - v_rows;
        v_looks := v_looks - v_step;
        exit when v_to is null or v_left <= 0 or v_looks <= 0 or v_end <= clock_timestamp();
        v_after := v_to;
    end loop;
    return query
    select null::bigint, null::text, null::bigint, null::bigint, null::timestamptz, null::bigint, null::bigint, null::uuid,
        null::timestamptz, null::bigint, null::integer, null::bigint, null::integer, null::boolean, v_to;
end;
$$;
