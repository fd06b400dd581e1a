-- drop_runs.sql: removes sealed runs of one partition.
-- In     parallel arrays: first and last offset of each run; the caller bounds their number.
-- Out    rows removed.
-- Locks  the rows, run by run. A broker that still knows such a run finds its rows missing, and loads from the segments.
-- Again  harmless.
-- Caller src/store/runs.rs, drop_runs. Source: architecture 13, rule 13.
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
    delete from queen.window_runs as r
    using unnest(p_base, p_last) as a (base, last)
    where r.partition_id = p_partition and r.base_offset = a.base and r.last_offset = a.last;
    get diagnostics v_done = row_count;
    return v_done;
end;
$$;
