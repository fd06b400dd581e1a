-- recent_segments.sql: the newest stored groups of one partition in a span of time, without their bodies.
-- In     p_log_start, p_last: of the partition. p_from inclusive, p_to exclusive. p_beyond: it was written at or after
--        p_to. p_want: stops when so many messages are found.
-- Locks  none. Cost: what it returns, and about 20 index probes with p_beyond.
-- Caller queen.list_messages.
create or replace function queen.recent_segments(
    p_partition bigint,
    p_log_start bigint,
    p_last bigint,
    p_from timestamptz,
    p_to timestamptz,
    p_beyond boolean,
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
    v_end bigint := p_last;
    v_left integer := p_want;
    v_row record;
begin
    if p_beyond then
        v_end := queen.offset_before(p_partition, p_log_start, p_last, p_to);
    end if;
    for v_row in
        select s.base_offset, s.count, s.created_at
        from queen.segments as s
        where s.partition_id = p_partition and s.base_offset <= v_end and s.base_offset >= p_log_start
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
