-- append.sql: one fused push commit; writes every lane whose row still ends where the engine last saw it end.
-- In     lanes (p_partition ascending, p_expect, p_added; 0 added only confirms) and segments (p_lane: 1-based place of the lane, ascending). Bodies and keys are
--        glued into one bytea each, segment after segment: an array of bytea would be copied four times on its way.
-- Out    one row per lane, in order. state 0 appended, 1 moved (last_offset is what the row says), 2 busy, 3 gone. asked_at: PostgreSQL's clock.
-- Locks  partition rows in id order, SKIP LOCKED: waits for nobody, so one held row does not hold 63 others. The stamp is taken after the lock.
-- Again  harmless: the second time every lane has moved.
-- Caller src/store/hot.rs, append. Source: data plane 3.4; architecture 4 and 13, rules 1, 2, 4.
create or replace function queen.append(
    p_partition bigint[],
    p_expect bigint[],
    p_added integer[],
    p_lane integer[],
    p_base bigint[],
    p_count integer[],
    p_codec smallint[],
    p_flags smallint[],
    p_raw_len integer[],
    p_body_len integer[],
    p_keys bytea,
    p_bodies bytea
)
returns table (state smallint, last_offset bigint, created_at timestamptz, asked_at timestamptz)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = on
as $$
#variable_conflict use_column
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    return query
    with lane as materialized (
        select l.id, l.expect, l.added, l.ord
        from unnest(p_partition, p_expect, p_added) with ordinality as l (id, expect, added, ord)
    ),
    locked as materialized (
        select p.id, p.last_offset, p.last_created_at, l.expect, l.added, l.ord
        from lane as l
        join queen.partitions as p on p.id = l.id
        order by p.id
        for no key update of p skip locked
    ),
    written as (
        update queen.partitions as p
        set last_offset = k.expect + k.added,
            last_created_at = greatest(clock_timestamp(), p.last_created_at)
        from locked as k
        where p.id = k.id and k.last_offset = k.expect and 0 < k.added
        returning k.ord, p.id, p.last_created_at
    ),
    stored as (
        insert into queen.segments (partition_id, base_offset, count, created_at, codec, frame_flags, raw_len, keys, body)
        select w.id, s.base, s.count, w.last_created_at, s.codec, s.flags, s.raw_len,
            substring(p_keys from s.keys_at::integer for 16 * s.count),
            substring(p_bodies from s.body_at::integer for s.body_len)
        from (
            select u.*,
                1 + 16 * (sum(u.count) over (rows between unbounded preceding and current row) - u.count) as keys_at,
                1 + sum(u.body_len) over (rows between unbounded preceding and current row) - u.body_len as body_at
            from unnest(p_lane, p_base, p_count, p_codec, p_flags, p_raw_len, p_body_len)
                as u (lane, base, count, codec, flags, raw_len, body_len)
        ) as s
        join written as w on w.ord = s.lane
    )
    select
        (case
            when k.last_offset = k.expect then 0
            when k.ord is not null then 1
            when exists (select from queen.partitions as p where p.id = l.id) then 2
            else 3
        end)::smallint,
        coalesce(k.last_offset, -1),
        coalesce(w.last_created_at, k.last_created_at),
        clock_timestamp()
    from lane as l
    left join locked as k on k.ord = l.ord
    left join written as w on w.ord = l.ord
    order by l.ord;
end;
$$;
