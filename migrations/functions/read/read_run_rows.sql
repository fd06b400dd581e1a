-- read_run_rows.sql: rows of sealed runs of one partition.
-- In     parallel arrays: first and last offset of the run, number of the row.
-- Out    what is there of them, with its place in the arrays.
-- Locks  none: a stored row never changes.
-- Caller src/store/runs.rs, read_run_rows. Source: rule 13.
create or replace function queen.read_run_rows(
    p_partition bigint,
    p_base bigint[],
    p_last bigint[],
    p_row integer[]
)
returns table (ord bigint, bytes bytea)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = off
as $$
#variable_conflict use_column
begin
    return query
    select a.ord, r.bytes
    from unnest(p_base, p_last, p_row) with ordinality as a (base, last, row_no, ord)
    cross join lateral (
        select r.bytes
        from queen.window_runs as r
        where r.partition_id = p_partition and r.base_offset = a.base and r.last_offset = a.last and r.row_no = a.row_no
        offset 0
    ) as r;
end;
$$;
