-- replay_dead_letter.sql: moves one dead letter to the tail of a partition: the push and the delete are one transaction.
-- In     p_args: id uuid text; queue, partition text and slot integer (its placement): the destination, made if missing;
--        message uuid text (the new id); key text (hex, the dedup key of `dlq:<id>`, as stored); payload text (hex)
--        and encrypted boolean, or neither: what is stored instead of the row's own.
-- Out    {"result":"moved"|"duplicate"|"gone","offset","group","transactionId","grown"}. grown: the partition that was moved to.
--        duplicate and gone write nothing (but a destination that was made for a row which was replayed meanwhile).
-- Locks  destination queue FOR KEY SHARE, its partition row, then the dead letter. The window is searched before the
--        partition is locked, under the lock only what came since: pushes skip the row meanwhile.
-- Again  gone.
-- Caller src/http/dead_letters.rs, queen.redrive_row. Source: data plane 10.3; binary forms 11 (the frame).
create or replace function queen.replay_dead_letter(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_id uuid := (p_args ->> 'id')::uuid;
    v_key bytea := decode(p_args ->> 'key', 'hex');
    v_text bytea := convert_to('dlq:' || (p_args ->> 'id'), 'UTF8');
    v_lane record;
    v_since timestamptz;
    v_seen bigint;
    v_last bigint;
    v_at timestamptz;
    v_found bigint;
    v_letter queen.dead_letters;
    v_payload bytea;
    v_encrypted boolean;
    v_len bytea;
    v_frame bytea;
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if not exists (
        select 1
        from queen.dead_letters as d
        join queen.queues as q on q.id = d.queue_id
        where d.id = v_id and q.tenant_id = p_tenant
    ) then
        return json_build_object('result', 'gone');
    end if;
    select * into v_lane
    from queen.provision(
        array[p_tenant], array[p_args ->> 'queue'], array[p_args ->> 'partition'], array[(p_args ->> 'slot')::integer]
    );
    if not found then
        raise exception 'the destination was deleted meanwhile' using errcode = 'serialization_failure';
    end if;

    v_seen := v_lane.last_offset;
    if v_lane.dedup_window_seconds > 0 then
        v_since := clock_timestamp() - make_interval(secs => v_lane.dedup_window_seconds);
        v_found := queen.find_key(v_lane.partition_id, 0, v_seen, v_since, v_key);
    end if;
    select p.last_offset into v_last
    from queen.partitions as p
    where p.id = v_lane.partition_id
    for no key update;
    if not found then
        raise exception 'the destination was deleted meanwhile' using errcode = 'serialization_failure';
    end if;
    if v_found is null and v_since is not null and v_seen < v_last then
        v_found := queen.find_key(v_lane.partition_id, v_seen + 1, v_last, v_since, v_key);
    end if;

    select d.* into v_letter from queen.dead_letters as d where d.id = v_id for update;
    if not found then
        return json_build_object('result', 'gone');
    end if;
    if v_found is not null then
        return json_build_object(
            'result', 'duplicate', 'offset', v_found, 'group', v_letter.group_name,
            'transactionId', v_letter.transaction_id);
    end if;

    v_payload := coalesce(decode(p_args ->> 'payload', 'hex'), v_letter.payload);
    v_encrypted := coalesce((p_args ->> 'encrypted')::boolean, v_letter.encrypted);
    -- body_len u32 | flags u8 | message id 16 | transaction id text | payload, numbers little-endian.
    v_len := int4send(19 + octet_length(v_text) + octet_length(v_payload));
    v_frame := substring(v_len from 4 for 1) || substring(v_len from 3 for 1) || substring(v_len from 2 for 1)
        || substring(v_len from 1 for 1)
        || case when v_encrypted then '\x04'::bytea else '\x00'::bytea end
        || uuid_send((p_args ->> 'message')::uuid)
        || substring(int2send(octet_length(v_text)::smallint) from 2 for 1)
        || substring(int2send(octet_length(v_text)::smallint) from 1 for 1)
        || v_text || v_payload;
    update queen.partitions as p
    set last_offset = p.last_offset + 1,
        last_created_at = greatest(clock_timestamp(), p.last_created_at)
    where p.id = v_lane.partition_id
    returning p.last_offset, p.last_created_at into v_last, v_at;
    insert into queen.segments (partition_id, base_offset, count, created_at, codec, frame_flags, raw_len, keys, body)
    values (v_lane.partition_id, v_last, 1, v_at, 0, case when v_encrypted then 4 else 0 end,
        octet_length(v_frame), v_key, v_frame);
    delete from queen.dead_letters as d where d.id = v_id;
    return json_build_object(
        'result', 'moved', 'offset', v_last, 'group', v_letter.group_name, 'transactionId', v_letter.transaction_id,
        'grown', v_lane.partition_id);
end;
$$;
