-- 0008_spool_floors.sql: what an undrained spool may still need of the dedup evidence.
-- Why     a record of a spool is judged around its acceptance, however long ago that was: evidence that old must not be
--         forgotten while any broker has one. A broker that vanished counts for a day, from its last word.
-- Locks   none that matter, the table is new. Twice: yes, nothing is done the second time.
-- breaking: no

create table if not exists queen.spool_floors (
    broker uuid not null, -- kept in the spool directory
    oldest_at timestamptz not null, -- acceptance of its oldest undrained record, else when it was last seen
    seen_at timestamptz not null default clock_timestamp(),
    constraint spool_floors_pk primary key (broker)
);

-- It tells acceptance times now, in a further last column, which an older broker does not look at.
drop function if exists queen.read_keys(bigint, bigint, bigint, timestamptz, integer, boolean);
