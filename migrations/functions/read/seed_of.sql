-- seed_of.sql: where a group stands in a partition in which it has no cursor: the offset its cursor will begin with.
-- In     the record of the group, and of the partition its number, log_start, last_offset and last_created_at.
-- Out    the last offset it does not want; null when there is no record, so that the first pop decides.
--        Partitions that are younger than the record follow its mode and timestamp, older ones the instant that the registration kept.
-- Locks  none. Cost: nothing for a partition that was not written since that instant, else a search by halves.
-- Plan   it becomes a part of the statement that calls it: pages call it for millions of partitions.
-- Caller seed_cursors, and what counts or removes what a group still wants. Source: data plane 4.4; rule 24.
create or replace function queen.seed_of(
    p_group queen.groups,
    p_partition bigint,
    p_log_start bigint,
    p_last bigint,
    p_last_at timestamptz
)
returns bigint
language sql volatile
as $$
    select case
        when p_group.mode is null then null
        -- Born after the registration: a `new` group gets all of it, whatever the clocks say.
        when p_group.mode = 'all' or (p_group.mode = 'new' and p_group.high_water < p_partition >> 12) then p_log_start - 1
        when p_last_at < case
            when p_group.high_water < p_partition >> 12 then p_group.start_at
            else coalesce(p_group.seed_at, p_group.start_at)
        end then p_last
        else queen.offset_before(p_partition, p_log_start, p_last, case
            when p_group.high_water < p_partition >> 12 then p_group.start_at
            else coalesce(p_group.seed_at, p_group.start_at)
        end)
    end;
$$;
