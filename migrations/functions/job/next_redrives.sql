-- next_redrives.sql: the dead letters that every running redrive moves in its next second.
-- In     p_args: limit integer (redrives at most).
-- Out    an array of {"redrive","tenant","rows":[{"id","queue","partition","failedAt"}]}, queue and partition being the
--        destination. One that finds no row is done.
-- Locks  rows of redrives that end here.
-- Cost   the rows, by index. Oldest failures first.
-- Caller src/jobs/redrive.rs.
create or replace function queen.next_redrives(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_redrive queen.redrives;
    v_rows json;
    v_out json[] := '{}';
begin
    for v_redrive in
        select * from queen.redrives as r
        where r.state = 'running'
        order by r.updated_at
        limit (p_args ->> 'limit')::integer
    loop
        select json_agg(
            json_build_object(
                'id', n.id,
                'queue', coalesce(v_redrive.to_queue, v_redrive.queue),
                'partition', coalesce(v_redrive.to_partition, n.partition, 'Default'),
                'failedAt', queen.utc_us(n.failed_at)
            )
            order by n.failed_at, n.id desc
        )
        into v_rows
        from (
            select d.id, d.failed_at, p.name as partition
            from queen.queues as q
            join queen.dead_letters as d on d.queue_id = q.id
            left join queen.partitions as p on p.id = d.partition_id
            where q.tenant_id = v_redrive.tenant_id
                and q.name = v_redrive.queue
                and (v_redrive.group_name is null or d.group_name = v_redrive.group_name)
                and (v_redrive.error is null or position(v_redrive.error in d.error) > 0)
                and d.failed_at >= greatest(v_redrive.failed_from, v_redrive.after_at)
                and (d.failed_at > v_redrive.after_at or d.id < v_redrive.after_id)
                and d.failed_at <= v_redrive.failed_to
            order by d.failed_at, d.id desc
            limit v_redrive.rate
        ) as n;
        if v_rows is null then
            update queen.redrives as r
            set state = 'done', finished_at = clock_timestamp(), updated_at = clock_timestamp()
            where r.id = v_redrive.id and r.state = 'running';
        else
            v_out := v_out || json_build_object('redrive', v_redrive.id, 'tenant', v_redrive.tenant_id, 'rows', v_rows);
        end if;
    end loop;
    return array_to_json(v_out);
end;
$$;
