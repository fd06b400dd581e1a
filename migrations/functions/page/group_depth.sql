-- group_depth.sql: what waits for one group in the partitions of a queue; a group without a cursor waits for what its record says, one without a record for everything.
-- In     p_group: null for one that nobody knows. p_ids: these partitions only, or null for all of the queue.
-- Locks  none. Cost: the partitions asked for and a cursor each.
-- Caller queue_depth. Source: data plane 8.6.
create or replace function queen.group_depth(p_queue uuid, p_group bigint, p_ids bigint[])
returns table (name text, pending bigint, leased bigint)
language sql stable
as $$
    select
        p.name,
        greatest(0, p.last_offset - greatest(
            coalesce(c.committed, queen.seed_of(g, p.id, p.log_start, p.last_offset, p.last_created_at)),
            p.log_start - 1
        )),
        case when c.lease_expires_at > statement_timestamp() then c.batch_end - c.committed else 0 end
    from queen.partitions as p
    left join queen.groups as g on g.id = p_group
    left join queen.cursors as c on c.partition_id = p.id and c.group_id = p_group
    where p.queue_id = p_queue and (p_ids is null and p.id + 0 > 0 or p.id = any (p_ids));
$$;
