-- 0002_counters_and_dead_ids.sql: lifetime counters, measured sizes, and ids whose rows wait for removal.
-- Why     /metrics and /status count over restarts and brokers; a deleted queue's segments go later, in steps.
-- Locks: none that matter, the tables are new. Twice: yes, nothing is done the second time.
-- breaking: no

-- One row: what all brokers counted since the database was made. Each adds its own delta every few seconds.
create table if not exists queen.totals (
    one boolean not null default true,
    push_requests bigint not null default 0,
    push_messages bigint not null default 0,
    pop_requests bigint not null default 0,
    pop_messages bigint not null default 0,
    ack_requests bigint not null default 0,
    ack_messages bigint not null default 0,
    ack_failed bigint not null default 0,
    dead_lettered bigint not null default 0,
    transactions bigint not null default 0,
    db_errors bigint not null default 0,
    updated_at timestamptz not null default clock_timestamp(),
    constraint totals_pk primary key (one),
    constraint totals_one_row check (one)
);

-- What the last pass over a queue's segments measured; the pass reads every row, so it is a job, not a page.
create table if not exists queen.queue_sizes (
    queue_id uuid not null,
    segments bigint not null,
    bytes bigint not null,
    measured_at timestamptz not null default clock_timestamp(),
    constraint queue_sizes_pk primary key (queue_id)
);

-- Partition numbers that no row of queen.partitions has any more: their segments and evidence are unreachable.
create table if not exists queen.dead_partitions (
    partition_id bigint not null,
    died_at timestamptz not null default clock_timestamp(),
    constraint dead_partitions_pk primary key (partition_id)
);
