-- 0001_schema.sql: the tables of the message plane.
-- Why     first schema. Locks: none that matter, the schema is new. Twice: yes, nothing is done the second time.
-- breaking: no
--
-- Hot tables (partitions, segments, cursors) have no index on a column that a push, pop or ack changes, and room in
-- their pages, so that every hot update is HOT. No foreign keys there: their row locks would be waited for.

create schema if not exists queen;

-- Flags and facts of the whole deployment; operators touch it by hand.
create table if not exists queen.system_state (
    key text not null,
    value jsonb not null,
    updated_at timestamptz not null default clock_timestamp(),
    constraint system_state_pk primary key (key)
);

-- One row per periodic job: who runs it until when. `enabled` is the operator's switch.
create table if not exists queen.maintenance_leases (
    task text not null,
    enabled boolean not null default true,
    holder text,
    expires_at timestamptz,
    last_run_at timestamptz,
    constraint maintenance_leases_pk primary key (task)
);

create table if not exists queen.queues (
    id uuid not null default gen_random_uuid(),
    tenant_id uuid not null,
    name text collate "C" not null,
    namespace text collate "C" not null default '',
    task text collate "C" not null default '',
    created_at timestamptz not null default clock_timestamp(),
    priority integer not null default 0,
    lease_time integer, -- null: never stored, 60 until the first configure
    retry_limit integer not null default 3,
    retry_delay integer not null default 1000,
    max_size integer not null default 0,
    ttl integer not null default 3600,
    dead_letter_queue boolean not null default true,
    dlq_after_max_retries boolean not null default true,
    delayed_processing integer not null default 0,
    window_buffer integer not null default 0,
    retention_seconds integer not null default 0,
    completed_retention_seconds integer not null default 0,
    retention_enabled boolean not null default false,
    encryption_enabled boolean not null default false,
    max_wait_time_seconds integer not null default 0,
    min_pop_wait_time integer not null default 0,
    dedup_window_seconds integer not null default 3600,
    retention_sink_hold text not null default '',
    retention_sink_hold_max_seconds integer not null default 604800,
    constraint queues_pk primary key (id),
    constraint queues_name unique (tenant_id, name)
);

-- A partition's number is nextval << 12 | placement slot: never reused, and it tells the owner shard.
create sequence if not exists queen.partition_numbers;

create table if not exists queen.partitions (
    id bigint not null,
    queue_id uuid not null,
    name text collate "C" not null,
    created_at timestamptz not null default clock_timestamp(),
    last_offset bigint not null default -1,
    log_start bigint not null default 0,
    last_created_at timestamptz not null default 'epoch',
    constraint partitions_pk primary key (id),
    constraint partitions_name unique (queue_id, name)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

create index if not exists partitions_of_queue on queen.partitions (queue_id, id);

-- One stored group of messages: the record a framed pop sends. `keys`: 16 bytes a message.
create table if not exists queen.segments (
    partition_id bigint not null,
    base_offset bigint not null,
    count integer not null,
    created_at timestamptz not null,
    accepted_at timestamptz, -- of a record that waited in a spool
    codec smallint not null,
    frame_flags smallint not null,
    raw_len integer not null,
    keys bytea not null,
    body bytea not null,
    constraint segments_pk primary key (partition_id, base_offset)
) with (toast_tuple_target = 8160, autovacuum_vacuum_insert_scale_factor = 0.2, vacuum_truncate = off);

alter table queen.segments alter column keys set storage external;
alter table queen.segments alter column body set storage external;

-- Keys that outlive their segment, until the evidence clock passes them.
create table if not exists queen.evidence (
    partition_id bigint not null,
    base_offset bigint not null,
    count integer not null,
    created_at timestamptz not null,
    accepted_at timestamptz,
    keys bytea not null,
    constraint evidence_pk primary key (partition_id, base_offset)
) with (toast_tuple_target = 8160, vacuum_truncate = off);

alter table queen.evidence alter column keys set storage external;

-- A consumer group of one queue. `mode` null: met, never registered (queue mode, pinned pops).
create table if not exists queen.groups (
    id bigint generated always as identity,
    queue_id uuid not null,
    name text collate "C" not null,
    mode text, -- all, new, timestamp
    start_at timestamptz, -- the recorded timestamp
    registered_at timestamptz,
    -- Highest partition number (without the slot bits) at registration: a later one starts at its beginning.
    high_water bigint not null default 0,
    conflation boolean not null default false,
    constraint groups_pk primary key (id),
    constraint groups_name unique (queue_id, name)
);

-- Versions of cursor rows come from here, so that a row made anew never matches an old memory.
create sequence if not exists queen.versions cache 64;

create table if not exists queen.cursors (
    partition_id bigint not null,
    group_id bigint not null,
    version bigint not null default nextval('queen.versions'),
    committed bigint not null,
    lease_id uuid,
    lease_expires_at timestamptz,
    leased_at timestamptz,
    batch_end bigint,
    conflating boolean not null default false,
    retry_count integer not null default 0,
    attempt_start bigint,
    attempt_count integer not null default 0,
    constraint cursors_pk primary key (partition_id, group_id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

create table if not exists queen.dead_letters (
    id uuid not null default gen_random_uuid(),
    queue_id uuid not null,
    partition_id bigint not null,
    group_name text collate "C" not null,
    message_offset bigint not null,
    message_id uuid not null,
    transaction_id text collate "C" not null,
    payload bytea not null,
    encrypted boolean not null,
    error text not null,
    retry_count integer not null,
    failed_at timestamptz not null default clock_timestamp(),
    constraint dead_letters_pk primary key (id)
);

create index if not exists dead_letters_of_queue on queen.dead_letters (queue_id, failed_at desc, id);
create index if not exists dead_letters_of_message on queen.dead_letters (partition_id, message_offset);
