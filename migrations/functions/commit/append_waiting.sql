-- append_waiting.sql: a push commit of one lane that others write all the time: it waits for the row, and judges in SQL what they stored.
-- In     as queen.append, of one lane; p_rel: places of the segments after its first message. p_added 0 only confirms. p_wait_ms: longest wait.
-- Out    one row. state 0 written behind last_offset, which is p_expect unless others wrote; 1 moved (last_offset is what the row says: a key of this
--        lane is among what they wrote, or there is nothing to write), 2 busy all the time, 3 gone. asked_at: PostgreSQL's clock.
-- Locks  one partition row, waited for: by compare-and-set alone a push starves beside bundles that follow one another.
-- Again  harmless, whatever the dedup window: what it wrote before is among what others wrote, and has its keys.
-- Caller src/store/append.rs, append. Source: data plane 3.4; rules 2, 4, 7.
create or replace function queen.append_waiting(
    p_partition bigint,
    p_expect bigint,
    p_added integer,
    p_rel integer[],
    p_count integer[],
    p_codec smallint[],
    p_flags smallint[],
    p_raw_len integer[],
    p_body_len integer[],
    p_keys bytea,
    p_bodies bytea,
    p_wait_ms integer,
    p_accepted timestamptz[],
    p_writer bigint,
    p_seq bigint
)
returns table (state smallint, last_offset bigint, created_at timestamptz, asked_at timestamptz)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = on
as $$
#variable_conflict use_column
declare
    v_row record;
    v_stamp timestamptz;
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if 0 < p_writer then
        perform queen.log_commit(p_writer, p_seq, array[p_partition], '{}');
    end if;
    begin
        perform set_config('lock_timeout', p_wait_ms::text, true);
        select p.last_offset, p.last_created_at into v_row
        from queen.partitions as p
        where p.id = p_partition
        for no key update;
    exception when lock_not_available then
        return query select 2::smallint, -1::bigint, null::timestamptz, clock_timestamp();
        return;
    end;
    if v_row.last_offset is null then
        return query select 3::smallint, -1::bigint, null::timestamptz, clock_timestamp();
        return;
    end if;
    if v_row.last_offset <> p_expect and (
        v_row.last_offset < p_expect or p_added = 0 or exists (
            select
            from (
                select s.keys, s.count
                from queen.segments as s
                where s.partition_id = p_partition and p_expect < s.base_offset
                union all
                select e.keys, e.count
                from queen.evidence as e
                where e.partition_id = p_partition and p_expect < e.base_offset
            ) as s
            cross join generate_series(0, s.count - 1) as i (n)
            join generate_series(0, p_added - 1) as k (place)
                on substring(p_keys from 1 + 16 * k.place for 16) = substring(s.keys from 1 + 16 * i.n for 16)
        )
    ) then
        return query select 1::smallint, v_row.last_offset, v_row.last_created_at, clock_timestamp();
        return;
    end if;
    v_stamp := v_row.last_created_at;
    if 0 < p_added then
        update queen.partitions as p
        set last_offset = p.last_offset + p_added,
            last_created_at = greatest(clock_timestamp(), p.last_created_at)
        where p.id = p_partition
        returning p.last_created_at into v_stamp;
        insert into queen.segments (partition_id, base_offset, count, created_at, accepted_at, codec, frame_flags, raw_len, keys, body)
        select p_partition, v_row.last_offset + 1 + s.rel, s.count, v_stamp, s.accepted, s.codec, s.flags, s.raw_len,
            substring(p_keys from s.keys_at::integer for 16 * s.count),
            substring(p_bodies from s.body_at::integer for s.body_len)
        from (
            select u.*,
                1 + 16 * (sum(u.count) over (rows between unbounded preceding and current row) - u.count) as keys_at,
                1 + sum(u.body_len) over (rows between unbounded preceding and current row) - u.body_len as body_at
            from unnest(p_rel, p_count, p_codec, p_flags, p_raw_len, p_body_len, p_accepted)
                as u (rel, count, codec, flags, raw_len, body_len, accepted)
        ) as s;
    end if;
    return query select 0::smallint, v_row.last_offset, v_stamp, clock_timestamp();
end;
$$;
