-- queue_partitions.sql: the partitions of one queue with their counters, by name, and the sums over all of them.
-- In     p_queue: id of a queue. p_limit: partitions listed at most; the sums cover all.
-- Out    {"partitions":[...],"totals":{...}} in the shape of the status page: stats, twin messages, cursor, times.
-- Locks  none. Cost: that of queue_sums; some index probes per listed partition.
-- Caller get_queue, status_queue. Source: operations 5.6.3, 5.7.
create or replace function queen.queue_partitions(p_queue uuid, p_limit integer)
returns table (
    partition_id bigint,
    name text,
    created_at timestamptz,
    stats json,
    consumed bigint,
    last_leased timestamptz,
    oldest timestamptz,
    newest timestamptz,
    -- The same in every row; one row with nulls before it when the queue has no partition.
    totals json
)
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
begin
    return query
    with dead as (
        select d.partition_id, count(*) as letters
        from queen.dead_letters as d
        where d.queue_id = p_queue
        group by d.partition_id
    ),
    summed as (
        select json_build_object(
            'total', coalesce(sum(c.total), 0),
            'pending', coalesce(sum(c.pending), 0),
            'processing', coalesce(sum(c.processing), 0),
            'completed', greatest(0, coalesce(sum(c.total - c.pending), 0) - (select coalesce(sum(d.letters), 0) from dead as d)),
            'failed', null,
            'deadLetter', (select coalesce(sum(d.letters), 0) from dead as d)
        ) as totals
        from queen.queue_sums(array[p_queue], true, 0) as c
    ),
    listed as (
        select
            c.*,
            coalesce(d.letters, 0) as dead,
            greatest(0, c.total - c.pending - coalesce(d.letters, 0)) as completed
        from queen.counts_of(array(
            select p.id
            from queen.partitions as p
            where p.queue_id = p_queue and p.name >= ''
            order by p.name
            limit p_limit
        )) as c
        left join dead as d on d.partition_id = c.partition_id
    )
    select
        l.partition_id,
        l.name,
        l.created_at,
        case when l.partition_id is not null then json_build_object(
            'total', l.total,
            'pending', l.pending,
            'processing', l.processing,
            'completed', l.completed,
            'failed', null,
            'deadLetter', l.dead
        ) end,
        l.completed,
        l.last_leased,
        o.created_at,
        l.newest,
        s.totals
    from summed as s
    left join listed as l on true
    left join lateral queen.stored_at(l.partition_id, l.wanted) as o on l.pending > 0
    order by l.name;
end;
$$;
