-- drop_runs.sql: removes sealed runs of one partition.
-- In     parallel arrays: first and last offset of each run; the caller bounds their number.
-- Out    rows removed.
-- Locks  the rows, run by run. A broker that still knows such a run finds its rows missing, and loads from the segments.
-- Again  harmless.
-- Caller src/store/runs.rs, drop_runs. Source: rule 13.
create or replace function queen.drop_runs(p_partition bigint, p_base bigint[], p_last bigint[])
returns bigint
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = off
as $$
declare
    v_done bigint;
begin
    -- Run by run: as a join it may read all runs of the partition.
    delete from queen.window_runs as r
    where r.ctid = any (array(
        select w.ctid
        from unnest(p_base, p_last) as a (base, last)
        cross join lateral (
            select w.ctid
            from queen.window_runs as w
            where w.partition_id = p_partition and w.base_offset = a.base and w.last_offset = a.last
            offset 0
        ) as w
    ));
    get diagnostics v_done = row_count;
    return v_done;
end;
$$;
