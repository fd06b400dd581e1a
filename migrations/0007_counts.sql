-- 0007_counts.sql: what the reconciler counted of queues and groups, for pages of deployments with many partitions.
-- Why     a page of 100,000 partitions and their cursors takes seconds to count; it is counted every few seconds instead.
-- Locks: none that matter, the tables are new. Twice: yes, nothing is done the second time.
-- breaking: no

-- One row per queue while the whole database has more partitions than pages count by themselves; otherwise empty.
create table if not exists queen.queue_counts (
    queue_id uuid not null,
    partitions bigint not null,
    total bigint not null,
    pending bigint not null,
    processing bigint not null,
    partitions_pending bigint not null,
    partitions_ready bigint not null,
    leases bigint not null,
    leased_partitions bigint not null,
    leased bigint not null,
    oldest_at timestamptz, -- of the pending messages looked up
    counted_at timestamptz not null default clock_timestamp(),
    constraint queue_counts_pk primary key (queue_id)
);

-- The same per group.
create table if not exists queen.group_counts (
    group_id bigint not null,
    cursors bigint not null,
    lagging bigint not null,
    ready bigint not null,
    members bigint not null,
    lag bigint not null,
    processing bigint not null,
    consumed boolean not null,
    oldest_at timestamptz,
    counted_at timestamptz not null default clock_timestamp(),
    constraint group_counts_pk primary key (group_id)
);

-- The partitions of a queue with the most pending messages, and those in which a group is furthest behind.
create table if not exists queen.pending_ranks (
    queue_id uuid not null,
    partition_id bigint not null,
    pending bigint not null,
    constraint pending_ranks_pk primary key (queue_id, partition_id)
);

create table if not exists queen.lag_ranks (
    group_id bigint not null,
    partition_id bigint not null,
    lag bigint not null,
    constraint lag_ranks_pk primary key (group_id, partition_id)
);
