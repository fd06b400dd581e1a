-- 0011_recent_counts.sql: when the newest partitions of a queue were written.
-- Why     a page of messages looks into the partitions written last; to find them it sorted the rows of all of them.
-- Locks   queue_counts: exclusive for an instant. Twice: yes, nothing is done the second time.
-- breaking: no

-- Of the 1st, 10th, 100th and 1000th partition by the time of its newest stored message; null where there are fewer.
alter table queen.queue_counts add column if not exists recent_at timestamptz[] not null default '{}';
