-- 0013_incarnation.sql: a writer of the commit log belongs to one incarnation of the store.
-- Why     a standby that was promoted, and a backup that was restored, begin another history: rows are there that a broker does not know, and
--         rows that it knows are not. A commit that was decided on one history must not be made on another, though offsets may be equal.
--         Numbers of writers are drawn, because a sequence goes back with the store: two writers would share one.
-- Locks   both tables, for a moment: nothing is rewritten. Twice: yes, nothing is done the second time.
-- breaking: yes (a broker of before makes no new writers; it goes on with those it has)
alter table queen.commits add column if not exists incarnation text collate "C" not null default '';
alter table queen.writers alter column writer drop identity if exists;
drop function if exists queen.add_writer(uuid, bigint);
drop function if exists queen.read_log(uuid, bigint[], bigint[]);
