-- queue_options.sql: the options of a queue row under their wire names, in wire order.
-- In     p_queue: the row.
-- Out    the 19 keys of a configure answer.
-- Caller configure, get_queue. Source: data plane 8.3.
create or replace function queen.queue_options(p_queue queen.queues)
returns json
language sql immutable
as $$
    select json_build_object(
        'priority', p_queue.priority,
        'leaseTime', coalesce(p_queue.lease_time, 60),
        'retryLimit', p_queue.retry_limit,
        'retryDelay', p_queue.retry_delay,
        'maxSize', p_queue.max_size,
        'ttl', p_queue.ttl,
        'deadLetterQueue', p_queue.dead_letter_queue,
        'dlqAfterMaxRetries', p_queue.dlq_after_max_retries,
        'delayedProcessing', p_queue.delayed_processing,
        'windowBuffer', p_queue.window_buffer,
        'retentionSeconds', p_queue.retention_seconds,
        'completedRetentionSeconds', p_queue.completed_retention_seconds,
        'retentionEnabled', p_queue.retention_enabled,
        'encryptionEnabled', p_queue.encryption_enabled,
        'maxWaitTimeSeconds', p_queue.max_wait_time_seconds,
        'minPopWaitTime', p_queue.min_pop_wait_time,
        'dedupWindowSeconds', p_queue.dedup_window_seconds,
        'retentionSinkHold', p_queue.retention_sink_hold,
        'retentionSinkHoldMaxSeconds', p_queue.retention_sink_hold_max_seconds
    );
$$;
