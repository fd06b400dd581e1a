-- read_log.sql: what other brokers committed since the caller last read.
-- In     p_writers, p_seqs: how far it has read each writer; both null: not at all, it begins here. A writer it does not name is read from its
--        first commit.
--        p_incarnation: the store it means; null: whichever this is.
--        Of its own writers only those are read that it found retired when it began: a commit of the process before may be late.
-- Out    kind 0: n1 other brokers, n2 the operator's switches (1 push maintenance, 2 pop maintenance), name: which store this is; nothing else where that is another one. kind 1, a row per writer: n1 writer, n2 where the caller stands now, n3 1 if commits were overwritten unread.
--        kind 2: a partition that may have grown, or with a cursor that may be free: n1 number, n2 last_offset, n3 log_start, at last_created_at.
--        kind 3: n1 partition, n2 group, whose lease ended; n3 1 if it has something left; at: end of a lease granted since. kind 4: a queue to read anew; without a name, all of them.
--        asked_at: PostgreSQL's clock.
-- Locks  none. The brokers are counted first: what one that is gone by then wrote, is read.
-- Caller src/store/log.rs, read. Source: rules 8, 10, 11, 12; operations 4.8.
-- Costs  one index probe per writer without news.
create or replace function queen.read_log(p_broker uuid, p_writers bigint[], p_seqs bigint[], p_incarnation text)
returns table (
    kind smallint,
    n1 bigint,
    n2 bigint,
    n3 bigint,
    tenant_id uuid,
    queue text,
    name text,
    at timestamptz,
    asked_at timestamptz
)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    return query
    select 0::smallint, count(*),
        (
            select coalesce(sum(case s.key when 'maintenance_mode' then 1 else 2 end), 0)
            from queen.system_state as s
            where s.key in ('maintenance_mode', 'pop_maintenance_mode') and (s.value ->> 'enabled')::boolean
        ),
        null::bigint, null::uuid, null::text, queen.incarnation(), null::timestamptz, clock_timestamp()
    from queen.brokers as b
    where b.broker <> p_broker;
    if p_incarnation <> queen.incarnation() then
        return;
    end if;
    if p_writers is null then
        return query
        select 1::smallint, w.writer, coalesce((select max(c.seq) from queen.commits as c where c.writer = w.writer), 0), 0::bigint,
            null::uuid, null::text, null::text, null::timestamptz, clock_timestamp()
        from queen.writers as w
        where w.broker <> p_broker or w.retired_at is not null;
        return;
    end if;
    return query
    with stands as materialized (
        select w.writer, coalesce(k.seq, 0) as seq
        from queen.writers as w
        left join unnest(p_writers, p_seqs) as k (writer, seq) on k.writer = w.writer
        where w.broker <> p_broker or (w.retired_at is not null and k.writer is not null)
    ),
    news as materialized (
        select s.writer, c.seq, c.lanes, c.freed, c.changed, c.tenant_id, c.queue
        from stands as s
        cross join lateral (
            select from queen.commits as f
            where f.writer = s.writer and f.slot = ((s.seq + 1) & 255)::integer and s.seq < f.seq
            offset 0
        ) as f
        cross join lateral (select c.* from queen.commits as c where c.writer = s.writer and s.seq < c.seq offset 0) as c
    ),
    freed as materialized (
        select distinct n.freed[i.n] as partition_id, n.freed[i.n + 1] as group_id
        from news as n
        cross join generate_series(1, cardinality(n.freed), 2) as i (n)
    ),
    free as materialized (
        select f.partition_id, f.group_id,
            c.committed < p.last_offset as has_more,
            case when c.lease_expires_at > clock_timestamp() then c.lease_expires_at end as leased_until
        from freed as f
        cross join lateral (
            select c.committed, c.lease_expires_at
            from queen.cursors as c
            where c.partition_id = f.partition_id and c.group_id = f.group_id
            offset 0
        ) as c
        cross join lateral (select p.last_offset from queen.partitions as p where p.id = f.partition_id offset 0) as p
    ),
    grown as materialized (
        select distinct l.id
        from (
            select unnest(n.lanes) as id from news as n
            union all
            select f.partition_id from free as f where f.has_more
        ) as l
    )
    select 1::smallint, s.writer, coalesce(max(n.seq), s.seq), (coalesce(min(n.seq), 0) > s.seq + 1)::integer::bigint,
        null::uuid, null::text, null::text, null::timestamptz, clock_timestamp()
    from stands as s
    left join news as n on n.writer = s.writer
    group by s.writer, s.seq
    union all
    select 2::smallint, p.id, p.last_offset, p.log_start, q.tenant_id, q.name, p.name, p.last_created_at, clock_timestamp()
    from grown as g
    cross join lateral (select p.* from queen.partitions as p where p.id = g.id offset 0) as p
    cross join lateral (select q.tenant_id, q.name from queen.queues as q where q.id = p.queue_id offset 0) as q
    union all
    select 3::smallint, f.partition_id, f.group_id, f.has_more::integer::bigint, null, null, null, f.leased_until, clock_timestamp()
    from free as f
    union all
    select distinct 4::smallint, null::bigint, null::bigint, null::bigint, n.tenant_id, n.queue, null::text, null::timestamptz,
        clock_timestamp()
    from news as n
    where n.changed;
end;
$$;
