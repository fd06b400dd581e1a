-- 0019_plain_indexes.sql: the keys of partitions and cursors are kept unique by tables of their own.
-- Why     a row that is updated all the time moves to another page now and then, and a unique index looks at every version with that key before it
--         takes the new one. While somebody holds an old snapshot no version goes, and after minutes that was most of what PostgreSQL did.
--         partition_names and cursor_keys have a row per key, written when it is made and when it goes; the indexes of the hot tables are plain.
-- Upgrade about ten seconds per million rows, in which other brokers go on; then each table is locked for an instant. From then until the
--         functions are new, an instant again, a seek that a broker of before makes is refused, and can be repeated.
--         Where wal_level is logical, each update of these tables logs the old row too: they have no primary key any more.
-- Locks   partitions, cursors: exclusive for an instant, one after the other. Twice: yes. Cut off anywhere: yes, it begins again.
-- breaking: no

create table if not exists queen.partition_names (
    queue_id uuid not null,
    name text collate "C" not null,
    constraint partition_names_pk primary key (queue_id, name)
);

create table if not exists queen.cursor_keys (
    partition_id bigint not null,
    group_id bigint not null,
    constraint cursor_keys_pk primary key (partition_id, group_id)
);

-- Makes no row whose key another one has, or is given by somebody whose commit this waits for. A key without a row is taken over by one
-- at a time: rows were truncated, or are being restored after their keys. A number that is there already, after a restore without its
-- sequence, is left out; the next try has the next one.
create or replace function queen.name_partition() returns trigger language plpgsql
set enable_seqscan = off
as $$
begin
    if exists (select from queen.partitions as p where p.id = new.id) then
        return null;
    end if;
    loop
        insert into queen.partition_names (queue_id, name) values (new.queue_id, new.name) on conflict do nothing;
        if found then
            return new;
        elsif exists (select from queen.partitions as p where p.queue_id = new.queue_id and p.name = new.name) then
            return null;
        end if;
        perform from queen.partition_names as n where n.queue_id = new.queue_id and n.name = new.name for update;
        if found then
            return case
                when not exists (select from queen.partitions as p where p.queue_id = new.queue_id and p.name = new.name) then new
            end;
        end if;
    end loop;
end;
$$;

create or replace function queen.key_cursor() returns trigger language plpgsql
set enable_seqscan = off
as $$
begin
    loop
        insert into queen.cursor_keys (partition_id, group_id) values (new.partition_id, new.group_id) on conflict do nothing;
        if found then
            return new;
        elsif exists (select from queen.cursors as c where c.partition_id = new.partition_id and c.group_id = new.group_id) then
            return null;
        end if;
        perform from queen.cursor_keys as k where k.partition_id = new.partition_id and k.group_id = new.group_id for update;
        if found then
            return case
                when not exists (select from queen.cursors as c where c.partition_id = new.partition_id and c.group_id = new.group_id)
                    then new
            end;
        end if;
    end loop;
end;
$$;

create or replace function queen.forget_partition_names() returns trigger language plpgsql
set enable_seqscan = off
as $$
begin
    delete from queen.partition_names as n
    where n.ctid = any (array(
        select k.ctid
        from gone as g
        cross join lateral (
            select k.ctid from queen.partition_names as k where k.queue_id = g.queue_id and k.name = g.name offset 0
        ) as k
    ));
    return null;
end;
$$;

create or replace function queen.forget_cursor_keys() returns trigger language plpgsql
set enable_seqscan = off
as $$
begin
    delete from queen.cursor_keys as c
    where c.ctid = any (array(
        select k.ctid
        from gone as g
        cross join lateral (
            select k.ctid from queen.cursor_keys as k where k.partition_id = g.partition_id and k.group_id = g.group_id offset 0
        ) as k
    ));
    return null;
end;
$$;

create or replace trigger forget_partition_names after delete on queen.partitions
    referencing old table as gone for each statement execute function queen.forget_partition_names();
create or replace trigger forget_cursor_keys after delete on queen.cursors
    referencing old table as gone for each statement execute function queen.forget_cursor_keys();

-- Until they take over, the unique constraints decide, and keys follow the rows.
create or replace function queen.follow_partition() returns trigger language plpgsql as $$
begin
    insert into queen.partition_names (queue_id, name) values (new.queue_id, new.name) on conflict do nothing;
    return null;
end;
$$;

create or replace function queen.follow_cursor() returns trigger language plpgsql as $$
begin
    insert into queen.cursor_keys (partition_id, group_id) values (new.partition_id, new.group_id) on conflict do nothing;
    return null;
end;
$$;

create or replace trigger follow_partition after insert on queen.partitions
    for each row execute function queen.follow_partition();
create or replace trigger follow_cursor after insert on queen.cursors
    for each row execute function queen.follow_cursor();

-- Those that were there before.
insert into queen.partition_names (queue_id, name)
select p.queue_id, p.name
from queen.partitions as p
where not exists (select from queen.partition_names as n where n.queue_id = p.queue_id and n.name = p.name)
on conflict do nothing;
insert into queen.cursor_keys (partition_id, group_id)
select c.partition_id, c.group_id
from queen.cursors as c
where not exists (select from queen.cursor_keys as k where k.partition_id = c.partition_id and k.group_id = c.group_id)
on conflict do nothing;

-- Waits until nobody is left who deleted a row while its key was being copied, and did not see it.
do $$ begin lock table queen.partitions in share row exclusive mode; end $$;
do $$ begin lock table queen.cursors in share row exclusive mode; end $$;

-- Keys that were copied for rows deleted meanwhile.
delete from queen.partition_names as n
where not exists (select from queen.partitions as p where p.queue_id = n.queue_id and p.name = n.name);
delete from queen.cursor_keys as k
where not exists (select from queen.cursors as c where c.partition_id = k.partition_id and c.group_id = k.group_id);

-- Rows that were made anew while the key of an earlier one was there still, which has just gone: first waits until they are committed.
do $$ begin lock table queen.partitions in share row exclusive mode; end $$;
do $$ begin lock table queen.cursors in share row exclusive mode; end $$;
insert into queen.partition_names (queue_id, name)
select p.queue_id, p.name
from queen.partitions as p
where not exists (select from queen.partition_names as n where n.queue_id = p.queue_id and n.name = p.name)
on conflict do nothing;
insert into queen.cursor_keys (partition_id, group_id)
select c.partition_id, c.group_id
from queen.cursors as c
where not exists (select from queen.cursor_keys as k where k.partition_id = c.partition_id and k.group_id = c.group_id)
on conflict do nothing;

do $$
declare
    v_name text;
begin
    foreach v_name in array array['partitions_by_id', 'partitions_by_name', 'cursors_by_key'] loop
        if exists (select from pg_index as i where i.indexrelid = to_regclass('queen.' || v_name) and not i.indisvalid) then
            execute 'drop index queen.' || v_name;
        end if;
    end loop;
end $$;

create index concurrently if not exists partitions_by_id on queen.partitions (id);

create index concurrently if not exists partitions_by_name on queen.partitions (queue_id, name) where name is not null;

create index concurrently if not exists cursors_by_key on queen.cursors (partition_id, group_id);

do $$
begin
    if 3 <> (
        select count(*)
        from pg_index as i
        where i.indisvalid and i.indexrelid in (
            to_regclass('queen.partitions_by_id'), to_regclass('queen.partitions_by_name'), to_regclass('queen.cursors_by_key')
        )
    ) then
        raise exception 'the build of an index was cut off: start the broker again' using errcode = 'object_not_in_prerequisite_state';
    end if;
end $$;

-- One table at a time: commits take both, in either order. Without a primary key and an identity a table in a publication takes no update.
do $$
begin
    lock table queen.cursors in access exclusive mode;
    create or replace trigger key_cursor before insert on queen.cursors
        for each row execute function queen.key_cursor();
    drop trigger follow_cursor on queen.cursors;
    alter table queen.cursors drop constraint if exists cursors_pk, replica identity full;
end $$;
do $$
begin
    lock table queen.partitions in access exclusive mode;
    create or replace trigger name_partition before insert on queen.partitions
        for each row execute function queen.name_partition();
    drop trigger follow_partition on queen.partitions;
    alter table queen.partitions
        drop constraint if exists partitions_pk, drop constraint if exists partitions_name, replica identity full;
end $$;
drop function queen.follow_cursor();
drop function queen.follow_partition();
