-- settle_moves.sql: what became of a commit of moves that was not answered; one that is not there by now will never be.
-- In     p_writer, p_seq: its line; p_partition, p_group, p_version, p_write: its moves, as queen.move_cursors was given them.
-- Out    rows as of queen.move_cursors, one per move. state 0 moved, 1 not moved (nothing of it was written: decide again on the row), 2 the whole
--        commit was not and will not be written, its line is taken: try again, 3 gone, 4 nobody knows: another commit moved the cursor since.
--        Fails where the commit is still under way after the lock_timeout, or its writer is no more.
-- Does   tell a move by the transaction that wrote the line: the newest version of a row names the one that made it. A row that is at the version
--        that the move expected was not moved, by anybody.
-- Locks  the line's row: waits for the backend that runs the commit.
-- Again  harmless.
-- Caller src/store/moves.rs, settle_moves. Source: rule 9.
create or replace function queen.settle_moves(
    p_writer bigint,
    p_seq bigint,
    p_partition bigint[],
    p_group bigint[],
    p_version bigint[],
    p_write boolean[]
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
    asked_at timestamptz
)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = off
set lock_timeout = '300ms'
as $$
#variable_conflict use_column
declare
    v_transaction xid := queen.settle_line(p_writer, p_seq);
begin
    return query
    select m.ord,
        case
            when v_transaction is null then 2
            when c.version is null or p.id is null then 3
            when m.write and c.written_by = v_transaction then 0
            when c.version = m.version then 1
            else 4
        end,
        c.version, c.committed, c.lease_id, c.lease_expires_at, c.batch_end, c.retry_count, c.attempt_start, c.attempt_count,
        p.last_offset, p.log_start, c.conflating, clock_timestamp()
    from unnest(p_partition, p_group, p_version, p_write) with ordinality as m (partition_id, group_id, version, write, ord)
    left join lateral (
        select c.*, c.xmin as written_by
        from queen.cursors as c
        where c.partition_id = m.partition_id and c.group_id = m.group_id
        offset 0
    ) as c on true
    left join lateral (
        select p.id, p.last_offset, p.log_start from queen.partitions as p where p.id = m.partition_id offset 0
    ) as p on true;
end;
$$;
