-- read_records.sql: stored records that hold offsets in p_from..p_to, whole rows until p_bytes (inflated) or p_messages are reached.
-- Out    ascending, at least one when there is one. The last row has no base: log_start says where the log begins, -1 when it is gone.
-- Locks  none. log_start is read after the records: what it lies above may be missing, the rest is there.
-- Caller src/store/cold.rs, read_records; queen.fetch. Source: data plane 4.3; binary forms 15.5.
create or replace function queen.read_records(
    p_partition bigint,
    p_from bigint,
    p_to bigint,
    p_bytes bigint,
    p_messages integer
)
returns table (
    base_offset bigint,
    created_at timestamptz,
    count integer,
    codec smallint,
    frame_flags smallint,
    raw_len integer,
    body bytea,
    keys bytea,
    log_start bigint
)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_from bigint;
    v_bytes bigint := 0;
    v_messages bigint := 0;
    v_row record;
begin
    select s.base_offset into v_from from queen.segments as s
    where s.partition_id = p_partition and s.base_offset <= p_from
    order by s.base_offset desc limit 1;
    for v_row in
        select s.base_offset, s.created_at, s.count, s.codec, s.frame_flags, s.raw_len, s.body, s.keys
        from queen.segments as s
        where s.partition_id = p_partition and s.base_offset between coalesce(v_from, p_from) and p_to
        order by s.base_offset
    loop
        continue when v_row.base_offset + v_row.count <= p_from;
        base_offset := v_row.base_offset;
        created_at := v_row.created_at;
        count := v_row.count;
        codec := v_row.codec;
        frame_flags := v_row.frame_flags;
        raw_len := v_row.raw_len;
        body := v_row.body;
        keys := v_row.keys;
        return next;
        v_bytes := v_bytes + v_row.raw_len;
        v_messages := v_messages + v_row.base_offset + v_row.count - greatest(p_from, v_row.base_offset);
        exit when p_bytes <= v_bytes or p_messages <= v_messages;
    end loop;
    base_offset := null;
    created_at := null;
    body := null;
    keys := null;
    log_start := coalesce((select p.log_start from queen.partitions as p where p.id = p_partition), -1);
    return next;
end;
$$;
