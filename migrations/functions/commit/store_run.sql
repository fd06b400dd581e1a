-- store_run.sql: stores a sealed run, whole or, when a run of its name is there already, not at all.
-- In     p_run: its row -1; p_rows: its rows from 0 on, about 7.7 kB each (about 3,300 for a million keys).
-- Out    whether it was stored now.
-- Locks  the new rows. Two brokers that store the same run: the second one waits for the first.
-- Again  harmless.
-- Caller src/store/runs.rs, store_run. Source: rule 13.
create or replace function queen.store_run(
    p_partition bigint,
    p_base bigint,
    p_last bigint,
    p_newest timestamptz,
    p_run bytea,
    p_rows bytea[]
)
returns boolean
language plpgsql volatile
as $$
begin
    insert into queen.window_runs (partition_id, base_offset, last_offset, row_no, newest, bytes)
    values (p_partition, p_base, p_last, -1, p_newest, p_run)
    on conflict on constraint window_runs_pk do nothing;
    if not found then
        return false;
    end if;
    insert into queen.window_runs (partition_id, base_offset, last_offset, row_no, bytes)
    select p_partition, p_base, p_last, r.ord - 1, r.bytes
    from unnest(p_rows) with ordinality as r (bytes, ord);
    return true;
end;
$$;
