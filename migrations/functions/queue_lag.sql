-- queue_lag.sql: how far consumers are behind, per queue, in seconds and in messages.
-- In     p_queues: ids of queues. p_limit: partitions whose oldest pending message is looked up, most pending first.
-- Out    one row per queue that has a partition. lag_seconds: age of its oldest pending message, 0 when none.
-- Locks  none. Cost: that of partition_counts, and p_limit index probes.
-- Caller overview. Source: operations 5.7.
create or replace function queen.queue_lag(p_queues uuid[], p_limit integer)
returns table (
    queue_id uuid,
    partitions bigint,
    total bigint,
    pending bigint,
    processing bigint,
    lag_seconds bigint
)
language sql stable
as $$
    with counted as materialized (
        select * from queen.partition_counts(p_queues)
    ),
    late as (
        select l.queue_id, min(queen.message_time(l.partition_id, l.wanted)) as oldest
        from (
            select * from counted as c where c.pending > 0 order by c.pending desc limit p_limit
        ) as l
        group by l.queue_id
    )
    select
        c.queue_id,
        count(*),
        sum(c.total)::bigint,
        sum(c.pending)::bigint,
        sum(c.processing)::bigint,
        greatest(0, coalesce(floor(extract(epoch from statement_timestamp() - min(l.oldest))), 0))::bigint
    from counted as c
    left join late as l on l.queue_id = c.queue_id
    group by c.queue_id;
$$;
