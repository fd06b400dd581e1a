-- status_queue.sql: one queue with its partitions, cursors and counters.
-- In     p_args: queue text, limit integer (partitions listed at most; the sums cover all).
-- Out    the page, with "partitionsTruncated":true where there are more partitions than are listed; or {"error":"Queue not found"}.
-- Locks  none. Cost: that of queue_partitions.
-- The queue's row and its partitions come from where get_queue has them; the keys are of another contract, so they are written twice.
-- Caller src/http/status.rs. Source: operations 5.6.3.
create or replace function queen.status_queue(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    q queen.queues;
    v_page json;
begin
    select * into q
    from queen.queues as r
    where r.tenant_id = p_tenant and r.name = p_args ->> 'queue';
    if not found then
        return json_build_object('error', 'Queue not found');
    end if;
    v_page := (
        select json_build_object(
            'queue', json_build_object(
                'id', q.id,
                'name', q.name,
                'namespace', q.namespace,
                'task', q.task,
                'priority', q.priority,
                'createdAt', queen.utc_ms(q.created_at),
                'config', json_build_object(
                    'leaseTime', coalesce(q.lease_time, 60),
                    'retryLimit', q.retry_limit,
                    'retryDelay', q.retry_delay,
                    'ttl', q.ttl,
                    'maxQueueSize', q.max_size,
                    'deadLetterQueue', q.dead_letter_queue
                )
            ),
            'partitions', coalesce(
                json_agg(
                    json_build_object(
                        'id', p.partition_id::text,
                        'name', p.name,
                        'createdAt', queen.utc_ms(p.created_at),
                        'messages', p.stats,
                        'stats', p.stats,
                        'cursor', json_build_object('totalConsumed', p.consumed, 'batchesConsumed', 0),
                        'lastActivity', queen.utc_ms(p.last_leased),
                        'oldestMessage', queen.utc_ms(p.oldest),
                        'newestMessage', queen.utc_ms(p.newest)
                    )
                    order by p.name
                ) filter (where p.partition_id is not null),
                '[]'
            ),
            'totals', json_build_object('messages', (array_agg(p.totals))[1])
        )
        from queen.queue_partitions(q.id, (p_args ->> 'limit')::integer) as p
    );
    if exists (
        select from queen.partitions as p where p.queue_id = q.id and p.name >= '' order by p.name
        offset (p_args ->> 'limit')::integer limit 1
    ) then
        v_page := (left(v_page::text, -1) || ', "partitionsTruncated" : true}')::json;
    end if;
    return v_page;
end;
$$;
