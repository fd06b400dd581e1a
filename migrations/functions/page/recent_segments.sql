-- recent_segments.sql: the newest stored groups of one partition down to an instant, without their bodies.
-- In     p_log_start, p_last: offsets to look between. p_from inclusive: stops there. p_want: stops when so many messages are
--        found.
-- Locks  none. Cost: what it returns.
-- Caller queen.list_messages.
drop function if exists queen.recent_segments(bigint, bigint, bigint, timestamptz, timestamptz, boolean, integer);
create or replace function queen.recent_segments(
    p_partition bigint,
    p_log_start bigint,
    p_last bigint,
    p_from timestamptz,
    p_want integer
)
returns table (base_offset bigint, count integer, created_at timestamptz)
rows 10
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_left integer := p_want;
    v_row record;
begin
    for v_row in
        select s.base_offset, s.count, s.created_at
        from queen.segments as s
        where s.partition_id = p_partition and s.base_offset <= p_last and s.base_offset >= p_log_start
        order by s.base_offset desc
    loop
        exit when v_left <= 0 or v_row.created_at < p_from;
        base_offset := v_row.base_offset;
        count := v_row.count;
        created_at := v_row.created_at;
        v_left := v_left - v_row.count;
        return next;
    end loop;
end;
$$;
