CREATE SCHEMA queen;

CREATE TABLE queen.count_walks (
    queue_id uuid NOT NULL,
    next bigint DEFAULT 0 NOT NULL,
    groups bigint[] NOT NULL,
    walked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    partitions bigint DEFAULT 0 NOT NULL,
    total bigint DEFAULT 0 NOT NULL,
    pending bigint DEFAULT 0 NOT NULL,
    processing bigint DEFAULT 0 NOT NULL,
    partitions_pending bigint DEFAULT 0 NOT NULL,
    partitions_ready bigint DEFAULT 0 NOT NULL,
    leases bigint DEFAULT 0 NOT NULL,
    leased_partitions bigint DEFAULT 0 NOT NULL,
    leased bigint DEFAULT 0 NOT NULL,
    recent timestamp with time zone[] DEFAULT '{}'::timestamp with time zone[] NOT NULL
);

CREATE TABLE queen.groups (
    id bigint NOT NULL,
    queue_id uuid NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    mode text,
    start_at timestamp with time zone,
    registered_at timestamp with time zone,
    high_water bigint DEFAULT 0 NOT NULL,
    conflation boolean DEFAULT false NOT NULL,
    seed_at timestamp with time zone
);

CREATE TABLE queen.system_state (
    key text NOT NULL,
    value jsonb NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE queen.queues (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    namespace text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    task text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C",
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    priority integer DEFAULT 0 NOT NULL,
    lease_time integer,
    retry_limit integer DEFAULT 3 NOT NULL,
    retry_delay integer DEFAULT 1000 NOT NULL,
    max_size integer DEFAULT 0 NOT NULL,
    ttl integer DEFAULT 3600 NOT NULL,
    dead_letter_queue boolean DEFAULT true NOT NULL,
    dlq_after_max_retries boolean DEFAULT true NOT NULL,
    delayed_processing integer DEFAULT 0 NOT NULL,
    window_buffer integer DEFAULT 0 NOT NULL,
    retention_seconds integer DEFAULT 0 NOT NULL,
    completed_retention_seconds integer DEFAULT 0 NOT NULL,
    retention_enabled boolean DEFAULT false NOT NULL,
    encryption_enabled boolean DEFAULT false NOT NULL,
    max_wait_time_seconds integer DEFAULT 0 NOT NULL,
    min_pop_wait_time integer DEFAULT 0 NOT NULL,
    dedup_window_seconds integer DEFAULT 3600 NOT NULL,
    retention_sink_hold text DEFAULT ''::text NOT NULL,
    retention_sink_hold_max_seconds integer DEFAULT 604800 NOT NULL
);

CREATE TABLE queen.redrives (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    tenant_id uuid NOT NULL,
    queue text NOT NULL COLLATE pg_catalog."C",
    group_name text COLLATE pg_catalog."C",
    error text,
    failed_from timestamp with time zone NOT NULL,
    failed_to timestamp with time zone NOT NULL,
    to_queue text COLLATE pg_catalog."C",
    to_partition text COLLATE pg_catalog."C",
    rate integer NOT NULL,
    dry_run boolean NOT NULL,
    state text NOT NULL,
    matched bigint NOT NULL,
    moved bigint DEFAULT 0 NOT NULL,
    duplicate bigint DEFAULT 0 NOT NULL,
    gone bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    last_error text,
    after_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    after_id uuid DEFAULT 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    finished_at timestamp with time zone
);

CREATE TABLE queen.spool_floors (
    broker uuid NOT NULL,
    oldest_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE queen.broker_minutes (
    minute timestamp with time zone NOT NULL,
    hostname text NOT NULL COLLATE pg_catalog."C",
    pid integer NOT NULL,
    push_requests bigint DEFAULT 0 NOT NULL,
    push_messages bigint DEFAULT 0 NOT NULL,
    pop_requests bigint DEFAULT 0 NOT NULL,
    pop_messages bigint DEFAULT 0 NOT NULL,
    ack_requests bigint DEFAULT 0 NOT NULL,
    ack_messages bigint DEFAULT 0 NOT NULL,
    ack_failed bigint DEFAULT 0 NOT NULL,
    dead_lettered bigint DEFAULT 0 NOT NULL,
    db_errors bigint DEFAULT 0 NOT NULL,
    loop_lag_us bigint DEFAULT 0 NOT NULL,
    loop_lag_samples bigint DEFAULT 0 NOT NULL,
    loop_lag_max_us bigint DEFAULT 0 NOT NULL,
    cpu_user_pct double precision NOT NULL,
    cpu_sys_pct double precision NOT NULL,
    rss_mb double precision NOT NULL,
    pool_active integer NOT NULL,
    pool_idle integer NOT NULL,
    pool_size integer NOT NULL,
    covered_us bigint DEFAULT 0 NOT NULL
);

CREATE TABLE queen.brokers (
    broker uuid NOT NULL,
    joined_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE queen.commits (
    writer bigint NOT NULL,
    slot integer NOT NULL,
    seq bigint DEFAULT 0 NOT NULL,
    lanes bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    freed bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    changed boolean DEFAULT false NOT NULL,
    tenant_id uuid,
    queue text COLLATE pg_catalog."C",
    incarnation text DEFAULT ''::text NOT NULL COLLATE pg_catalog."C"
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='2000', autovacuum_vacuum_cost_delay='0', vacuum_truncate=off);

CREATE TABLE queen.count_walk_groups (
    queue_id uuid NOT NULL,
    group_id bigint NOT NULL,
    cursors bigint NOT NULL,
    lagging bigint NOT NULL,
    ready bigint NOT NULL,
    members bigint NOT NULL,
    lag bigint NOT NULL,
    processing bigint NOT NULL,
    consumed boolean NOT NULL
);

CREATE TABLE queen.count_walk_ranks (
    queue_id uuid NOT NULL,
    group_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    behind bigint NOT NULL,
    wanted bigint NOT NULL
);

CREATE TABLE queen.cursor_keys (
    partition_id bigint NOT NULL,
    group_id bigint NOT NULL
);

CREATE SEQUENCE queen.versions
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 64;

CREATE TABLE queen.cursors (
    partition_id bigint NOT NULL,
    group_id bigint NOT NULL,
    version bigint DEFAULT nextval('queen.versions'::regclass) NOT NULL,
    committed bigint NOT NULL,
    lease_id uuid,
    lease_expires_at timestamp with time zone,
    leased_at timestamp with time zone,
    batch_end bigint,
    conflating boolean DEFAULT false NOT NULL,
    retry_count integer DEFAULT 0 NOT NULL,
    attempt_start bigint,
    attempt_count integer DEFAULT 0 NOT NULL,
    retired bigint DEFAULT 0
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0', vacuum_truncate=off);

ALTER TABLE ONLY queen.cursors REPLICA IDENTITY FULL;

CREATE TABLE queen.dead_letters (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    queue_id uuid NOT NULL,
    partition_id bigint NOT NULL,
    group_name text NOT NULL COLLATE pg_catalog."C",
    message_offset bigint NOT NULL,
    message_id uuid NOT NULL,
    transaction_id text NOT NULL COLLATE pg_catalog."C",
    payload bytea NOT NULL,
    encrypted boolean NOT NULL,
    error text NOT NULL,
    retry_count integer NOT NULL,
    failed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE queen.dead_partitions (
    partition_id bigint NOT NULL,
    died_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE queen.evidence (
    partition_id bigint NOT NULL,
    base_offset bigint NOT NULL,
    count integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    accepted_at timestamp with time zone,
    keys bytea NOT NULL
)
WITH (toast_tuple_target='8160', vacuum_truncate=off);
ALTER TABLE ONLY queen.evidence ALTER COLUMN keys SET STORAGE EXTERNAL;

CREATE TABLE queen.evidence_marks (
    partition_id bigint NOT NULL,
    look_at timestamp with time zone NOT NULL
);

CREATE TABLE queen.functions (
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE queen.group_counts (
    group_id bigint NOT NULL,
    cursors bigint NOT NULL,
    lagging bigint NOT NULL,
    ready bigint NOT NULL,
    members bigint NOT NULL,
    lag bigint NOT NULL,
    processing bigint NOT NULL,
    consumed boolean NOT NULL,
    oldest_at timestamp with time zone,
    counted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

ALTER TABLE queen.groups ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME queen.groups_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE queen.lag_ranks (
    group_id bigint NOT NULL,
    partition_id bigint NOT NULL,
    lag bigint NOT NULL
);

CREATE TABLE queen.maintenance_leases (
    task text NOT NULL,
    enabled boolean DEFAULT true NOT NULL,
    holder text,
    expires_at timestamp with time zone,
    last_run_at timestamp with time zone,
    period_ms bigint DEFAULT 5000 NOT NULL,
    next_due_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    fence bigint DEFAULT 0 NOT NULL,
    last_start_at timestamp with time zone,
    last_end_at timestamp with time zone,
    last_duration_ms bigint,
    runs bigint DEFAULT 0 NOT NULL
);

CREATE TABLE queen.measure_walks (
    queue_id uuid NOT NULL,
    partition_id bigint DEFAULT 0 NOT NULL,
    next_offset bigint DEFAULT 0 NOT NULL,
    walked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    segments bigint DEFAULT 0 NOT NULL,
    bytes bigint DEFAULT 0 NOT NULL
);

CREATE TABLE queen.migrations (
    version integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE queen.partition_names (
    queue_id uuid NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C"
);

CREATE SEQUENCE queen.partition_numbers
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE queen.partitions (
    id bigint NOT NULL,
    queue_id uuid NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    last_offset bigint DEFAULT '-1'::integer NOT NULL,
    log_start bigint DEFAULT 0 NOT NULL,
    last_created_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0', vacuum_truncate=off);

ALTER TABLE ONLY queen.partitions REPLICA IDENTITY FULL;

CREATE TABLE queen.pending_ranks (
    queue_id uuid NOT NULL,
    partition_id bigint NOT NULL,
    pending bigint NOT NULL
);

CREATE TABLE queen.queue_counts (
    queue_id uuid NOT NULL,
    partitions bigint NOT NULL,
    total bigint NOT NULL,
    pending bigint NOT NULL,
    processing bigint NOT NULL,
    partitions_pending bigint NOT NULL,
    partitions_ready bigint NOT NULL,
    leases bigint NOT NULL,
    leased_partitions bigint NOT NULL,
    leased bigint NOT NULL,
    oldest_at timestamp with time zone,
    counted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    recent_at timestamp with time zone[] DEFAULT '{}'::timestamp with time zone[] NOT NULL
);

CREATE TABLE queen.queue_minutes (
    minute timestamp with time zone NOT NULL,
    queue_id uuid NOT NULL,
    push_messages bigint DEFAULT 0 NOT NULL,
    pop_messages bigint DEFAULT 0 NOT NULL,
    ack_messages bigint DEFAULT 0 NOT NULL,
    lag_us bigint DEFAULT 0 NOT NULL,
    claims bigint DEFAULT 0 NOT NULL,
    lag_max_us bigint DEFAULT 0 NOT NULL,
    push_requests bigint DEFAULT 0 NOT NULL,
    pop_empty bigint DEFAULT 0 NOT NULL,
    transactions bigint DEFAULT 0 NOT NULL,
    ack_failed bigint DEFAULT 0 NOT NULL,
    conflated bigint DEFAULT 0 NOT NULL,
    parked_us bigint DEFAULT 0 NOT NULL
);

CREATE TABLE queen.queue_sizes (
    queue_id uuid NOT NULL,
    segments bigint NOT NULL,
    bytes bigint NOT NULL,
    measured_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE queen.retention_audit (
    id bigint NOT NULL,
    queue_id uuid NOT NULL,
    partition_id bigint NOT NULL,
    rule text NOT NULL,
    messages bigint NOT NULL,
    removed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

ALTER TABLE queen.retention_audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME queen.retention_audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE queen.retention_marks (
    partition_id bigint NOT NULL,
    look_at timestamp with time zone NOT NULL,
    misses integer DEFAULT 0 NOT NULL
);

CREATE TABLE queen.retention_queues (
    queue_id uuid NOT NULL,
    rules text NOT NULL,
    seen bigint DEFAULT 0 NOT NULL,
    walked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    since timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    begun_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    next_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL
);

CREATE TABLE queen.segments (
    partition_id bigint NOT NULL,
    base_offset bigint NOT NULL,
    count integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    accepted_at timestamp with time zone,
    codec smallint NOT NULL,
    frame_flags smallint NOT NULL,
    raw_len integer NOT NULL,
    keys bytea NOT NULL,
    body bytea NOT NULL
)
WITH (toast_tuple_target='8160', autovacuum_vacuum_insert_scale_factor='0.2', vacuum_truncate=off);
ALTER TABLE ONLY queen.segments ALTER COLUMN keys SET STORAGE EXTERNAL;
ALTER TABLE ONLY queen.segments ALTER COLUMN body SET STORAGE EXTERNAL;

CREATE TABLE queen.totals (
    one boolean DEFAULT true NOT NULL,
    push_requests bigint DEFAULT 0 NOT NULL,
    push_messages bigint DEFAULT 0 NOT NULL,
    pop_requests bigint DEFAULT 0 NOT NULL,
    pop_messages bigint DEFAULT 0 NOT NULL,
    ack_requests bigint DEFAULT 0 NOT NULL,
    ack_messages bigint DEFAULT 0 NOT NULL,
    ack_failed bigint DEFAULT 0 NOT NULL,
    dead_lettered bigint DEFAULT 0 NOT NULL,
    transactions bigint DEFAULT 0 NOT NULL,
    db_errors bigint DEFAULT 0 NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT totals_one_row CHECK (one)
);

CREATE TABLE queen.window_runs (
    partition_id bigint NOT NULL,
    base_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    row_no integer NOT NULL,
    newest timestamp with time zone,
    bytes bytea NOT NULL
)
WITH (toast_tuple_target='8160', autovacuum_vacuum_insert_scale_factor='0.2', vacuum_truncate=off);
ALTER TABLE ONLY queen.window_runs ALTER COLUMN bytes SET STORAGE EXTERNAL;

CREATE TABLE queen.writers (
    writer bigint NOT NULL,
    broker uuid NOT NULL,
    retired_at timestamp with time zone
);

ALTER TABLE ONLY queen.system_state
    ADD CONSTRAINT system_state_pk PRIMARY KEY (key);

ALTER TABLE ONLY queen.broker_minutes
    ADD CONSTRAINT broker_minutes_pk PRIMARY KEY (minute, hostname, pid);

ALTER TABLE ONLY queen.brokers
    ADD CONSTRAINT brokers_pk PRIMARY KEY (broker);

ALTER TABLE ONLY queen.commits
    ADD CONSTRAINT commits_pk PRIMARY KEY (writer, slot);

ALTER TABLE ONLY queen.count_walk_groups
    ADD CONSTRAINT count_walk_groups_pk PRIMARY KEY (queue_id, group_id);

ALTER TABLE ONLY queen.count_walk_ranks
    ADD CONSTRAINT count_walk_ranks_pk PRIMARY KEY (queue_id, group_id, partition_id);

ALTER TABLE ONLY queen.count_walks
    ADD CONSTRAINT count_walks_pk PRIMARY KEY (queue_id);

ALTER TABLE ONLY queen.cursor_keys
    ADD CONSTRAINT cursor_keys_pk PRIMARY KEY (partition_id, group_id);

ALTER TABLE ONLY queen.dead_letters
    ADD CONSTRAINT dead_letters_pk PRIMARY KEY (id);

ALTER TABLE ONLY queen.dead_partitions
    ADD CONSTRAINT dead_partitions_pk PRIMARY KEY (partition_id);

ALTER TABLE ONLY queen.evidence_marks
    ADD CONSTRAINT evidence_marks_pk PRIMARY KEY (partition_id);

ALTER TABLE ONLY queen.evidence
    ADD CONSTRAINT evidence_pk PRIMARY KEY (partition_id, base_offset);

ALTER TABLE ONLY queen.functions
    ADD CONSTRAINT functions_pk PRIMARY KEY (name);

ALTER TABLE ONLY queen.group_counts
    ADD CONSTRAINT group_counts_pk PRIMARY KEY (group_id);

ALTER TABLE ONLY queen.groups
    ADD CONSTRAINT groups_name UNIQUE (queue_id, name);

ALTER TABLE ONLY queen.groups
    ADD CONSTRAINT groups_pk PRIMARY KEY (id);

ALTER TABLE ONLY queen.lag_ranks
    ADD CONSTRAINT lag_ranks_pk PRIMARY KEY (group_id, partition_id);

ALTER TABLE ONLY queen.maintenance_leases
    ADD CONSTRAINT maintenance_leases_pk PRIMARY KEY (task);

ALTER TABLE ONLY queen.measure_walks
    ADD CONSTRAINT measure_walks_pk PRIMARY KEY (queue_id);

ALTER TABLE ONLY queen.migrations
    ADD CONSTRAINT migrations_pk PRIMARY KEY (version);

ALTER TABLE ONLY queen.partition_names
    ADD CONSTRAINT partition_names_pk PRIMARY KEY (queue_id, name);

ALTER TABLE ONLY queen.pending_ranks
    ADD CONSTRAINT pending_ranks_pk PRIMARY KEY (queue_id, partition_id);

ALTER TABLE ONLY queen.queue_counts
    ADD CONSTRAINT queue_counts_pk PRIMARY KEY (queue_id);

ALTER TABLE ONLY queen.queue_minutes
    ADD CONSTRAINT queue_minutes_pk PRIMARY KEY (minute, queue_id);

ALTER TABLE ONLY queen.queue_sizes
    ADD CONSTRAINT queue_sizes_pk PRIMARY KEY (queue_id);

ALTER TABLE ONLY queen.queues
    ADD CONSTRAINT queues_name UNIQUE (tenant_id, name);

ALTER TABLE ONLY queen.queues
    ADD CONSTRAINT queues_pk PRIMARY KEY (id);

ALTER TABLE ONLY queen.redrives
    ADD CONSTRAINT redrives_pk PRIMARY KEY (id);

ALTER TABLE ONLY queen.retention_audit
    ADD CONSTRAINT retention_audit_pk PRIMARY KEY (id);

ALTER TABLE ONLY queen.retention_marks
    ADD CONSTRAINT retention_marks_pk PRIMARY KEY (partition_id);

ALTER TABLE ONLY queen.retention_queues
    ADD CONSTRAINT retention_queues_pk PRIMARY KEY (queue_id);

ALTER TABLE ONLY queen.segments
    ADD CONSTRAINT segments_pk PRIMARY KEY (partition_id, base_offset);

ALTER TABLE ONLY queen.spool_floors
    ADD CONSTRAINT spool_floors_pk PRIMARY KEY (broker);

ALTER TABLE ONLY queen.totals
    ADD CONSTRAINT totals_pk PRIMARY KEY (one);

ALTER TABLE ONLY queen.window_runs
    ADD CONSTRAINT window_runs_pk PRIMARY KEY (partition_id, base_offset, last_offset, row_no);

ALTER TABLE ONLY queen.writers
    ADD CONSTRAINT writers_pk PRIMARY KEY (writer);

CREATE INDEX cursors_by_key ON queen.cursors USING btree (partition_id, group_id);

CREATE INDEX dead_letters_of_message ON queen.dead_letters USING btree (partition_id, message_offset);

CREATE INDEX dead_letters_of_queue ON queen.dead_letters USING btree (queue_id, failed_at DESC, id);

CREATE INDEX evidence_marks_due ON queen.evidence_marks USING btree (look_at);

CREATE INDEX partitions_by_id ON queen.partitions USING btree (id);

CREATE INDEX partitions_by_name ON queen.partitions USING btree (queue_id, name) WHERE (name IS NOT NULL);

CREATE INDEX partitions_of_queue ON queen.partitions USING btree (queue_id, ((id + 0))) WHERE ((id + 0) IS NOT NULL);

CREATE INDEX queue_minutes_idle ON queen.queue_minutes USING btree (minute) WHERE ((push_requests = 0) AND (push_messages = 0) AND (pop_messages = 0) AND (transactions = 0) AND (ack_messages = 0) AND (ack_failed = 0));

CREATE INDEX retention_audit_age ON queen.retention_audit USING btree (removed_at);

CREATE INDEX retention_marks_due ON queen.retention_marks USING btree (look_at);

CREATE TRIGGER forget_cursor_keys AFTER DELETE ON queen.cursors REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION queen.forget_cursor_keys();

CREATE TRIGGER forget_partition_names AFTER DELETE ON queen.partitions REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION queen.forget_partition_names();

CREATE TRIGGER key_cursor BEFORE INSERT ON queen.cursors FOR EACH ROW EXECUTE FUNCTION queen.key_cursor();

CREATE TRIGGER name_partition BEFORE INSERT ON queen.partitions FOR EACH ROW EXECUTE FUNCTION queen.name_partition();

