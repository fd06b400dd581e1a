-- next_line.sql: the number of the next line of a writer whose lines are numbered here.
-- Out    one more than its last line. Fails (57QW1) where the writer is no more.
-- Locks  the writer's row until the transaction ends, so that its lines are in the order of commit.
-- Caller queen.note_change, queen.note_growth. Source: rule 8.
create or replace function queen.next_line(p_writer bigint)
returns bigint
language plpgsql volatile
as $$
begin
    perform from queen.writers as w where w.writer = p_writer and w.retired_at is null for no key update;
    if not found then
        raise exception '% is no writer', p_writer using errcode = '57QW1';
    end if;
    -- A statement of its own: it sees what the lock was waited for.
    return (select max(c.seq) + 1 from queen.commits as c where c.writer = p_writer);
end;
$$;
