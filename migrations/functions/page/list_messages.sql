-- list_messages.sql: one page of stored messages, newest first.
-- In     p_args: queue, partition, namespace, task, status text or null; from and to text or null (the last hour; the
--        whole minute of `to` belongs to it); limit, offset integer; scan integer (messages judged at most when a status is asked for); partitions integer (looked
--        into at most, those written last); bytes integer (stored bodies on the page; the row that goes beyond ends it,
--        but the first always comes).
-- Out    {"rows":[...],"segments":[...],"queueMode":bool,"groups":n}. Bodies are hex, in segments.
-- Locks  none. Cost: the partition rows of the queues asked for, once; then, of each partition that may be on the page, a few
--        segments, and those down to the stamp above which enough messages lie. Bodies of the page only.
-- Caller src/http/messages.rs. Source: data plane 9.1.
create or replace function queen.list_messages(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set plan_cache_mode = force_custom_plan
set jit = off
as $$
declare
    v_from timestamptz := coalesce((p_args ->> 'from')::timestamptz, clock_timestamp() - interval '1 hour');
    v_to timestamptz := date_trunc('minute', coalesce((p_args ->> 'to')::timestamptz, clock_timestamp()))
        + interval '1 minute';
    v_status text := p_args ->> 'status';
    v_limit integer := (p_args ->> 'limit')::integer;
    v_offset integer := (p_args ->> 'offset')::integer;
    v_partitions constant integer := (p_args ->> 'partitions')::integer;
    v_queues uuid[];
    v_since timestamptz;
    v_ids bigint[];
    v_want integer;
begin
    v_queues := array(
        select q.id
        from queen.queues as q
        where q.tenant_id = p_tenant
            and (p_args ->> 'queue' is null or q.name = p_args ->> 'queue')
            and (p_args ->> 'namespace' is null or q.namespace = p_args ->> 'namespace')
            and (p_args ->> 'task' is null or q.task = p_args ->> 'task')
    );
    -- The stamp at or above which there were enough partitions when they were counted: stamps only grow, so most rows are
    -- passed over here and never sorted.
    v_since := (
        select max(r.stamp)
        from (
            select u.stamp, sum(u.adds) over (order by u.stamp desc) as reached
            from queen.queue_counts as k
            cross join lateral unnest(k.recent_at, array[1, 9, 90, 900]) as u (stamp, adds)
            where k.queue_id = any (v_queues) and u.stamp is not null
        ) as r
        where r.reached >= v_partitions and p_args ->> 'partition' is null
    );
    loop
        v_ids := array(
            select p.id
            from queen.partitions as p
            where p.queue_id = any (v_queues)
                and (p_args ->> 'partition' is null and p.id + 0 > 0 or p.name = p_args ->> 'partition')
                and p.last_created_at >= greatest(v_from, v_since)
                and p.last_offset >= p.log_start
            order by p.last_created_at desc
            limit v_partitions
        );
        exit when v_since is null or v_since <= v_from or cardinality(v_ids) = v_partitions;
        -- Some were deleted or emptied since.
        v_since := null;
    end loop;
    v_want := case when v_status is null then v_limit + v_offset else (p_args ->> 'scan')::integer end;
    return (
        with candidate as materialized (
            select p.id, p.log_start, p.last_offset, p.last_created_at, p.name as partition, q.name as queue,
                q.namespace, q.task, q.priority, row_number() over (order by p.last_created_at desc) as place
            from unnest(v_ids) as a (id)
            cross join lateral (select * from queen.partitions as p where p.id = a.id offset 0) as p
            join queen.queues as q on q.id = p.queue_id
            where p.last_offset >= p.log_start
        ),
        -- Each partition has a message at its newest stamp: so many of them at or above this one are enough.
        likely as materialized (
            select c.*, count(*) over () as n,
                -- Of a partition written at or after v_to: what was stored before.
                case when c.last_created_at < v_to then c.last_offset
                    else queen.offset_before(c.id, c.log_start, c.last_offset, v_to) end as upto
            from candidate as c
            where c.last_created_at >= coalesce((
                select f.last_created_at
                from candidate as f
                where f.place = v_want and v_to > (select max(x.last_created_at) from candidate as x)
            ), v_from)
        ),
        -- The newest few of each: enough of them lie at or above the stamp at which their sum reaches what is wanted.
        floor as (
            select coalesce(max(r.created_at) filter (where r.reached >= v_want), v_from) as stamp
            from (
                select m.created_at, sum(m.count) over (order by m.created_at desc) as reached
                from likely as l
                cross join lateral (
                    select s.created_at, s.count
                    from queen.segments as s
                    where s.partition_id = l.id and s.base_offset between l.log_start and l.upto
                    order by s.base_offset desc
                    limit greatest(1, 2 * v_want / l.n)
                ) as m
                where m.created_at >= v_from
            ) as r
        ),
        picked as materialized (
            select c.id, m.base_offset, m.created_at, m.base_offset + i as at, i
            from floor as f
            cross join likely as c
            cross join lateral queen.recent_segments(
                c.id, c.log_start, c.upto, f.stamp, v_want
            ) as m
            cross join lateral generate_series(0, m.count - 1) as i
            where c.last_created_at >= f.stamp
            order by m.created_at desc, m.base_offset + i desc, c.id
            limit case when v_status is null then v_limit else v_want end
            offset case when v_status is null then v_offset else 0 end
        ),
        judged as materialized (
            select k.*, s.*
            from picked as k
            cross join lateral queen.message_standing(k.id, k.at) as s
        ),
        paged as materialized (
            select *
            from judged as j
            where v_status is null or j.status = v_status
            order by j.created_at desc, j.at desc, j.id
            limit v_limit
            offset case when v_status is null then 0 else v_offset end
        ),
        first_seen as (
            select g.id, g.base_offset, min(g.place) as place
            from (
                select p.id, p.base_offset, row_number() over (order by p.created_at desc, p.at desc, p.id) as place
                from paged as p
            ) as g
            group by g.id, g.base_offset
        ),
        body as materialized (
            select f.id, f.base_offset, f.place, s.count, s.codec, s.frame_flags, s.raw_len, s.body,
                sum(octet_length(s.body)) over (order by f.place) as bytes
            from first_seen as f
            -- Row by row through the index, however small the table is.
            cross join lateral (
                select * from queen.segments as s where s.partition_id = f.id and s.base_offset = f.base_offset offset 0
            ) as s
        ),
        given as (
            select * from body as b where b.place = 1 or b.bytes <= (p_args ->> 'bytes')::bigint
        )
        select json_build_object(
            'rows', coalesce((
                select json_agg(
                    json_build_object(
                        'partitionId', p.id::text,
                        'base', p.base_offset,
                        'index', p.i,
                        'queue', c.queue,
                        'partition', c.partition,
                        'namespace', c.namespace,
                        'task', c.task,
                        'priority', c.priority,
                        'status', p.status,
                        'consumedBy', p.consumed_by,
                        'totalGroups', p.total_groups,
                        'createdAt', queen.utc_ms(p.created_at),
                        'lease', queen.utc_ms(p.lease)
                    )
                    order by p.created_at desc, p.at desc, p.id
                )
                from paged as p
                join candidate as c on c.id = p.id
                join given as g on g.id = p.id and g.base_offset = p.base_offset
            ), '[]'),
            'segments', coalesce((
                select json_agg(json_build_object(
                    'partitionId', g.id::text, 'base', g.base_offset, 'count', g.count, 'codec', g.codec,
                    'flags', g.frame_flags, 'rawLen', g.raw_len, 'body', encode(g.body, 'hex')
                ))
                from given as g
            ), '[]'),
            'queueMode', coalesce((select bool_or(p.queue_mode) from paged as p), false),
            'groups', coalesce((select max(p.total_groups) from paged as p), 0)
        )
    );
end;
$$;
