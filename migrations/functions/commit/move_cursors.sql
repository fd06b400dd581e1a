-- move_cursors.sql: compare-and-set of many cursor rows: claims, acks, releases, and confirmations that write nothing.
-- In     one entry per cursor, each cursor once. p_must: what the lease must be, 0 anything, 1 live, 2 none or over. p_write false: only confirm.
--        p_lease_to 0 keep, 1 clear, 2 set (p_lease, p_lease_secs), 3 set and mark as conflating. Dead letters: p_dl_move is the 1-based place of the move that files it.
--        p_writer, p_seq, p_freed: see queen.log_commit. p_place, p_lane_place: where the cursor's row and the partition's lay when the caller
--        last wrote them, null where it does not know.
-- Out    rows in any order, ord is the entry's place. state 0 moved or confirmed, 1 stale (nothing written; the columns are the row as it is),
--        3 no partition. When an entry has none of them, rows of all entries follow with 2 (busy) or 3 (gone); the first row of an entry counts.
--        place: where the row lies now. asked_at: PostgreSQL's clock at the judgement, which is after the lock. last_offset and log_start are
--        the partition's.
-- Locks  cursor rows in (partition_id, group_id) order, SKIP LOCKED: waits for nobody.
-- Again  harmless: the version has moved, the second time is stale.
-- Caller src/store/moves.rs, move_cursors. Source: data plane 4.3, 5.4, 5.6; rules 2, 19, 20.
-- Plan   as queen.append; only dead letters, which are few, are joined to their moves.
create or replace function queen.move_cursors(
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
    p_freed bigint[],
    p_place tid[],
    p_lane_place tid[]
)
returns table (
    ord bigint,
    state integer,
    version bigint,
    committed bigint,
    lease_id uuid,
    lease_expires_at timestamptz,
    batch_end bigint,
    retry_count integer,
    attempt_start bigint,
    attempt_count integer,
    last_offset bigint,
    log_start bigint,
    conflating boolean,
    place tid,
    asked_at timestamptz
)
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
        perform queen.log_commit(p_writer, p_seq, '{}', p_freed);
    end if;
    return query
    with moves as materialized (
        select *
        from unnest(
            p_partition, p_group, p_version, p_must, p_write, p_committed, p_lease_to, p_lease, p_lease_secs,
            p_batch_end, p_retry_count, p_attempt_start, p_attempt_count, p_place, p_lane_place
        ) with ordinality as a (
            partition_id, group_id, to_version, must, write, to_committed, lease_to, to_lease, lease_secs,
            to_batch_end, to_retry_count, to_attempt_start, to_attempt_count, lay, lane_lay, ord
        )
        order by a.partition_id, a.group_id
    ),
    there as materialized (
        select c.*, a.*
        from moves as a
        cross join lateral (
            select c.ctid as place, c.version, c.committed, c.lease_id, c.lease_expires_at, c.batch_end, c.retry_count,
                c.attempt_start, c.attempt_count, c.conflating
            from queen.cursors as c
            where c.ctid = a.lay and c.partition_id = a.partition_id and c.group_id = a.group_id
            for no key update skip locked
        ) as c
    ),
    elsewhere as materialized (
        select c.*, a.*
        from moves as a
        cross join lateral (
            select c.ctid as place, c.version, c.committed, c.lease_id, c.lease_expires_at, c.batch_end, c.retry_count,
                c.attempt_start, c.attempt_count, c.conflating
            from queen.cursors as c
            where c.partition_id = a.partition_id and c.group_id = a.group_id
            for no key update skip locked
        ) as c
        where a.ord <> all (array(select t.ord from there as t))
    ),
    locked as materialized (
        select * from there
        union all
        select * from elsewhere
    ),
    judged as materialized (
        select t.*, coalesce(h.queue_id, p.queue_id) as queue_id, coalesce(h.last_offset, p.last_offset) as last_offset,
            coalesce(h.log_start, p.log_start) as log_start,
            coalesce(h.id, p.id) is not null
                and t.version = t.to_version
                and case t.must
                    when 0 then true
                    when 1 then t.lease_id is not null and t.at < t.lease_expires_at
                    else t.lease_id is null or t.lease_expires_at <= t.at
                end as holds
        from (select k.*, clock_timestamp() as at from locked as k) as t
        left join lateral (
            select p.id, p.queue_id, p.last_offset, p.log_start
            from queen.partitions as p
            where p.ctid = t.lane_lay and p.id = t.partition_id
            offset 0
        ) as h on true
        left join lateral (
            select p.id, p.queue_id, p.last_offset, p.log_start
            from queen.partitions as p
            where h.id is null and p.id = t.partition_id
            offset 0
        ) as p on true
    ),
    written as (
        update queen.cursors as c
        set version = nextval('queen.versions'),
            committed = j.to_committed,
            retired = coalesce(c.retired, c.committed + 1) + queen.retired_by(
                c.committed, c.batch_end, c.attempt_start, j.to_committed, j.must = 2, j.log_start),
            lease_id = case j.lease_to when 0 then c.lease_id when 1 then null else j.to_lease end,
            lease_expires_at = case j.lease_to
                when 0 then c.lease_expires_at
                when 1 then null
                else j.at + j.lease_secs * interval '1 second'
            end,
            leased_at = case when 2 <= j.lease_to then j.at else c.leased_at end,
            conflating = case j.lease_to when 0 then c.conflating else j.lease_to = 3 end,
            batch_end = j.to_batch_end,
            retry_count = j.to_retry_count,
            attempt_start = j.to_attempt_start,
            attempt_count = j.to_attempt_count
        from judged as j
        where c.ctid = j.place and j.holds and j.write
        returning j.ord, c.version, c.committed, c.lease_id, c.lease_expires_at, c.batch_end, c.retry_count,
            c.attempt_start, c.attempt_count, c.conflating, c.ctid as place, j.last_offset, j.log_start, j.at, j.queue_id, c.partition_id,
            c.group_id
    ),
    filed as (
        insert into queen.dead_letters (
            queue_id, partition_id, group_name, message_offset, message_id, transaction_id, payload, encrypted, error,
            retry_count
        )
        select w.queue_id, w.partition_id, (select g.name from queen.groups as g where g.id = w.group_id),
            d.message_offset, d.message_id, d.transaction_id, d.payload, d.encrypted, d.error, d.retry_count
        from unnest(
            p_dl_move, p_dl_offset, p_dl_message, p_dl_transaction, p_dl_payload, p_dl_encrypted, p_dl_error,
            p_dl_retry_count
        ) as d (move, message_offset, message_id, transaction_id, payload, encrypted, error, retry_count)
        join written as w on w.ord = d.move
    )
    select w.ord, 0, w.version, w.committed, w.lease_id, w.lease_expires_at, w.batch_end, w.retry_count,
        w.attempt_start, w.attempt_count, w.last_offset, w.log_start, w.conflating, w.place, w.at
    from written as w
    union all
    select j.ord, case when j.queue_id is null then 3 when j.holds then 0 else 1 end, j.version, j.committed,
        j.lease_id, j.lease_expires_at, j.batch_end, j.retry_count, j.attempt_start, j.attempt_count, j.last_offset,
        j.log_start, j.conflating, j.place, j.at
    from judged as j
    where not (j.holds and j.write);

    get diagnostics v_answered = row_count;
    perform queen.prune_pages('cursors', p_place, p_seq);
    if v_answered < cardinality(p_partition) then
        return query
        select a.ord,
            case
                when exists (
                    select from queen.cursors as c where c.partition_id = a.partition_id and c.group_id = a.group_id
                ) then 2
                else 3
            end,
            null::bigint, null::bigint, null::uuid, null::timestamptz, null::bigint, null::integer, null::bigint,
            null::integer, null::bigint, null::bigint, null::boolean, null::tid, clock_timestamp()
        from unnest(p_partition, p_group) with ordinality as a (partition_id, group_id, ord);
    end if;
end;
$$;
