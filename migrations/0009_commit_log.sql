-- 0009_commit_log.sql: what each broker committed, for the others to read.
-- Why     a broker knows its own commits; what others stored or freed it reads here, so that a pop finds it and a parked
--         one wakes. A ring per writer, because a writer has one commit in flight: its order is the order of commit.
-- Locks   none that matter, the tables are new. Twice: yes, nothing is done the second time.
-- breaking: no

-- Brokers that may commit. A row that nobody refreshed for a day goes, and its writers with it.
create table if not exists queen.brokers (
    broker uuid not null, -- kept in the spool directory
    joined_at timestamptz not null default clock_timestamp(),
    seen_at timestamptz not null default clock_timestamp(),
    constraint brokers_pk primary key (broker)
);

-- Whoever commits: a shard's pushes, its cursors, its bundles; the changes of a control thread.
create table if not exists queen.writers (
    writer bigint generated always as identity,
    broker uuid not null,
    retired_at timestamptz, -- it commits no more; gone a minute later, when all have read it
    constraint writers_pk primary key (writer)
);

-- Slot seq & 255 of a writer holds its newest commit of that slot. No index beyond the key: every update is HOT.
create table if not exists queen.commits (
    writer bigint not null,
    slot integer not null,
    seq bigint not null default 0, -- counts the writer's commits from 1
    lanes bigint[] not null default '{}', -- partitions that may have grown
    freed bigint[] not null default '{}', -- partition, group, partition, group, ...: cursors that may be free again
    changed boolean not null default false, -- a queue is to be read anew, or with null names all of them
    tenant_id uuid,
    queue text collate "C",
    constraint commits_pk primary key (writer, slot)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
