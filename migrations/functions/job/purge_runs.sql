-- purge_runs.sql: one bounded step of removing sealed runs that nobody needs: of deleted partitions, and of those that
--        are over since an hour, which a broker that is gone did not remove.
-- In     p_limit: a step ends with the run that reaches so many rows.
-- Out    rows removed; fewer than p_limit: nothing is left.
-- Locks  the rows, run by run, skipping runs that another broker works on.
-- Again  yes: call it until it returns less than p_limit.
-- Caller the cleanup job. Source: rule 13.
create or replace function queen.purge_runs(p_limit integer)
returns integer
language plpgsql volatile
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
    v_left integer := p_limit;
    v_id bigint := -1;
    v_base bigint;
    v_last bigint;
    v_floor timestamptz;
    v_run record;
    v_done integer;
begin
    while v_left > 0 loop
        -- From partition to partition, by the index.
        select r.partition_id into v_id
        from queen.window_runs as r
        where r.partition_id > v_id
        order by r.partition_id
        limit 1;
        exit when not found;

        -- Null: the partition is gone.
        select clock_timestamp() - make_interval(secs => q.dedup_window_seconds) - interval '1 hour' into v_floor
        from queen.partitions as p
        cross join lateral (select * from queen.queues as q where q.id = p.queue_id offset 0) as q
        where p.id = v_id;

        v_base := -1;
        v_last := -1;
        while v_left > 0 loop
            -- From run to run: the first row is -1, unless somebody meddled.
            select r.base_offset, r.last_offset, r.newest into v_run
            from queen.window_runs as r
            where r.partition_id = v_id and (r.base_offset, r.last_offset, r.row_no) > (v_base, v_last, 2147483647)
            order by r.partition_id, r.base_offset, r.last_offset, r.row_no
            limit 1;
            exit when not found;
            v_base := v_run.base_offset;
            v_last := v_run.last_offset;
            -- Stamps do not fall along offsets: behind a run that is needed there is nothing to remove.
            exit when v_floor <= v_run.newest;
            perform 1
            from queen.window_runs as r
            where r.partition_id = v_id and r.base_offset = v_base and r.last_offset = v_last
            order by r.row_no
            limit 1
            for update skip locked;
            continue when not found;
            delete from queen.window_runs as r
            where r.partition_id = v_id and r.base_offset = v_base and r.last_offset = v_last;
            get diagnostics v_done = row_count;
            v_left := v_left - v_done;
        end loop;
    end loop;
    return p_limit - greatest(v_left, 0);
end;
$$;
