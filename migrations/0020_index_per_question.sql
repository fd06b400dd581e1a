-- 0020_index_per_question.sql: each index of partitions answers one kind of statement, and no other may use it.
-- Why     functions keep their plans, and a plan that was made while the tables were empty takes any index that begins with the queue: a partition
--         was looked for by name, or by number, through all numbers of its queue, until statistics came. What an index is for is now in its predicate,
--         which always holds and is implied by one kind of condition only: partitions_by_name by one on the name (0019); partitions_of_queue by one
--         on `id + 0`, which says "the queue's partitions, by number" and which partitions_by_id does not know. Source: architecture (Statements).
-- Upgrade some seconds per million rows, in which pushes go on. A broker of before, until its functions are replaced a moment later, reads all
--         partitions where it means those of a queue.
-- Locks   partitions: exclusive for an instant when the new index takes its name.
-- Twice: yes, the index is built anew. Cut off anywhere: yes, the old one goes when the new one is there, and what a build that was cut off left goes first.
-- breaking: no

do $$
begin
    if exists (
        select from pg_index as i where i.indexrelid = to_regclass('queen.partitions_of_queue_new') and not i.indisvalid
    ) then
        drop index queen.partitions_of_queue_new;
    end if;
end $$;

create index concurrently if not exists partitions_of_queue_new on queen.partitions (queue_id, (id + 0)) where (id + 0) is not null;

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
