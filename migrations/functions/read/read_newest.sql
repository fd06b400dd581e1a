-- read_newest.sql: the newest stored record that begins at or below an offset and is not younger than a stamp.
-- In     p_not_after: null for any stamp.
-- Out    at most one record. The last row has no base: log_start says where the log begins, -1 when it is gone.
-- Locks  none. log_start is read after the record: a record below it may be missing. Cost: one index read, and with a stamp
--        those of queen.offset_before.
-- Caller src/store/cold.rs, read_newest. Source: data plane 4.10.
create or replace function queen.read_newest(p_partition bigint, p_to bigint, p_not_after timestamptz)
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
    v_to bigint := p_to;
begin
    if p_not_after is not null then
        -- Stamps have microseconds: just before the first that is younger.
        v_to := queen.offset_before(
            p_partition, (select p.log_start from queen.partitions as p where p.id = p_partition), p_to,
            p_not_after + interval '1 microsecond'
        );
    end if;
    return query
    select s.base_offset, s.created_at, s.count, s.codec, s.frame_flags, s.raw_len, s.body, s.keys, null::bigint
    from queen.segments as s
    where s.partition_id = p_partition and s.base_offset <= v_to
    order by s.base_offset desc
    limit 1;
    log_start := coalesce((select p.log_start from queen.partitions as p where p.id = p_partition), -1);
    return next;
end;
$$;
