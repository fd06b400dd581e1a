-- measure_retained.sql: measures the stored segments of the next queue in id order; one queue per call, or one page of it.
-- In     p_args: after uuid text or null (the last queue measured); skip boolean or null: the queue is only named, and what was
--        measured of it forgotten. page, messages bigint or null: partitions and messages of a step at most; null: all of the
--        queue in one. walk uuid text or null: go on with this queue instead. keepMs bigint: a queue whose last page is older is begun anew.
--        Covers all tenants.
-- Out    {"queue":uuid or null,"left":bool}: the queue measured, or passed over; null: there is none after that one. left: another
--        page of it is due.
-- Does   a large partition is read in slices of its offsets. What was found so far is in queen.measure_walks; the size that is shown changes
--        with the last page.
-- Locks  the queue's row of queen.measure_walks: two brokers' pages come one after the other.
-- Cost   the page's segment rows, of which there are no more than messages, not their bodies (their length is in the row).
-- Caller the retained-bytes job. Source: operations 5.8.1, RETAINED_BYTES_INTERVAL_MS.
create or replace function queen.measure_retained(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
set enable_seqscan = off
as $$
declare
    v_page constant bigint := (p_args ->> 'page')::bigint;
    v_messages constant numeric := coalesce((p_args ->> 'messages')::numeric, 'infinity');
    v_kept constant timestamptz
        := clock_timestamp() - coalesce((p_args ->> 'keepMs')::bigint, 600000) * interval '1 millisecond';
    v_queue uuid := (p_args ->> 'walk')::uuid;
    v_walk queen.measure_walks;
    v_from bigint;
    v_read record;
    v_next bigint;
    v_next_offset bigint;
begin
    if v_queue is null then
        if p_args ->> 'after' is null then
            delete from queen.queue_sizes as z
            where not exists (select 1 from queen.queues as r where r.id = z.queue_id);
            delete from queen.measure_walks as w
            where w.walked_at < v_kept or not exists (select 1 from queen.queues as r where r.id = w.queue_id);
        end if;
        select r.id into v_queue
        from queen.queues as r
        where r.id > coalesce((p_args ->> 'after')::uuid, '00000000-0000-0000-0000-000000000000')
        order by r.id
        limit 1;
        if not found then
            return json_build_object('queue', null);
        end if;
    end if;
    if (p_args ->> 'skip')::boolean or not exists (select 1 from queen.queues as r where r.id = v_queue) then
        delete from queen.measure_walks as w where w.queue_id = v_queue;
        return json_build_object('queue', v_queue);
    end if;

    if v_page is not null then
        select * into v_walk from queen.measure_walks as w where w.queue_id = v_queue for update;
        if v_walk.walked_at < v_kept then
            delete from queen.measure_walks as w where w.queue_id = v_queue;
            v_walk := null;
        end if;
        if v_walk.queue_id is null and p_args ->> 'walk' is not null then
            -- Another broker did the rest.
            return json_build_object('queue', v_queue);
        end if;
    end if;
    v_from := coalesce(v_walk.partition_id, 0);

    with page as (
        select p.id, p.log_start, p.last_offset, case when p.id = v_from then v_walk.next_offset else 0 end as first
        from queen.partitions as p
        where p.queue_id = v_queue and p.id + 0 >= v_from
        order by p.id + 0
        limit v_page
    ),
    summed as (
        select p.id, p.first, greatest(p.first, p.log_start) as start,
            sum(greatest(0, p.last_offset + 1 - greatest(p.first, p.log_start))) over (order by p.id) as messages,
            greatest(0, p.last_offset + 1 - greatest(p.first, p.log_start)) as own
        from page as p
    ),
    taken as materialized (
        -- One that does not fit is cut at the offset where the page is full.
        select l.id, l.first,
            case when l.messages > v_messages then l.start + (v_messages - (l.messages - l.own))::bigint end as below
        from summed as l
        where l.messages - l.own < v_messages
    )
    select max(t.id) as id, max(t.below) as below, sum(s.segments) as segments, sum(s.bytes) as bytes
    into v_read
    from taken as t
    -- Partition by partition through the index, however many there are.
    cross join lateral (
        select count(*) as segments, coalesce(sum(octet_length(s.body) + octet_length(s.keys)), 0) as bytes
        from queen.segments as s
        -- An `or` would be no bound of the index: each slice would read to the end of its partition.
        where s.partition_id = t.id and s.base_offset >= t.first
            and s.base_offset < coalesce(t.below, 9223372036854775807)
    ) as s;
    if v_read.below is not null then
        v_next := v_read.id;
        v_next_offset := v_read.below;
    elsif v_page is not null then
        v_next := (
            select p.id
            from queen.partitions as p
            where p.queue_id = v_queue and p.id + 0 > coalesce(v_read.id, v_from)
            order by p.id + 0
            limit 1
        );
        v_next_offset := 0;
    end if;

    if v_next is null then
        insert into queen.queue_sizes as z (queue_id, segments, bytes)
        values (
            v_queue,
            coalesce(v_walk.segments, 0) + coalesce(v_read.segments, 0), coalesce(v_walk.bytes, 0) + coalesce(v_read.bytes, 0)
        )
        on conflict on constraint queue_sizes_pk do update
        set segments = excluded.segments, bytes = excluded.bytes, measured_at = clock_timestamp();
        delete from queen.measure_walks as w where w.queue_id = v_queue and v_walk.queue_id is not null;
    else
        insert into queen.measure_walks as w (queue_id, partition_id, next_offset, segments, bytes)
        values (
            v_queue, v_next, v_next_offset,
            -- No partition was there, and one was born since.
            coalesce(v_walk.segments, 0) + coalesce(v_read.segments, 0), coalesce(v_walk.bytes, 0) + coalesce(v_read.bytes, 0)
        )
        on conflict on constraint measure_walks_pk do update
        set (partition_id, next_offset, segments, bytes, walked_at)
            = (excluded.partition_id, excluded.next_offset, excluded.segments, excluded.bytes, clock_timestamp())
        where v_walk.queue_id is not null;
    end if;
    return json_build_object('queue', v_queue, 'left', v_next is not null);
end;
$$;
