-- settle_line.sql: the transaction that wrote a line of the commit log. One that was not written by now will never be.
-- Out    null: the commit was not written; its line is taken now, so that it fails if it is still on its way.
--        Fails where the commit is still under way after the caller's lock_timeout, or its writer is no more (57QW1).
-- Locks  the line's row: waits for the backend that runs the commit.
-- Again  harmless.
-- Caller queen.settle_append, queen.settle_moves, queen.settle_bundle. Source: rule 9.
create or replace function queen.settle_line(p_writer bigint, p_seq bigint)
returns xid
language plpgsql volatile
as $$
declare
    v_seq bigint;
    v_transaction xid;
begin
    select c.seq, c.xmin into v_seq, v_transaction
    from queen.commits as c
    where c.writer = p_writer and c.slot = (p_seq & 255)::integer
    for no key update;
    if v_seq is null then
        raise exception '% is no writer', p_writer using errcode = '57QW1';
    end if;
    if v_seq < p_seq then
        perform queen.log_commit(p_writer, p_seq, '{}', '{}');
        return null;
    end if;
    return v_transaction;
end;
$$;
