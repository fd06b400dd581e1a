-- read_keys.sql: dedup keys stored at offsets in p_from..p_to, in whole rows, of segments and of the evidence that outlives them.
-- In     p_limit: about so many keys; p_newest_first: the highest rows that fit. p_since: only rows at or after it, null for all.
-- Out    ascending, or descending with p_newest_first. The last row has no base: complete says whether nothing of the range is left out.
--        accepted_at: of what waited in a spool.
-- Locks  none: stored keys never change.
-- Caller src/store/cold.rs, read_keys. Source: data plane 3.5, 5.5.
create or replace function queen.read_keys(
    p_partition bigint,
    p_from bigint,
    p_to bigint,
    p_since timestamptz,
    p_limit integer,
    p_newest_first boolean
)
returns table (
    base_offset bigint,
    created_at timestamptz,
    keys bytea,
    complete boolean,
    asked_at timestamptz,
    accepted_at timestamptz
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
    v_left bigint := p_limit;
    v_row record;
begin
    complete := true;
    asked_at := clock_timestamp();
    if p_newest_first then
        for v_row in
            select s.base_offset, s.count, s.created_at, s.accepted_at, s.keys
            from queen.segments as s
            where s.partition_id = p_partition and s.base_offset <= p_to
            union all
            select e.base_offset, e.count, e.created_at, e.accepted_at, e.keys
            from queen.evidence as e
            where e.partition_id = p_partition and e.base_offset <= p_to
            order by base_offset desc
        loop
            exit when v_row.base_offset + v_row.count <= p_from or v_row.created_at < p_since;
            if v_left <= 0 then
                complete := false;
                exit;
            end if;
            base_offset := v_row.base_offset;
            created_at := v_row.created_at;
            accepted_at := v_row.accepted_at;
            keys := v_row.keys;
            v_left := v_left - v_row.count;
            return next;
        end loop;
    else
        -- The row that holds p_from may begin before it.
        v_from := greatest(
            (
                select s.base_offset from queen.segments as s
                where s.partition_id = p_partition and s.base_offset <= p_from
                order by s.base_offset desc limit 1
            ),
            (
                select e.base_offset from queen.evidence as e
                where e.partition_id = p_partition and e.base_offset <= p_from
                order by e.base_offset desc limit 1
            )
        );
        for v_row in
            select s.base_offset, s.count, s.created_at, s.accepted_at, s.keys
            from queen.segments as s
            where s.partition_id = p_partition and s.base_offset between coalesce(v_from, p_from) and p_to
            union all
            select e.base_offset, e.count, e.created_at, e.accepted_at, e.keys
            from queen.evidence as e
            where e.partition_id = p_partition and e.base_offset between coalesce(v_from, p_from) and p_to
            order by base_offset
        loop
            continue when v_row.base_offset + v_row.count <= p_from or v_row.created_at < p_since;
            if v_left <= 0 then
                complete := false;
                exit;
            end if;
            base_offset := v_row.base_offset;
            created_at := v_row.created_at;
            accepted_at := v_row.accepted_at;
            keys := v_row.keys;
            v_left := v_left - v_row.count;
            return next;
        end loop;
    end if;
    base_offset := null;
    created_at := null;
    accepted_at := null;
    keys := null;
    return next;
end;
$$;
