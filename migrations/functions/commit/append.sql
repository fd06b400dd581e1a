-- append.sql: one fused push commit; writes every lane whose row still ends where the engine last saw it end.
-- In     lanes (p_partition ascending, p_expect, p_added, the span p_first..p_until of its segments) and segments. Places are 1-based. A lane
--        with 0 added only confirms, its span is empty. Bodies and keys are glued into one bytea each, p_body_at and p_keys_at say where a
--        segment's begin: an array of bytea would be copied four times on its way.
--        p_accepted: when it was accepted, of what waited in a spool. p_writer, p_seq: see queen.log_commit. p_place: where each lane's row lay
--        when the caller last wrote it, null where it does not know.
-- Out    rows in any order, ord is the lane's place. state 0 appended, 1 moved (last_offset is what the row says). When a lane has neither,
--        rows of all lanes follow with 2 (busy) or 3 (gone); the first row of a lane counts. asked_at: PostgreSQL's clock. place: where the row
--        lies now.
-- Locks  partition rows in id order, SKIP LOCKED: waits for nobody, so one held row does not hold 63 others. The stamp is taken after the lock.
-- Again  harmless: the second time every lane has moved.
-- Caller src/store/append.rs, append. Source: data plane 3.4; rules 1, 2, 4.
-- Plan   one way only, whatever statistics say; a plan made while the tables are empty outlives their filling. Rows are locked where they lay, and those
--        that are not there any more by one index probe each (a lateral query that locks is never turned round): under somebody's old snapshot the index
--        leads to every version since. They are updated where they lie (ctid), for which there is no index to walk. A version that
--        came after the statement began is not met there: such a lane is busy. No list is joined to a list: the planner takes each for one row or ten.
create or replace function queen.append(
    p_partition bigint[],
    p_expect bigint[],
    p_added integer[],
    p_first integer[],
    p_until integer[],
    p_base bigint[],
    p_count integer[],
    p_codec smallint[],
    p_flags smallint[],
    p_raw_len integer[],
    p_keys_at integer[],
    p_body_at integer[],
    p_body_len integer[],
    p_keys bytea,
    p_bodies bytea,
    p_accepted timestamptz[],
    p_writer bigint,
    p_seq bigint,
    p_place tid[]
)
returns table (ord bigint, state integer, last_offset bigint, created_at timestamptz, asked_at timestamptz, place tid)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = on
as $$
#variable_conflict use_column
declare
    v_answered bigint;
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if 0 < p_writer then
        perform queen.log_commit(p_writer, p_seq, p_partition, '{}');
    end if;
    return query
    with lanes as materialized (
        select *
        from unnest(p_partition, p_expect, p_added, p_first, p_until, p_place) with ordinality
            as l (id, expect, added, first, until, lay, ord)
        order by l.id
    ),
    there as materialized (
        select p.*, l.expect, l.added, l.first, l.until, l.ord
        from lanes as l
        cross join lateral (
            select p.ctid as place, p.last_offset, p.last_created_at
            from queen.partitions as p
            where p.ctid = l.lay and p.id = l.id
            for no key update skip locked
        ) as p
    ),
    elsewhere as materialized (
        select p.*, l.expect, l.added, l.first, l.until, l.ord
        from lanes as l
        cross join lateral (
            select p.ctid as place, p.last_offset, p.last_created_at
            from queen.partitions as p
            where p.id = l.id
            for no key update skip locked
        ) as p
        where l.ord <> all (array(select t.ord from there as t))
    ),
    locked as materialized (
        select * from there
        union all
        select * from elsewhere
    ),
    written as (
        update queen.partitions as p
        set last_offset = k.expect + k.added,
            last_created_at = greatest(clock_timestamp(), p.last_created_at)
        from locked as k
        where p.ctid = k.place and k.last_offset = k.expect and 0 < k.added
        returning k.ord, p.id, p.ctid as place, p.last_offset, p.last_created_at, k.first, k.until
    ),
    stored as (
        insert into queen.segments (partition_id, base_offset, count, created_at, accepted_at, codec, frame_flags, raw_len, keys, body)
        select s.id, p_base[s.i], p_count[s.i], s.last_created_at, p_accepted[s.i], p_codec[s.i], p_flags[s.i], p_raw_len[s.i],
            substring(p_keys from p_keys_at[s.i] for 16 * p_count[s.i]),
            substring(p_bodies from p_body_at[s.i] for p_body_len[s.i])
        from (select w.id, w.last_created_at, generate_series(w.first, w.until) as i from written as w) as s
    )
    select w.ord, 0, w.last_offset, w.last_created_at, clock_timestamp(), w.place
    from written as w
    union all
    select k.ord, case when k.last_offset = k.expect then 0 else 1 end, k.last_offset, k.last_created_at,
        clock_timestamp(), k.place
    from locked as k
    where k.last_offset <> k.expect or k.added = 0;

    get diagnostics v_answered = row_count;
    perform queen.prune_pages('partitions', p_place, p_seq);
    if v_answered < cardinality(p_partition) then
        return query
        select l.ord, case when exists (select from queen.partitions as p where p.id = l.id) then 2 else 3 end,
            -1::bigint, null::timestamptz, clock_timestamp(), null::tid
        from unnest(p_partition) with ordinality as l (id, ord);
    end if;
end;
$$;
