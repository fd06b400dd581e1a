-- find_key.sql: the newest offset of a partition that was stored under a dedup key.
-- In     p_from..p_to: offsets looked at, whole rows. p_since: only rows at or after it, null for all. p_key: 16 bytes.
-- Out    the offset, or null.
-- Locks  none: stored keys never change. Cost: a scan of the keys in the range, newest first, about 65 million a second.
-- Caller queen.replay_dead_letter, queen.get_message. Source: data plane 3.5.
create or replace function queen.find_key(p_partition bigint, p_from bigint, p_to bigint, p_since timestamptz, p_key bytea)
returns bigint
language plpgsql stable
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    v_row record;
    v_at integer;
begin
    for v_row in
        select s.base_offset, s.count, s.created_at, s.keys
        from queen.segments as s
        where s.partition_id = p_partition and s.base_offset <= p_to
        union all
        select e.base_offset, e.count, e.created_at, e.keys
        from queen.evidence as e
        where e.partition_id = p_partition and e.base_offset <= p_to
        order by base_offset desc
    loop
        exit when v_row.base_offset + v_row.count <= p_from or v_row.created_at < p_since;
        -- The quick search may hit across two keys; then every key is looked at.
        if position(p_key in v_row.keys) > 0 then
            select max(i) into v_at
            from generate_series(0, v_row.count - 1) as i
            where substring(v_row.keys from 16 * i + 1 for 16) = p_key;
            if v_at is not null then
                return v_row.base_offset + v_at;
            end if;
        end if;
    end loop;
    return null;
end;
$$;
