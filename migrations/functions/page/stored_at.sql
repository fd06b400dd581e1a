-- stored_at.sql: when the message at an offset was stored.
-- In     p_partition, p_offset.
-- Out    createdAt of the segment that holds it; no row where nothing is stored.
-- Locks  none. One index probe. To be joined laterally: as a table function it is inlined, in an expression each call would
--        start an executor of its own, three times the work of the probe.
-- Caller the pages beside this one, and the jobs that count them.
create or replace function queen.stored_at(p_partition bigint, p_offset bigint)
returns table (created_at timestamptz)
language sql stable
as $$
    select s.created_at
    from queen.segments as s
    where s.partition_id = p_partition and s.base_offset <= p_offset
    order by s.base_offset desc
    limit 1;
$$;
