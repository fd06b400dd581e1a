-- 0005_redrives.sql: bulk replays of dead letters, with their progress.
-- Why     a redrive goes on after a restart, at its rate, wherever the task runs.
-- Locks: none that matter, the table is new. Twice: yes, nothing is done the second time.
-- breaking: no

create table if not exists queen.redrives (
    id uuid not null default gen_random_uuid(),
    tenant_id uuid not null,
    queue text collate "C" not null,
    group_name text collate "C",
    error text, -- a part of the failure's text
    failed_from timestamptz not null,
    failed_to timestamptz not null, -- never after the start: what fails again is not driven again
    to_queue text collate "C",
    to_partition text collate "C",
    rate integer not null, -- rows per second
    dry_run boolean not null,
    state text not null, -- running, done, cancelled
    matched bigint not null,
    moved bigint not null default 0,
    duplicate bigint not null default 0,
    gone bigint not null default 0,
    failed bigint not null default 0,
    last_error text,
    -- The last row that was dealt with, in the order of (failed_at, id desc).
    after_at timestamptz not null default '-infinity',
    after_id uuid not null default 'ffffffff-ffff-ffff-ffff-ffffffffffff',
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp(),
    finished_at timestamptz,
    constraint redrives_pk primary key (id)
);
