-- bundle.sql: the commit of several transactions at once; each is decided by itself, and those that hold are written whole.
-- In     p_bundle, p_m_bundle: which bundle a lane or a cursor belongs to. Each lane and each cursor once.
--        Lanes: p_lane 0 where the partition was not there (p_new: 1-based places of those, with their names); p_verified: the keys up to here were
--        judged by the engine; p_added messages, 0 only confirms; p_judge: keys stored after p_verified make a duplicate. Keys (of lanes with
--        p_added) and bodies are glued, lane after lane. Cursors: as queen.move_cursors.
--        p_writer, p_seq, p_freed: see queen.log_commit.
-- Out    one row per lane (kind 0), then one per cursor (kind 1), in order. Lanes: state 0 holds (n1 partition, n2 first offset, at stamp), 1 duplicate
--        (n1: place of the key), 2 gone. Cursors: state 0 holds (n1 version, n2 last_offset, n3 log_start, at: end of the lease), 1 stale, 2 gone.
--        A bundle is written if all its rows hold. asked_at: PostgreSQL's clock.
-- Locks  the one order: queues by name (only where something is made), partitions by id, cursors by (partition, group), each by a locking select
--        that waits, at most 1 s a lock. Judged after all locks, by statements of their own.
-- Makes  queues and partitions that are missing; what no written bundle uses is gone again before anybody can have seen it.
-- Again  not harmless: keys without dedup are stored twice. Cursors have moved the second time.
-- Plan   as queen.append.
-- Caller src/store/bundle.rs. Source: data plane 7; rules 3, 4, 6, 7, 24.
create or replace function queen.bundle(
    p_bundle integer[],
    p_lane bigint[],
    p_verified bigint[],
    p_added integer[],
    p_judge boolean[],
    p_codec smallint[],
    p_flags smallint[],
    p_raw_len integer[],
    p_body_len integer[],
    p_keys bytea,
    p_bodies bytea,
    p_new integer[],
    p_tenant uuid[],
    p_queue text[],
    p_name text[],
    p_slot integer[],
    p_m_bundle integer[],
    p_partition bigint[],
    p_group bigint[],
    p_version bigint[],
    p_must smallint[],
    p_write boolean[],
    p_committed bigint[],
    p_lease_to smallint[],
    p_lease uuid[],
    p_lease_secs integer[],
    p_batch_end bigint[],
    p_retry_count integer[],
    p_attempt_start bigint[],
    p_attempt_count integer[],
    p_dl_move integer[],
    p_dl_offset bigint[],
    p_dl_message uuid[],
    p_dl_transaction text[],
    p_dl_payload bytea[],
    p_dl_encrypted boolean[],
    p_dl_error text[],
    p_dl_retry_count integer[],
    p_writer bigint,
    p_seq bigint,
    p_freed bigint[]
)
returns table (
    kind smallint,
    state smallint,
    n1 bigint,
    n2 bigint,
    n3 bigint,
    at timestamptz,
    asked_at timestamptz
)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = on
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
    v_lane bigint[] := p_lane;
    v_queues uuid[];
    v_partitions bigint[];
    v_found record;
    v_moved boolean;
    v_place integer[];
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;

    if 0 < cardinality(p_new) then
        v_queues := queen.make_queues(p_tenant, p_queue);
        v_partitions := queen.make_partitions(p_tenant, p_queue, p_name, p_slot);
        for v_found in
            select p_new[f.ord] as lane, f.partition_id as id from queen.find_lanes(p_tenant, p_queue, p_name) as f
        loop
            v_lane[v_found.lane] := v_found.id;
        end loop;
    end if;

    if 0 < p_writer then
        perform queen.log_commit(p_writer, p_seq, v_lane, p_freed);
    end if;

    if 0 < cardinality(v_lane) then
        select coalesce(bool_or(l.judge and l.verified < p.last_offset), false) into v_moved
        from (
            select * from unnest(v_lane, p_verified, p_judge) as l (id, verified, judge) order by l.id
        ) as l
        cross join lateral (
            select p.last_offset from queen.partitions as p where p.id = l.id for no key update
        ) as p;
    end if;
    if 0 < cardinality(p_partition) then
        perform c.version
        from (
            select * from unnest(p_partition, p_group) as a (partition_id, group_id) order by a.partition_id, a.group_id
        ) as a
        cross join lateral (
            select c.version
            from queen.cursors as c
            where c.partition_id = a.partition_id and c.group_id = a.group_id
            for no key update
        ) as c;
    end if;

    -- What other writers stored since the engine looked: on a hot lane there is always something.
    if v_moved then
        select array_agg(d.place order by l.ord) into v_place
        from (
            select u.*, 1 + 16 * (sum(u.added) over (order by u.ord) - u.added)::integer as keys_at
            from unnest(v_lane, p_verified, p_added, p_judge) with ordinality as u (id, verified, added, judge, ord)
        ) as l
        left join lateral (
            select p.queue_id, p.last_offset from queen.partitions as p where p.id = l.id offset 0
        ) as p on true
        left join lateral (
            select q.dedup_window_seconds from queen.queues as q where q.id = p.queue_id offset 0
        ) as q on true
        left join lateral (
            select min(k.place) as place
            from (
                select s.keys, s.count, s.created_at
                from queen.segments as s
                where s.partition_id = l.id and l.verified < s.base_offset
                union all
                select e.keys, e.count, e.created_at
                from queen.evidence as e
                where e.partition_id = l.id and l.verified < e.base_offset
            ) as s
            cross join generate_series(0, s.count - 1) as i (n)
            join generate_series(0, l.added - 1) as k (place)
                on substring(p_keys from l.keys_at + 16 * k.place for 16) = substring(s.keys from 1 + 16 * i.n for 16)
            where l.judge and l.verified < p.last_offset and 0 < q.dedup_window_seconds
                and clock_timestamp() - make_interval(secs => q.dedup_window_seconds) <= s.created_at
        ) as d on true;
    end if;

    return query
    with lane as materialized (
        select l.*,
            1 + 16 * (sum(l.added) over w - l.added)::integer as keys_at,
            1 + (sum(l.body_len) over w - l.body_len)::integer as body_at
        from unnest(p_bundle, v_lane, p_verified, p_added, p_judge, p_codec, p_flags, p_raw_len, p_body_len)
            with ordinality as l (bundle, id, verified, added, judge, codec, flags, raw_len, body_len, ord)
        window w as (order by l.ord rows between unbounded preceding and current row)
    ),
    stands as materialized (
        select l.*, p.at_tid, p.last_offset, p.last_created_at, v_place[l.ord] as place,
            (case
                when p.id is null or p.last_offset < l.verified then 2
                when v_place[l.ord] is not null then 1
                else 0
            end)::smallint as state
        from lane as l
        left join lateral (
            select p.ctid as at_tid, p.id, p.last_offset, p.last_created_at
            from queen.partitions as p
            where p.id = l.id
            offset 0
        ) as p on true
    ),
    ask as materialized (
        select a.*
        from unnest(
            p_m_bundle, p_partition, p_group, p_version, p_must, p_write, p_committed, p_lease_to, p_lease, p_lease_secs,
            p_batch_end, p_retry_count, p_attempt_start, p_attempt_count
        ) with ordinality as a (
            bundle, partition_id, group_id, version, must, write, committed, lease_to, lease_id, lease_secs,
            batch_end, retry_count, attempt_start, attempt_count, ord
        )
    ),
    judged as materialized (
        select a.*, c.at_tid, c.version as was, c.lease_expires_at, p.queue_id, p.last_offset, p.log_start, clock_timestamp() as at,
            (case
                when c.version is null or p.id is null then 2
                when c.version = a.version
                    and case a.must
                        when 0 then true
                        when 1 then c.lease_id is not null and clock_timestamp() < c.lease_expires_at
                        else c.lease_id is null or c.lease_expires_at <= clock_timestamp()
                    end
                    then 0
                else 1
            end)::smallint as state
        from ask as a
        left join lateral (
            select c.ctid as at_tid, c.version, c.lease_id, c.lease_expires_at
            from queen.cursors as c
            where c.partition_id = a.partition_id and c.group_id = a.group_id
            offset 0
        ) as c on true
        left join lateral (
            select p.id, p.queue_id, p.last_offset, p.log_start from queen.partitions as p where p.id = a.partition_id offset 0
        ) as p on true
    ),
    failed as materialized (
        select s.bundle from stands as s where s.state <> 0
        union
        select j.bundle from judged as j where j.state <> 0
    ),
    written as (
        update queen.partitions as p
        set last_offset = p.last_offset + s.added,
            last_created_at = greatest(clock_timestamp(), p.last_created_at)
        from stands as s
        where p.ctid = s.at_tid and 0 < s.added and s.bundle not in (select f.bundle from failed as f)
        returning s.ord, p.id, p.last_offset, p.last_created_at, s.added, s.codec, s.flags, s.raw_len, s.keys_at, s.body_at, s.body_len
    ),
    stored as (
        insert into queen.segments (partition_id, base_offset, count, created_at, codec, frame_flags, raw_len, keys, body)
        select w.id, w.last_offset - w.added + 1, w.added, w.last_created_at, w.codec, w.flags, w.raw_len,
            substring(p_keys from w.keys_at for 16 * w.added),
            substring(p_bodies from w.body_at for w.body_len)
        from written as w
    ),
    moved as (
        update queen.cursors as c
        set version = nextval('queen.versions'),
            committed = j.committed,
            retired = coalesce(c.retired, c.committed + 1) + queen.retired_by(
                c.committed, c.batch_end, c.attempt_start, j.committed, j.must = 2, j.log_start),
            lease_id = case j.lease_to when 0 then c.lease_id when 1 then null else j.lease_id end,
            lease_expires_at = case j.lease_to
                when 0 then c.lease_expires_at
                when 1 then null
                else j.at + j.lease_secs * interval '1 second'
            end,
            leased_at = case when 2 <= j.lease_to then j.at else c.leased_at end,
            conflating = case j.lease_to when 0 then c.conflating else j.lease_to = 3 end,
            batch_end = j.batch_end,
            retry_count = j.retry_count,
            attempt_start = j.attempt_start,
            attempt_count = j.attempt_count
        from judged as j
        where c.ctid = j.at_tid and j.write and j.bundle not in (select f.bundle from failed as f)
        returning j.ord, c.version, c.lease_expires_at, j.queue_id, j.partition_id, j.group_id, j.last_offset, j.log_start
    ),
    filed as (
        insert into queen.dead_letters (
            queue_id, partition_id, group_name, message_offset, message_id, transaction_id, payload, encrypted, error,
            retry_count
        )
        select m.queue_id, m.partition_id, g.name, d.message_offset, d.message_id, d.transaction_id, d.payload,
            d.encrypted, d.error, d.retry_count
        from unnest(
            p_dl_move, p_dl_offset, p_dl_message, p_dl_transaction, p_dl_payload, p_dl_encrypted, p_dl_error,
            p_dl_retry_count
        ) as d (move, message_offset, message_id, transaction_id, payload, encrypted, error, retry_count)
        join moved as m on m.ord = d.move
        cross join lateral (select g.name from queen.groups as g where g.id = m.group_id offset 0) as g
    )
    select r.kind, r.state, r.n1, r.n2, r.n3, r.at, clock_timestamp()
    from (
        select 0::smallint as kind, w.ord, 0::smallint as state, w.id as n1, w.last_offset - w.added + 1 as n2, 0::bigint as n3,
            w.last_created_at as at
        from written as w
        union all
        select 0::smallint, s.ord, s.state, case s.state when 1 then s.place::bigint else s.id end, s.last_offset + 1, 0::bigint,
            s.last_created_at
        from stands as s
        where not (0 < s.added and s.bundle not in (select f.bundle from failed as f))
        union all
        select 1::smallint, m.ord, 0::smallint, m.version, m.last_offset, m.log_start, m.lease_expires_at
        from moved as m
        union all
        select 1::smallint, j.ord, j.state, j.was, j.last_offset, j.log_start, j.lease_expires_at
        from judged as j
        where not (j.write and j.bundle not in (select f.bundle from failed as f))
    ) as r
    order by r.kind, r.ord;

    -- Made for bundles that were not written: nobody else can have seen it yet.
    if v_partitions is not null then
        delete from queen.partitions as p where p.id = any (v_partitions) and p.last_offset < 0;
    end if;
    if v_queues is not null then
        delete from queen.queues as q
        where q.id = any (v_queues)
            and not exists (select from queen.partitions as p where p.queue_id = q.id and p.id + 0 > 0 offset 0);
    end if;
end;
$$;
