-- 0014_partitions_of_queue.sql: an index that only statements about a queue may use.
--
-- The queue's partitions by number, for statements that name the queue and for nobody else: the predicate always holds, but only a condition on
-- queue_id implies it. Else the planner may look for a partition's number in here, a walk through all of the index, whenever statistics say that the
-- table is as good as empty. Source: architecture 4.
drop index queen.partitions_of_queue;
create index partitions_of_queue on queen.partitions (queue_id, id) where queue_id is not null;
