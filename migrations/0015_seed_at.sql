-- 0015_seed_at.sql: where a group begins in partitions that its registration made no cursor for.
-- Why     a registration on a queue of millions of partitions would write as many rows, of which most are never asked for. Past a number it
--         keeps one instant instead, by which a cursor that is missing is reckoned and, when it is first needed, made.
-- Upgrade groups that are there keep null: they were given all their cursors.
-- Locks   groups: exclusive for an instant. Twice: yes, nothing is done the second time.
-- breaking: no

alter table queen.groups
    add column if not exists seed_at timestamptz;
