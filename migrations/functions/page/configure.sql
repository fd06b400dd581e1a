-- configure.sql: creates a queue or changes its options, and tells what holds afterwards.
-- In     p_args: queue text, replace boolean, options object: only the 21 names, values of the right type and range
--        (http/configure.rs judged them); null means the default.
-- Out    the answer of POST /configure.
-- Locks  the queue row, FOR NO KEY UPDATE: calls on one queue come one after another, so no option is lost. Pushes
--        and partition creation do not wait for it.
-- Again  harmless.
-- Caller src/http/configure.rs. Source: data plane 8.1 to 8.3, 0 (d).
create or replace function queen.configure(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
as $$
declare
    v_name text := p_args ->> 'queue';
    v_replace boolean := coalesce((p_args ->> 'replace')::boolean, false);
    v_sent jsonb := coalesce(p_args -> 'options', '{}');
    v_base jsonb;
    q queen.queues;
    -- Defaults of an explicit create.
    c_defaults constant jsonb := jsonb_build_object(
        'namespace', '', 'task', '', 'priority', 0, 'leaseTime', 300, 'retryLimit', 3, 'retryDelay', 1000,
        'maxSize', 0, 'ttl', 3600, 'deadLetterQueue', true, 'dlqAfterMaxRetries', true, 'delayedProcessing', 0,
        'windowBuffer', 0, 'retentionSeconds', 0, 'completedRetentionSeconds', 0, 'retentionEnabled', false,
        'encryptionEnabled', false, 'maxWaitTimeSeconds', 0, 'minPopWaitTime', 0, 'dedupWindowSeconds', 3600,
        'retentionSinkHold', '', 'retentionSinkHoldMaxSeconds', 604800);
begin
    -- A queue deleted between the two statements is made again.
    loop
        insert into queen.queues (tenant_id, name)
        values (p_tenant, v_name)
        on conflict on constraint queues_name do nothing;

        select * into q
        from queen.queues as r
        where r.tenant_id = p_tenant and r.name = v_name
        for no key update;
        exit when found;
    end loop;

    -- What an absent option falls back to: the stored value, or the default. A lease time that only implicit creates
    -- touched was never stored.
    v_base := c_defaults;
    if not v_replace then
        v_base := v_base || queen.queue_options(q)::jsonb
            || jsonb_build_object('namespace', q.namespace, 'task', q.task, 'leaseTime', coalesce(q.lease_time, 300));
    end if;
    -- A null takes the default: strip it, having put the default into the base.
    v_base := v_base || coalesce(
        (select jsonb_object_agg(s.key, c_defaults -> s.key)
        from jsonb_each(v_sent) as s
        where s.value = 'null' and c_defaults ? s.key),
        '{}');
    v_base := v_base || jsonb_strip_nulls(v_sent);

    update queen.queues as r
    set namespace = v_base ->> 'namespace',
        task = v_base ->> 'task',
        priority = (v_base ->> 'priority')::integer,
        lease_time = (v_base ->> 'leaseTime')::integer,
        retry_limit = (v_base ->> 'retryLimit')::integer,
        retry_delay = (v_base ->> 'retryDelay')::integer,
        max_size = (v_base ->> 'maxSize')::integer,
        ttl = (v_base ->> 'ttl')::integer,
        dead_letter_queue = (v_base ->> 'deadLetterQueue')::boolean,
        dlq_after_max_retries = (v_base ->> 'dlqAfterMaxRetries')::boolean,
        delayed_processing = (v_base ->> 'delayedProcessing')::integer,
        window_buffer = (v_base ->> 'windowBuffer')::integer,
        retention_seconds = (v_base ->> 'retentionSeconds')::integer,
        completed_retention_seconds = (v_base ->> 'completedRetentionSeconds')::integer,
        retention_enabled = (v_base ->> 'retentionEnabled')::boolean,
        encryption_enabled = (v_base ->> 'encryptionEnabled')::boolean,
        max_wait_time_seconds = (v_base ->> 'maxWaitTimeSeconds')::integer,
        min_pop_wait_time = (v_base ->> 'minPopWaitTime')::integer,
        dedup_window_seconds = (v_base ->> 'dedupWindowSeconds')::integer,
        retention_sink_hold = v_base ->> 'retentionSinkHold',
        retention_sink_hold_max_seconds = (v_base ->> 'retentionSinkHoldMaxSeconds')::integer
    where r.id = q.id
    returning r.* into q;

    return json_build_object(
        'configured', true,
        'queueId', q.id,
        'partitionId', null,
        'queue', q.name,
        'namespace', q.namespace,
        'task', q.task,
        'storage', 'segments',
        'options', queen.queue_options(q)
    );
end;
$$;
