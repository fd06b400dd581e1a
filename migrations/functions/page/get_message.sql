-- get_message.sql: one stored message, by its partition and dedup key.
-- In     p_args: partition bigint; key text (hex).
-- Out    the message with its queue, groups and newest dead letter, and the segment it lies in; or null.
-- Locks  none. Cost: a scan of the partition's keys, newest first, about 65 million a second.
-- Caller src/http/messages.rs. Source: data plane 9.2.
create or replace function queen.get_message(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_partition queen.partitions;
    v_queue queen.queues;
    v_at bigint;
    v_segment queen.segments;
    v_letter queen.dead_letters;
begin
    select * into v_partition from queen.partitions as p where p.id = (p_args ->> 'partition')::bigint;
    select * into v_queue from queen.queues as q where q.id = v_partition.queue_id and q.tenant_id = p_tenant;
    if not found then
        return null;
    end if;
    v_at := queen.find_key(v_partition.id, v_partition.log_start, v_partition.last_offset, null,
        decode(p_args ->> 'key', 'hex'));
    select * into v_segment
    from queen.segments as s
    where s.partition_id = v_partition.id and s.base_offset <= v_at
    order by s.base_offset desc
    limit 1;
    if not found or v_at < v_partition.log_start or v_segment.base_offset + v_segment.count <= v_at then
        return null;
    end if;
    select * into v_letter
    from queen.dead_letters as d
    where d.partition_id = v_partition.id and d.message_offset = v_at
    order by d.failed_at desc
    limit 1;
    return (
        select json_build_object(
            'index', v_at - v_segment.base_offset,
            'createdAt', queen.utc_ms(v_segment.created_at),
            'partitionId', v_partition.id::text,
            'partition', v_partition.name,
            'queue', v_queue.name,
            'namespace', v_queue.namespace,
            'task', v_queue.task,
            'status', s.status,
            'error', v_letter.error,
            'retryCount', coalesce(v_letter.retry_count, 0),
            'lease', queen.utc_ms(s.lease),
            'queueMode', s.queue_mode,
            'groupsCount', s.total_groups,
            'queueConfig', json_build_object(
                'leaseTime', coalesce(v_queue.lease_time, 60), 'retryLimit', v_queue.retry_limit,
                'retryDelay', v_queue.retry_delay, 'ttl', v_queue.ttl, 'priority', v_queue.priority
            ),
            'groups', coalesce((
                select json_agg(
                    json_build_object(
                        'name', g.name, 'group', g.name, 'consumed', w.committed >= v_at,
                        'leaseExpiresAt', case
                            when c.lease_expires_at > statement_timestamp() then queen.utc_ms(c.lease_expires_at)
                        end
                    )
                    order by g.name
                )
                -- Those that queen.message_standing counts.
                from queen.groups as g
                left join queen.cursors as c on c.partition_id = v_partition.id and c.group_id = g.id
                cross join lateral (
                    select coalesce(c.committed, queen.seed_of(
                        g, v_partition.id, v_partition.log_start, v_partition.last_offset, v_partition.last_created_at
                    )) as committed
                ) as w
                where g.queue_id = v_queue.id
                    and g.name <> '__QUEUE_MODE__'
                    and (c.partition_id is not null or queen.is_meant(g, v_partition.id))
            ), '[]'),
            'segment', json_build_object(
                'partitionId', v_partition.id::text, 'base', v_segment.base_offset, 'count', v_segment.count,
                'codec', v_segment.codec, 'flags', v_segment.frame_flags, 'rawLen', v_segment.raw_len,
                'body', encode(v_segment.body, 'hex')
            )
        )
        from queen.message_standing(v_partition.id, v_at) as s
    );
end;
$$;
