-- 0006_history.sql: what the brokers did, minute by minute: of each broker, and of each queue over all brokers.
-- Why     /api/v1/status draws a throughput from it; counters alone do not tell when.
-- Locks: none that matter, the tables are new. Twice: yes, nothing is done the second time.
-- breaking: no

create table if not exists queen.broker_minutes (
    minute timestamptz not null,
    hostname text collate "C" not null,
    pid integer not null,
    push_requests bigint not null default 0,
    push_messages bigint not null default 0,
    pop_requests bigint not null default 0,
    pop_messages bigint not null default 0,
    ack_requests bigint not null default 0,
    ack_messages bigint not null default 0,
    ack_failed bigint not null default 0,
    dead_lettered bigint not null default 0,
    db_errors bigint not null default 0,
    loop_lag_us bigint not null default 0,
    loop_lag_samples bigint not null default 0,
    loop_lag_max_us bigint not null default 0,
    -- As they were when the minute was written last.
    cpu_user_pct double precision not null,
    cpu_sys_pct double precision not null,
    rss_mb double precision not null,
    pool_active integer not null,
    pool_idle integer not null,
    pool_size integer not null,
    constraint broker_minutes_pk primary key (minute, hostname, pid)
);

create table if not exists queen.queue_minutes (
    minute timestamptz not null,
    queue_id uuid not null,
    push_messages bigint not null default 0,
    pop_messages bigint not null default 0,
    ack_messages bigint not null default 0,
    -- From store to claim, of the oldest message of each claim: sum, claims, longest.
    lag_us bigint not null default 0,
    claims bigint not null default 0,
    lag_max_us bigint not null default 0,
    constraint queue_minutes_pk primary key (minute, queue_id)
);
