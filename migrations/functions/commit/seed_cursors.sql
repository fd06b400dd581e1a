-- seed_cursors.sql: makes the missing cursors of one group, then reads them all.
-- In     p_partition in any order. p_mode all, new or timestamp (with p_start_at): where to start without a record; a record decides alone.
-- Out    one row per partition that exists; ord is its 1-based place. Cursor columns are null when the group is gone.
-- Locks  group row FOR KEY SHARE, then the partition rows without a cursor FOR KEY SHARE in id order, then inserts in the same order.
--        Each waits at most 300 ms, less than in open_group: every pop of a group that is sought or deleted may ask, and a shard's cold
--        calls go one behind another.
-- Again  harmless: an existing cursor is never seeded again.
-- Caller src/store/cold.rs, seed_cursors. Source: data plane 4.4; rules 6 and 24.
drop function if exists queen.seed_cursors(bigint, text, timestamptz, bigint[]);
create or replace function queen.seed_cursors(
    p_group bigint,
    p_mode text,
    p_start_at timestamptz,
    p_partition bigint[]
)
returns table (
    ord bigint,
    last_offset bigint,
    log_start bigint,
    version bigint,
    committed bigint,
    lease_id uuid,
    lease_expires_at timestamptz,
    batch_end bigint,
    retry_count integer,
    attempt_start bigint,
    attempt_count integer,
    conflating boolean
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
    v_record queen.groups;
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    select g.* into v_record from queen.groups as g where g.id = p_group for key share;
    if found then
        if v_record.name = '__QUEUE_MODE__' then
            v_record.mode := 'all';
        elsif v_record.mode is null then
            v_record.mode := p_mode;
            v_record.start_at := coalesce(p_start_at, 'infinity');
            v_record.seed_at := null;
            v_record.high_water := (1::bigint << 51); -- Above every partition: a `new` pop without a record skips what is there.
        end if;
        insert into queen.cursors (partition_id, group_id, committed)
        select k.id, p_group, queen.seed_of(v_record, k.id, k.log_start, k.last_offset, k.last_created_at)
        from (
            select p.id, p.log_start, p.last_offset, p.last_created_at
            from queen.partitions as p
            where p.id = any (p_partition)
                and p.queue_id = v_record.queue_id
                and not exists (
                    select from queen.cursors as c where c.partition_id = p.id and c.group_id = p_group offset 0
                )
            order by p.id
            for key share
        ) as k
        on conflict do nothing;
    end if;
    return query
    select a.ord, p.last_offset, p.log_start, c.version, c.committed, c.lease_id, c.lease_expires_at, c.batch_end,
        c.retry_count, c.attempt_start, c.attempt_count, c.conflating
    from unnest(p_partition) with ordinality as a (id, ord)
    cross join lateral (select * from queen.partitions as p where p.id = a.id offset 0) as p
    left join lateral (
        select * from queen.cursors as c where c.partition_id = p.id and c.group_id = p_group offset 0
    ) as c on true;
end;
$$;
