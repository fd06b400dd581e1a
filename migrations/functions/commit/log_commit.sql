-- log_commit.sql: the line of the commit log that the caller's transaction writes.
-- In     p_writer: 0 for nobody, nothing is written then. p_seq: the number of the commit, one more than the last one that was committed.
--        p_lanes: partitions that it may grow; p_freed: partition, group, ...: cursors that it may free.
-- Out    nothing. Fails (57QW1, which counts as passing) where this commit was given up, the writer is no more, or this is another store than
--        the one that the writer belongs to.
-- Does   compare the writer's incarnation with what the session knows of its own; the first commit of a session asks.
-- Plan   the callers have no other way than the key's index.
-- Locks  the slot's row, until the transaction ends: who asks what became of the commit waits for that.
-- Caller queen.append, queen.append_waiting, queen.move_cursors, queen.bundle, queen.settle_line. Source: rules 8, 9 and 12.
create or replace function queen.log_commit(p_writer bigint, p_seq bigint, p_lanes bigint[], p_freed bigint[])
returns void
language plpgsql volatile
as $$
begin
    update queen.commits as c
    set seq = p_seq, lanes = p_lanes, freed = p_freed
    where c.writer = p_writer and c.slot = (p_seq & 255)::integer and c.seq < p_seq
        and c.incarnation = current_setting('queen.incarnation', true);
    if found then
        return;
    end if;
    update queen.commits as c
    set seq = p_seq, lanes = p_lanes, freed = p_freed
    where c.writer = p_writer and c.slot = (p_seq & 255)::integer and c.seq < p_seq
        and c.incarnation = queen.incarnation();
    if not found then
        raise exception 'commit % of writer % was given up, or is not of this store (%)', p_seq, p_writer, queen.incarnation()
            using errcode = '57QW1';
    end if;
end;
$$;
