-- offset_before.sql: the offset just before the first stored group at or after an instant; last_offset when there is none.
-- A search by halves over offsets, because stamps never decrease along them: about 20 index reads in a million segments.
-- Locks  none.
-- Caller queen.seed_of, open_group, seek_group, read_newest, list_messages. Source: data plane 4.4.
create or replace function queen.offset_before(p_partition bigint, p_log_start bigint, p_last bigint, p_at timestamptz)
returns bigint
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_low bigint := p_log_start; -- Everything below it is before the instant.
    v_high bigint := p_last + 1; -- Everything from it on is not.
    v_base bigint;
    v_count integer;
    v_at timestamptz;
begin
    while v_low < v_high loop
        select s.base_offset, s.count, s.created_at
        into v_base, v_count, v_at
        from queen.segments as s
        where s.partition_id = p_partition and s.base_offset <= v_low + (v_high - v_low) / 2
        order by s.base_offset desc
        limit 1;
        if not found or v_base + v_count <= v_low then
            -- A hole that retention took: nothing is stored from v_low to the middle.
            v_low := v_low + (v_high - v_low) / 2 + 1;
        elsif v_at < p_at then
            v_low := v_base + v_count;
        else
            v_high := greatest(v_base, v_low);
        end if;
    end loop;
    return least(v_low - 1, p_last);
end;
$$;
