-- open_group.sql: how a pop meets a group: creates the queue, registers the group once, seeds its cursors.
-- In     p_contact 0 queue mode, 1 register, 2 pinned, 3 register as conflating, 4 the same and make no queue, 5 register and make no queue. p_mode all, new or timestamp (with p_start_at), used by a registration only.
-- Out    one row; none where there is no queue and none is made. registered: a record exists; made: it was made now.
-- Does   a registration makes a cursor in every partition of a small queue. Of a large one it keeps the instant by which cursors that are missing
--        are reckoned (queen.seed_of): the call takes as long whatever the queue holds.
--        A push that is stamped before that instant and commits after it is under way at the registration: a large queue's group may pass it by.
-- Locks  a registration: queue row FOR UPDATE, then it takes its time; provisioning holds that row FOR KEY SHARE, so no partition is
--        born meanwhile. Then partition rows FOR KEY SHARE in id order, against a cleanup, then cursor inserts in the same order.
--        Each waits at most 1 s: a seek or a deletion of a group may hold them for long, and a shard's cold calls go one behind another.
-- Again  harmless: the record and existing cursors stay as they are.
-- Caller src/store/cold.rs, open_group. Source: data plane 4.4, 4.10; rules 24 and 25.
drop function if exists queen.open_group(uuid, text, text, smallint, text, timestamptz);
create or replace function queen.open_group(
    p_tenant uuid,
    p_queue text,
    p_group text,
    p_contact smallint,
    p_mode text,
    p_start_at timestamptz
)
returns table (
    queue_id uuid,
    lease_time integer,
    retry_limit integer,
    dead_letter boolean,
    delayed_processing integer,
    window_buffer integer,
    dedup_window_seconds integer,
    min_pop_wait_time integer,
    encryption_enabled boolean,
    group_id bigint,
    registered boolean,
    conflation boolean,
    made boolean,
    completed_retention_seconds integer
)
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set enable_hashjoin = off
set lock_timeout = '1s'
as $$
#variable_conflict use_column
declare
    v_queue uuid;
    v_group bigint;
    v_mode text;
    v_at timestamptz;
    v_conflation boolean;
    v_registers constant boolean := p_contact in (1, 3, 4, 5);
    v_made boolean := false;
    -- Cursors made at once: a few tenths of a second, for which the queue's row is locked.
    v_seeds_max constant integer := 10000;
    v_few boolean;
begin
    if current_setting('synchronous_commit') not in ('on', 'remote_apply') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    if p_contact in (0, 1, 3) then
        perform queen.make_queues(array[p_tenant], array[p_queue]);
    end if;
    select q.id into v_queue from queen.queues as q where q.tenant_id = p_tenant and q.name = p_queue collate "C";
    if v_queue is null then
        return;
    end if;
    select g.id, g.mode, g.conflation
    into v_group, v_mode, v_conflation
    from queen.groups as g
    where g.queue_id = v_queue and g.name = p_group collate "C";

    if v_group is null or (v_registers and v_mode is null) then
        -- By number alone: with the tenant beside it a plan may walk over all queues of the tenant.
        if v_registers then
            perform from (select * from queen.queues as q where q.id = v_queue for update offset 0) as q
            where q.tenant_id = p_tenant;
        else
            perform from (select * from queen.queues as q where q.id = v_queue for key share offset 0) as q
            where q.tenant_id = p_tenant;
        end if;
        if not found then
            return; -- Deleted meanwhile: the caller asks again.
        end if;
        v_at := clock_timestamp();
        insert into queen.groups (queue_id, name) values (v_queue, p_group) on conflict do nothing;
        select g.id, g.mode, g.conflation
        into v_group, v_mode, v_conflation
        from queen.groups as g
        where g.queue_id = v_queue and g.name = p_group collate "C";
    end if;

    if v_registers and v_mode is null then
        v_made := true;
        v_conflation := p_contact in (3, 4);
        v_few := (
            select count(*)
            from (select from queen.partitions as p where p.queue_id = v_queue and p.id + 0 > 0 limit v_seeds_max + 1) as p
        ) <= v_seeds_max;
        update queen.groups as g
        set mode = p_mode,
            start_at = case p_mode when 'all' then 'epoch' when 'new' then v_at else p_start_at end,
            registered_at = v_at,
            -- What is pushed from now on is wanted, also of a timestamp to come.
            seed_at = case when not v_few then case p_mode when 'timestamp' then least(p_start_at, v_at) else v_at end end,
            conflation = v_conflation,
            high_water = coalesce((
                select p.id >> 12
                from queen.partitions as p
                where p.queue_id = v_queue and p.id + 0 > 0
                order by p.id + 0 desc
                limit 1
            ), 0)
        where g.id = v_group;
        v_mode := p_mode;
        insert into queen.cursors (partition_id, group_id, committed)
        select k.id, v_group,
            case p_mode
                when 'all' then k.log_start - 1
                when 'new' then k.last_offset
                else queen.offset_before(k.id, k.log_start, k.last_offset, p_start_at)
            end
        from (
            select p.id, p.log_start, p.last_offset
            from queen.partitions as p
            where p.queue_id = v_queue and p.id + 0 > 0 and v_few
            order by p.id + 0
            for key share
        ) as k
        on conflict do nothing;
    end if;

    return query
    select q.id, coalesce(q.lease_time, 60), q.retry_limit, q.dead_letter_queue or q.dlq_after_max_retries,
        q.delayed_processing, q.window_buffer, q.dedup_window_seconds, q.min_pop_wait_time, q.encryption_enabled,
        v_group, v_mode is not null, v_conflation, v_made, q.completed_retention_seconds
    from queen.queues as q
    where q.id = v_queue;
end;
$$;
