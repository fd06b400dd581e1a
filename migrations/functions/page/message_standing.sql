-- message_standing.sql: how far the consumer groups of its partition are with one message.
-- In     p_partition, p_offset.
-- Out    one row. consumed_by of total_groups named groups are past it. lease: end of the live queue-mode lease.
--        status: dead_letter, completed (every named group is past it; without one, queue mode is), processing (a live
--        lease covers the partition), else pending.
-- Locks  none. Cost: the partition's cursors, and an index probe.
-- Caller queen.list_messages, queen.get_message. Source: data plane 9.1.
create or replace function queen.message_standing(p_partition bigint, p_offset bigint)
returns table (status text, consumed_by bigint, total_groups bigint, queue_mode boolean, lease timestamptz)
language sql stable
as $$
    select
        case
            when exists (
                select 1 from queen.dead_letters as d
                where d.partition_id = p_partition and d.message_offset = p_offset
            ) then 'dead_letter'
            when c.named > 0 and c.past = c.named then 'completed'
            when c.named = 0 and c.queue_past then 'completed'
            when c.live then 'processing'
            else 'pending'
        end,
        c.past, c.named, c.queue_mode, c.lease
    from (
        select
            count(*) filter (where g.name <> '__QUEUE_MODE__') as named,
            count(*) filter (where g.name <> '__QUEUE_MODE__' and w.committed >= p_offset) as past,
            coalesce(bool_or(g.name = '__QUEUE_MODE__'), false) as queue_mode,
            coalesce(bool_or(g.name = '__QUEUE_MODE__' and w.committed >= p_offset), false) as queue_past,
            coalesce(bool_or(k.lease_expires_at > statement_timestamp()), false) as live,
            max(k.lease_expires_at) filter (
                where g.name = '__QUEUE_MODE__' and k.lease_expires_at > statement_timestamp()
            ) as lease
        from queen.partitions as p
        join queen.groups as g on g.queue_id = p.queue_id
        left join queen.cursors as k on k.partition_id = p.id and k.group_id = g.id
        cross join lateral (
            select coalesce(k.committed, queen.seed_of(g, p.id, p.log_start, p.last_offset, p.last_created_at)) as committed
        ) as w
        where p.id = p_partition
            and (k.partition_id is not null or queen.is_meant(g, p.id))
    ) as c;
$$;
