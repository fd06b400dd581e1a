-- move_cursors.sql: compare-and-set of many cursor rows: claims, acks, releases, and confirmations that write nothing.
-- In     one entry per cursor, each cursor once. p_must: what the lease must be, 0 anything, 1 live, 2 none or over. p_write false: only confirm.
--        p_lease_to 0 keep, 1 clear, 2 set (p_lease, p_lease_secs). Dead letters: p_dl_move is the 1-based place of the move that files it.
-- Out    one row per entry, in order. state 0 moved or confirmed, 1 stale (nothing written), 2 busy, 3 gone. The columns are the row as it
--        is now; asked_at: PostgreSQL's clock at the judgement, which is after the lock. last_offset and log_start are the partition's.
-- Locks  cursor rows in (partition_id, group_id) order, SKIP LOCKED: waits for nobody.
-- Again  harmless: the version has moved, the second time is stale.
-- Caller src/store/hot.rs, move_cursors. Source: data plane 4.3, 5.4, 5.6; architecture 13, rules 2, 19, 20.
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
    p_dl_retry_count integer[]
)
returns table (
    state smallint,
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
    asked_at timestamptz
)
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
    with ask as materialized (
        select a.*
        from unnest(
            p_partition, p_group, p_version, p_must, p_write, p_committed, p_lease_to, p_lease, p_lease_secs,
            p_batch_end, p_retry_count, p_attempt_start, p_attempt_count
        ) with ordinality as a (
            partition_id, group_id, version, must, write, committed, lease_to, lease_id, lease_secs,
            batch_end, retry_count, attempt_start, attempt_count, ord
        )
    ),
    locked as materialized (
        select a.ord, c.partition_id, c.group_id, c.version, c.committed, c.lease_id, c.lease_expires_at, c.batch_end,
            c.retry_count, c.attempt_start, c.attempt_count
        from ask as a
        join queen.cursors as c on c.partition_id = a.partition_id and c.group_id = a.group_id
        order by c.partition_id, c.group_id
        for no key update of c skip locked
    ),
    timed as materialized (
        select k.*, clock_timestamp() as at from locked as k
    ),
    judged as materialized (
        select t.*, p.queue_id, p.last_offset, p.log_start,
            p.id is not null
                and t.version = a.version
                and case a.must
                    when 0 then true
                    when 1 then t.lease_id is not null and t.at < t.lease_expires_at
                    else t.lease_id is null or t.lease_expires_at <= t.at
                end as holds
        from timed as t
        join ask as a on a.ord = t.ord
        left join queen.partitions as p on p.id = t.partition_id
    ),
    written as (
        update queen.cursors as c
        set version = nextval('queen.versions'),
            committed = a.committed,
            lease_id = case a.lease_to when 0 then c.lease_id when 1 then null else a.lease_id end,
            lease_expires_at = case a.lease_to
                when 0 then c.lease_expires_at
                when 1 then null
                else j.at + a.lease_secs * interval '1 second'
            end,
            leased_at = case a.lease_to when 2 then j.at else c.leased_at end,
            batch_end = a.batch_end,
            retry_count = a.retry_count,
            attempt_start = a.attempt_start,
            attempt_count = a.attempt_count
        from judged as j
        join ask as a on a.ord = j.ord
        where c.partition_id = j.partition_id and c.group_id = j.group_id and j.holds and a.write
        returning a.ord, c.version, c.lease_expires_at
    ),
    filed as (
        insert into queen.dead_letters (
            queue_id, partition_id, group_name, message_offset, message_id, transaction_id, payload, encrypted, error,
            retry_count
        )
        select j.queue_id, j.partition_id, g.name, d.message_offset, d.message_id, d.transaction_id, d.payload,
            d.encrypted, d.error, d.retry_count
        from unnest(
            p_dl_move, p_dl_offset, p_dl_message, p_dl_transaction, p_dl_payload, p_dl_encrypted, p_dl_error,
            p_dl_retry_count
        ) as d (move, message_offset, message_id, transaction_id, payload, encrypted, error, retry_count)
        join written as w on w.ord = d.move
        join judged as j on j.ord = d.move
        join queen.groups as g on g.id = j.group_id
    )
    select
        (case
            when j.ord is null then
                case
                    when exists (
                        select from queen.cursors as c
                        where c.partition_id = a.partition_id and c.group_id = a.group_id
                    ) then 2
                    else 3
                end
            when j.queue_id is null then 3
            when j.holds then 0
            else 1
        end)::smallint,
        coalesce(w.version, j.version),
        j.committed,
        j.lease_id,
        case when w.ord is null then j.lease_expires_at else w.lease_expires_at end,
        j.batch_end,
        j.retry_count,
        j.attempt_start,
        j.attempt_count,
        j.last_offset,
        j.log_start,
        coalesce(j.at, clock_timestamp())
    from ask as a
    left join judged as j on j.ord = a.ord
    left join written as w on w.ord = a.ord
    order by a.ord;
end;
$$;
