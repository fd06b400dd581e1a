-- 0012_retention_walks.sql: when a queue's partitions are next walked for what was written since.
-- Why     an empty partition was looked at ever more rarely, so that a message pushed there outlived its rule. Now it has no
--         marker: a walk over the partition rows, at most once per rule, finds those that were written.
-- Locks   retention_queues: exclusive for an instant. Twice: yes, the walks begin anew.
-- breaking: no

alter table queen.retention_queues
    add column if not exists since timestamptz not null default 'epoch', -- the walk marks what was written from here on
    add column if not exists begun_at timestamptz not null default 'epoch', -- `since` of the next walk
    add column if not exists next_at timestamptz not null default 'epoch';

update queen.retention_queues set seen = 0;
