-- fetch.sql: stored messages by offset, for many partitions; no cursor, no lease.
-- In     p_args: entries [{queue, partition, offset, maxBytes}], at most 1024; bytes (of all together: entries beyond it
--        come without records, their watermarks are there).
-- Out    an array, in order: {"high","start","error" or absent,"segments":[...]}. Whole stored groups, at least one, until 10000 messages;
--        bodies are hex.
-- Locks  none. Cost: an index probe per entry, and what it returns.
-- Caller src/http/fetch.rs. Source: state plane 8.
create or replace function queen.fetch(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_left bigint := (p_args ->> 'bytes')::bigint;
    v_entry jsonb;
    v_partition queen.partitions;
    v_from bigint;
    v_segments json;
    v_bytes bigint;
    v_out json[] := '{}';
begin
    for v_entry in select e from jsonb_array_elements(p_args -> 'entries') with ordinality as a (e, ord) order by ord loop
        v_from := (v_entry ->> 'offset')::bigint;
        select p.* into v_partition
        from queen.queues as q
        join queen.partitions as p on p.queue_id = q.id
        where q.tenant_id = p_tenant and q.name = v_entry ->> 'queue' and p.name = v_entry ->> 'partition';
        if not found then
            -- A partition of a queue that is there is empty until it is written.
            v_out := v_out || json_build_object('high', 0, 'start', 0,
                'error', case
                    when not exists (
                        select 1 from queen.queues as q where q.tenant_id = p_tenant and q.name = v_entry ->> 'queue'
                    ) then 'UNKNOWN_TOPIC_OR_PARTITION'
                    when v_from > 0 then 'OFFSET_OUT_OF_RANGE'
                end,
                'segments', '[]'::json);
            continue;
        end if;
        if v_from < v_partition.log_start or v_from > v_partition.last_offset + 1 then
            v_out := v_out || json_build_object(
                'high', v_partition.last_offset + 1, 'start', v_partition.log_start, 'error', 'OFFSET_OUT_OF_RANGE',
                'segments', '[]'::json);
            continue;
        end if;
        v_segments := '[]';
        if v_from <= v_partition.last_offset and v_left > 0 then
            select
                json_agg(
                    json_build_object(
                        'base', r.base_offset, 'createdAt', queen.utc_us(r.created_at), 'count', r.count,
                        'codec', r.codec, 'flags', r.frame_flags, 'rawLen', r.raw_len, 'body', encode(r.body, 'hex')
                    )
                    order by r.base_offset
                ) filter (where r.base_offset is not null),
                coalesce(sum(r.raw_len), 0)
            into v_segments, v_bytes
            from queen.read_records(v_partition.id, v_from, v_partition.last_offset,
                least((v_entry ->> 'maxBytes')::bigint, v_left), 10000) as r;
            v_left := v_left - v_bytes;
        end if;
        v_out := v_out || json_build_object(
            'high', v_partition.last_offset + 1, 'start', v_partition.log_start, 'segments', coalesce(v_segments, '[]'));
    end loop;
    return array_to_json(v_out);
end;
$$;
