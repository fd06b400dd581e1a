-- settle_bundle.sql: what became of a commit of bundles that was not answered; one that is not there by now will never be.
-- In     p_writer, p_seq: its line. Lanes: p_lane 0 where the partition was not there (p_new: 1-based places of those, with their names), p_verified,
--        p_added. Cursors: p_partition, p_group, p_version, p_write. All as queen.bundle was given them.
-- Out    one row per lane (kind 0), then one per cursor (kind 1), in order. state 0 written (lanes: n1 partition, n2 first offset, at stamp; cursors: n1
--        version, n2 last_offset, n3 log_start, at: end of the lease), 1 not written, 4 nobody knows: it adds nothing, or another commit moved the
--        cursor since. A bundle is written whole or not at all, so one row of it that is known tells of all. asked_at: PostgreSQL's clock.
--        Fails where the commit is still under way after the lock_timeout, or its writer is no more.
-- Does   tell a row by the transaction that wrote the line: segments are never updated, and the newest version of a cursor names the one that made it.
-- Locks  the line's row: waits for the backend that runs the commit.
-- Again  harmless.
-- Caller src/store/bundle.rs, settle_bundle. Source: rule 9.
create or replace function queen.settle_bundle(
    p_writer bigint,
    p_seq bigint,
    p_lane bigint[],
    p_verified bigint[],
    p_added integer[],
    p_new integer[],
    p_tenant uuid[],
    p_queue text[],
    p_name text[],
    p_partition bigint[],
    p_group bigint[],
    p_version bigint[],
    p_write boolean[]
)
returns table (
    kind smallint,
    state smallint,
    n1 bigint,
    n2 bigint,
    n3 bigint,
    at timestamptz,
    asked_at timestamptz
)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = off
set lock_timeout = '300ms'
as $$
#variable_conflict use_column
declare
    v_lane bigint[] := p_lane;
    v_found record;
    v_transaction xid := queen.settle_line(p_writer, p_seq);
begin
    for v_found in
        select p_new[f.ord] as lane, f.partition_id as id from queen.find_lanes(p_tenant, p_queue, p_name) as f
    loop
        v_lane[v_found.lane] := v_found.id;
    end loop;
    return query
    select r.kind, r.state, r.n1, r.n2, r.n3, r.at, clock_timestamp()
    from (
        select 0::smallint as kind, l.ord,
            (case
                when s.base_offset is not null then 0
                when 0 < l.added or v_transaction is null then 1
                else 4
            end)::smallint as state,
            l.id as n1, s.base_offset as n2, 0::bigint as n3, s.created_at as at
        from unnest(v_lane, p_verified, p_added) with ordinality as l (id, verified, added, ord)
        left join lateral (
            select s.base_offset, s.created_at
            from queen.segments as s
            where s.partition_id = l.id and l.verified < s.base_offset and s.xmin = v_transaction
            order by s.base_offset
            limit 1
        ) as s on true
        union all
        select 1::smallint, m.ord,
            (case
                when v_transaction is null then 1
                when m.write and c.written_by = v_transaction then 0
                when m.write and c.version = m.version then 1
                else 4
            end)::smallint,
            c.version, p.last_offset, p.log_start, c.lease_expires_at
        from unnest(p_partition, p_group, p_version, p_write) with ordinality as m (partition_id, group_id, version, write, ord)
        left join lateral (
            select c.version, c.lease_expires_at, c.xmin as written_by
            from queen.cursors as c
            where c.partition_id = m.partition_id and c.group_id = m.group_id
            offset 0
        ) as c on true
        left join lateral (
            select p.last_offset, p.log_start from queen.partitions as p where p.id = m.partition_id offset 0
        ) as p on true
    ) as r
    order by r.kind, r.ord;
end;
$$;
