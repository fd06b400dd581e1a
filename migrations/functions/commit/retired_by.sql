-- retired_by.sql: the positions that a move of a cursor retires: completed, dropped, dead-lettered, or skipped by conflation.
-- In     the row before it, where the move goes (p_to), whether it takes the partition anew (an auto-ack), log_start now.
-- Out    0 or more. What retention took before it was handed out was skipped, not retired; what was handed out counts from
--        where that began (attempt_start, while batch_end tells of it), also when retention has taken it meanwhile.
-- Locks  none; inlined.
-- Caller move_cursors, bundle. Source: data plane 11.3, 12.
create or replace function queen.retired_by(
    p_committed bigint,
    p_batch_end bigint,
    p_attempt_start bigint,
    p_to bigint,
    p_anew boolean,
    p_log_start bigint
)
returns bigint
language sql immutable
as $$
    select greatest(0, p_to - greatest(
        p_committed,
        case when p_anew or p_batch_end is null then p_log_start else p_attempt_start end - 1
    ));
$$;
