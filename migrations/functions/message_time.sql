-- message_time.sql: when the message at an offset was stored.
-- In     p_partition, p_offset.
-- Out    createdAt of the segment that holds it; null where nothing is stored.
-- Locks  none. One index probe.
-- Caller the functions beside this one.
create or replace function queen.message_time(p_partition bigint, p_offset bigint)
returns timestamptz
language sql stable
as $$
    select s.created_at
    from queen.segments as s
    where s.partition_id = p_partition and s.base_offset <= p_offset
    order by s.base_offset desc
    limit 1;
$$;
