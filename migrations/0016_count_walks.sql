-- 0016_count_walks.sql: how far the counting and the measuring of a large queue have come, and what they found until there.
-- Why     a queue of millions of partitions is counted in pages, each a statement of about a second, by whichever broker has the
--         task. Pages of the screen read queue_counts, group_counts, pending_ranks, lag_ranks and queue_sizes, which change when the last
--         page is done. Queues of one page have no rows here.
-- Locks: none that matter, the tables are new. Twice: yes, nothing is done the second time.
-- breaking: no

-- A queue that is being counted: sums of its partitions with a number below `next`.
create table if not exists queen.count_walks (
    queue_id uuid not null,
    next bigint not null default 0,
    groups bigint[] not null, -- those that were there when it began: one that came later misses its first pages
    walked_at timestamptz not null default clock_timestamp(), -- its last page
    partitions bigint not null default 0,
    total bigint not null default 0,
    pending bigint not null default 0,
    processing bigint not null default 0,
    partitions_pending bigint not null default 0,
    partitions_ready bigint not null default 0,
    leases bigint not null default 0,
    leased_partitions bigint not null default 0,
    leased bigint not null default 0,
    recent timestamptz[] not null default '{}', -- of the partitions written last, newest first
    constraint count_walks_pk primary key (queue_id)
);

-- The sums of its groups.
create table if not exists queen.count_walk_groups (
    queue_id uuid not null,
    group_id bigint not null,
    cursors bigint not null,
    lagging bigint not null,
    ready bigint not null,
    members bigint not null,
    lag bigint not null,
    processing bigint not null,
    consumed boolean not null,
    constraint count_walk_groups_pk primary key (queue_id, group_id)
);

-- The partitions furthest behind so far, of a group, or of the whole queue as group 0. `wanted`: offset of the oldest message not done.
create table if not exists queen.count_walk_ranks (
    queue_id uuid not null,
    group_id bigint not null,
    partition_id bigint not null,
    behind bigint not null,
    wanted bigint not null,
    constraint count_walk_ranks_pk primary key (queue_id, group_id, partition_id)
);

-- A queue that is being measured: its segments below this partition and, in it, this offset.
create table if not exists queen.measure_walks (
    queue_id uuid not null,
    partition_id bigint not null default 0,
    next_offset bigint not null default 0,
    walked_at timestamptz not null default clock_timestamp(), -- its last page
    segments bigint not null default 0,
    bytes bigint not null default 0,
    constraint measure_walks_pk primary key (queue_id)
);
