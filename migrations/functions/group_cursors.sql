-- group_cursors.sql: where the consumer groups of a tenant stand in every partition.
-- In     p_group: one group's name, or null for all.
-- Out    one row per (group, partition) with a cursor, and per partition that a registered group has not met yet and
--        will read from its beginning (cursor columns null). lag: messages stored and not completed.
-- Locks  none. Cost: the cursors of the tenant, by index for one small group.
-- Caller the functions beside this one. Source: data plane 11.
create or replace function queen.group_cursors(p_tenant uuid, p_group text)
returns table (
    queue_id uuid,
    queue text,
    group_id bigint,
    group_name text,
    conflation boolean,
    partition_id bigint,
    partition text,
    met boolean,
    committed bigint,
    lag bigint,
    wanted bigint,
    last_created_at timestamptz,
    lease_id uuid -- of a live lease
)
language sql stable
as $$
    select
        w.queue_id, w.queue, w.group_id, w.group_name, w.conflation, w.id, w.partition, w.met, w.committed,
        greatest(0, w.last_offset - greatest(w.committed, w.log_start - 1)),
        greatest(w.committed, w.log_start - 1) + 1,
        w.last_created_at, w.lease_id
    from (
        select
            q.id as queue_id, q.name as queue, g.id as group_id, g.name as group_name, g.conflation,
            p.id, p.name as partition, p.log_start, p.last_offset, p.last_created_at,
            c.partition_id is not null as met,
            coalesce(
                c.committed,
                case when g.mode = 'all' or g.high_water < p.id >> 12 then p.log_start - 1 end
            ) as committed,
            case when c.lease_expires_at > statement_timestamp() then c.lease_id end as lease_id
        from queen.queues as q
        join queen.groups as g on g.queue_id = q.id
        join queen.partitions as p on p.queue_id = q.id
        left join queen.cursors as c on c.partition_id = p.id and c.group_id = g.id
        where q.tenant_id = p_tenant
            and (p_group is null or g.name = p_group)
            and (c.partition_id is not null or g.mode is not null)
    ) as w
    where w.committed is not null;
$$;
