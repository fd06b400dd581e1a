-- is_meant.sql: whether a registration counted a partition in without making its cursor, as it does where there are many (queen.open_group).
-- In     the record of the group, and the number of a partition of its queue.
-- Out    true: without a cursor it is as if it had one where queen.seed_of says.
-- Plan   it becomes a part of the statement that calls it.
-- Caller what counts, shows or removes cursors. Source: data plane 4.4.
create or replace function queen.is_meant(p_group queen.groups, p_partition bigint)
returns boolean
language sql immutable parallel safe
as $$
    select p_group.seed_at is not null and p_partition >> 12 <= p_group.high_water;
$$;
