-- 0003_window_runs.sql: sorted runs of dedup keys that a broker's memory has no room for.
-- Why     a busy partition's dedup window may exceed the windows' budget; its old keys are then looked up here.
-- Locks: none that matter, the table is new. Twice: yes, nothing is done the second time.
-- breaking: no

-- A run is named by its first and last offset, which say all that is in it: brokers that seal the same span store the
-- same rows. Row -1 is its index and filter, with the stamp of its newest key; rows from 0 on are its keys, sorted.
-- All of it can be made again from segments and evidence.
create table if not exists queen.window_runs (
    partition_id bigint not null,
    base_offset bigint not null,
    last_offset bigint not null,
    row_no integer not null,
    newest timestamptz, -- of row -1
    bytes bytea not null,
    constraint window_runs_pk primary key (partition_id, base_offset, last_offset, row_no)
) with (toast_tuple_target = 8160, autovacuum_vacuum_insert_scale_factor = 0.2, vacuum_truncate = off);

alter table queen.window_runs alter column bytes set storage external;
