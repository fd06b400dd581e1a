-- 0014_partitions_of_queue.sql: an index that only statements about a queue may use.
--
-- The queue's partitions by number, for statements that name the queue and for nobody else: the predicate always holds, but only a condition on
-- queue_id implies it. Else the planner may look for a partition's number in here, a walk through all of the index, whenever statistics say that the
-- table is as good as empty. Source: architecture 4.
-- Locks   partitions: pushes go on while the new index is built beside the old one; exclusive for an instant when it takes its name.
-- Twice: yes, the index is built anew. Cut off anywhere: yes, one of the two is there at any moment, and what a build that was cut off left goes first.
-- breaking: no

do $$
begin
    if exists (
        select from pg_index as i where i.indexrelid = to_regclass('queen.partitions_of_queue_new') and not i.indisvalid
    ) then
        drop index queen.partitions_of_queue_new;
    end if;
end $$;

create index concurrently if not exists partitions_of_queue_new on queen.partitions (queue_id, id) where queue_id is not null;

do $$
begin
    if not exists (
        select from pg_index as i where i.indexrelid = to_regclass('queen.partitions_of_queue_new') and i.indisvalid
    ) then
        raise exception 'the build of an index was cut off: start the broker again' using errcode = 'object_not_in_prerequisite_state';
    end if;
    drop index if exists queen.partitions_of_queue;
    alter index queen.partitions_of_queue_new rename to partitions_of_queue;
end $$;
