-- 0017_queue_requests.sql: of each queue and minute also its requests, what they did not find, and how long polls were parked.
-- Why     a scrape names them by queue. Of a broker and minute: the time that its reports cover, by which parked time is a mean.
-- Upgrade rows that are there keep 0.
-- Locks   broker_minutes, queue_minutes: exclusive for an instant. Twice: yes, nothing is done the second time.
-- breaking: no

alter table queen.broker_minutes
    add column if not exists covered_us bigint not null default 0;

alter table queen.queue_minutes
    add column if not exists push_requests bigint not null default 0,
    add column if not exists pop_empty bigint not null default 0,
    add column if not exists transactions bigint not null default 0,
    add column if not exists ack_failed bigint not null default 0,
    add column if not exists conflated bigint not null default 0,
    add column if not exists parked_us bigint not null default 0;
