-- 0004_retention.sql: what is due for retention, what it removed, and who runs the periodic tasks.
-- Why     a pass must cost what it deletes, not what exists: due markers in tables of their own, so that the partition
--         row keeps its HOT updates. One broker runs a task per period.
-- Locks   maintenance_leases: exclusive for an instant. The rest is new. Twice: yes, nothing is done the second time.
-- breaking: no

alter table queen.maintenance_leases
    add column if not exists period_ms bigint not null default 5000,
    add column if not exists next_due_at timestamptz not null default 'epoch',
    add column if not exists fence bigint not null default 0,
    add column if not exists last_start_at timestamptz,
    add column if not exists last_end_at timestamptz,
    add column if not exists last_duration_ms bigint,
    add column if not exists runs bigint not null default 0;

-- Queues with a retention rule: the rules the marks were made for, and up to which partition they were made.
create table if not exists queen.retention_queues (
    queue_id uuid not null,
    rules text not null,
    seen bigint not null default 0,
    walked_at timestamptz not null default clock_timestamp(),
    constraint retention_queues_pk primary key (queue_id)
);

-- When a partition is to be looked at next. `misses`: looks in a row that removed nothing.
create table if not exists queen.retention_marks (
    partition_id bigint not null,
    look_at timestamptz not null,
    misses integer not null default 0,
    constraint retention_marks_pk primary key (partition_id)
);

create index if not exists retention_marks_due on queen.retention_marks (look_at);

-- The same for keys that outlive their segments.
create table if not exists queen.evidence_marks (
    partition_id bigint not null,
    look_at timestamptz not null,
    constraint evidence_marks_pk primary key (partition_id)
);

create index if not exists evidence_marks_due on queen.evidence_marks (look_at);

-- What was removed by which rule; types that begin with __ are not shown.
create table if not exists queen.retention_audit (
    id bigint generated always as identity,
    queue_id uuid not null,
    partition_id bigint not null,
    rule text not null,
    messages bigint not null,
    removed_at timestamptz not null default clock_timestamp(),
    constraint retention_audit_pk primary key (id)
);

create index if not exists retention_audit_age on queen.retention_audit (removed_at);
