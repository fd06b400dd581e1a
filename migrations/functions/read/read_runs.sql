-- read_runs.sql: sealed runs of a partition after (p_after_base, p_after_last), ascending, without their rows of keys.
-- In     p_bytes: about so many; at least one run when there is one. Null p_after_base: from the first run on.
-- Out    before: stamp of the newest message stored below the run, null when there is none. The last row has no base:
--        complete says whether there are no more runs.
-- Locks  none.
-- Caller src/store/runs.rs, read_runs. Source: rule 13.
create or replace function queen.read_runs(
    p_partition bigint,
    p_after_base bigint,
    p_after_last bigint,
    p_bytes bigint
)
returns table (base_offset bigint, last_offset bigint, bytes bytea, before timestamptz, complete boolean)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_left bigint := p_bytes;
    v_base bigint := coalesce(p_after_base, -1);
    v_last bigint := coalesce(p_after_last, -1);
    v_row record;
begin
    complete := true;
    loop
        -- From run to run: their rows of keys are skipped in the index.
        select r.base_offset, r.last_offset, r.bytes into v_row
        from queen.window_runs as r
        where r.partition_id = p_partition
            and (r.base_offset, r.last_offset, r.row_no) > (v_base, v_last, 2147483647)
        order by r.partition_id, r.base_offset, r.last_offset, r.row_no
        limit 1;
        exit when not found;
        if v_left <= 0 then
            complete := false;
            exit;
        end if;
        base_offset := v_row.base_offset;
        last_offset := v_row.last_offset;
        bytes := v_row.bytes;
        before := greatest(
            (
                select s.created_at from queen.segments as s
                where s.partition_id = p_partition and s.base_offset < v_row.base_offset
                order by s.base_offset desc limit 1
            ),
            (
                select e.created_at from queen.evidence as e
                where e.partition_id = p_partition and e.base_offset < v_row.base_offset
                order by e.base_offset desc limit 1
            )
        );
        v_left := v_left - octet_length(v_row.bytes);
        v_base := v_row.base_offset;
        v_last := v_row.last_offset;
        return next;
    end loop;
    base_offset := null;
    last_offset := null;
    bytes := null;
    before := null;
    return next;
end;
$$;
