-- settle_append.sql: what became of a push commit that was not answered; one that is not there by now will never be.
-- In     p_writer, p_seq: its line; p_partition, p_expect: its lanes, as queen.append was given them.
-- Out    nothing where the commit was not and will not be written: its line is taken. Else a row per lane, ord its place: state 0 written from base on,
--        at created_at; 1 not written (last_offset is what the row says), 3 no partition. asked_at: PostgreSQL's clock.
--        Fails where the commit is still under way after the lock_timeout, or its writer is no more.
-- Does   tells what the commit wrote by the transaction that wrote its line: segments are never updated.
-- Locks  the line's row: waits for the backend that runs the commit.
-- Again  harmless.
-- Caller src/store/append.rs, settle_append. Source: rule 9.
create or replace function queen.settle_append(p_writer bigint, p_seq bigint, p_partition bigint[], p_expect bigint[])
returns table (ord bigint, state integer, base bigint, last_offset bigint, created_at timestamptz, asked_at timestamptz)
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
    v_transaction xid := queen.settle_line(p_writer, p_seq);
begin
    if v_transaction is null then
        return;
    end if;
    return query
    select l.ord, case when p.id is null then 3 when s.base_offset is null then 1 else 0 end, coalesce(s.base_offset, -1),
        coalesce(p.last_offset, -1), s.created_at, clock_timestamp()
    from unnest(p_partition, p_expect) with ordinality as l (id, expect, ord)
    left join lateral (
        select p.id, p.last_offset from queen.partitions as p where p.id = l.id offset 0
    ) as p on true
    left join lateral (
        select s.base_offset, s.created_at
        from queen.segments as s
        where s.partition_id = l.id and l.expect < s.base_offset and s.xmin = v_transaction
        order by s.base_offset
        limit 1
    ) as s on true;
end;
$$;
