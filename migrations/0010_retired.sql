-- 0010_retired.sql: how many positions a group retired in a partition.
-- Why     totalConsumed of a group counts what was completed, dropped, dead-lettered or skipped by conflation; where the
--         cursor stands says that only of a group that began at offset 0 and never sought.
-- Upgrade rows that are there keep null: not known, shown as before (committed + 1) and counted on from there by their
--         first move. Rows made from now on begin with 0. So no row is written here, and the previous broker runs on it.
-- Locks   cursors: exclusive for an instant. Twice: yes, nothing is done the second time.
-- breaking: no

alter table queen.cursors
    add column if not exists retired bigint,
    alter column retired set default 0;
