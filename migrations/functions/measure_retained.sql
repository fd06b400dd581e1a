-- measure_retained.sql: measures the stored segments of the next queue in id order; one queue per call.
-- In     p_args: after uuid text or null (the last queue measured); skip boolean or null: the queue is only named. Covers all
--        tenants.
-- Out    {"queue":uuid or null}: the queue measured, or passed over; null: there is none after that one.
-- Locks  none that waits. Cost: every segment row of the queue, not its bodies (their length is in the row).
-- Caller the retained-bytes job. Source: operations 5.8.1, RETAINED_BYTES_INTERVAL_MS.
create or replace function queen.measure_retained(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
as $$
declare
    v_queue uuid;
begin
    if p_args ->> 'after' is null then
        delete from queen.queue_sizes as z
        where not exists (select 1 from queen.queues as r where r.id = z.queue_id);
    end if;

    select r.id into v_queue
    from queen.queues as r
    where r.id > coalesce((p_args ->> 'after')::uuid, '00000000-0000-0000-0000-000000000000')
    order by r.id
    limit 1;
    if found and (p_args ->> 'skip')::boolean is not true then
        insert into queen.queue_sizes as z (queue_id, segments, bytes)
        select v_queue, count(s.partition_id), coalesce(sum(octet_length(s.body) + octet_length(s.keys)), 0)
        from queen.partitions as p
        left join queen.segments as s on s.partition_id = p.id
        where p.queue_id = v_queue
        on conflict on constraint queue_sizes_pk do update
        set segments = excluded.segments, bytes = excluded.bytes, measured_at = clock_timestamp();
    end if;
    return json_build_object('queue', v_queue);
end;
$$;
