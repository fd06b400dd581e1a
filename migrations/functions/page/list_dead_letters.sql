-- list_dead_letters.sql: one page of dead letters, newest failure first.
-- In     p_args: queue, group text or null (exact); limit, offset, bytes integer: payloads come along until together
--        they reach bytes.
-- Out    {"rows":[...],"total":n}. payload is hex, null where the page had no room for it. total: all that match.
-- Locks  none. Cost: the newest limit + offset rows of each queue asked for, by index, and counting what matches.
-- Caller src/http/dead_letters.rs. Source: data plane 10.1.
create or replace function queen.list_dead_letters(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_group text := p_args ->> 'group';
    v_queues uuid[];
begin
    v_queues := array(
        select q.id
        from queen.queues as q
        where q.tenant_id = p_tenant and (p_args ->> 'queue' is null or q.name = p_args ->> 'queue')
    );
    return (
        with page as (
            select d.*
            from unnest(v_queues) as q (id)
            cross join lateral (
                select l.id, l.failed_at
                from queen.dead_letters as l
                where l.queue_id = q.id and (v_group is null or l.group_name = v_group)
                order by l.failed_at desc, l.id
                limit (p_args ->> 'limit')::bigint + (p_args ->> 'offset')::bigint
            ) as n
            join queen.dead_letters as d on d.id = n.id
            order by n.failed_at desc, n.id
            limit (p_args ->> 'limit')::bigint
            offset (p_args ->> 'offset')::bigint
        ),
        sized as (
            select p.*, sum(octet_length(p.payload)) over (order by p.failed_at desc, p.id) as bytes
            from page as p
        )
        select json_build_object(
            'rows', coalesce(json_agg(
                json_build_object(
                    'id', s.id,
                    'transactionId', s.transaction_id,
                    'partitionId', s.partition_id::text,
                    'queue', q.name,
                    'partition', p.name,
                    'group', s.group_name,
                    'error', s.error,
                    'retryCount', s.retry_count,
                    'encrypted', s.encrypted,
                    'failedAt', queen.utc_ms(s.failed_at),
                    'payload', case
                        when s.bytes <= (p_args ->> 'bytes')::bigint or s.bytes = octet_length(s.payload)
                        then encode(s.payload, 'hex')
                    end
                )
                order by s.failed_at desc, s.id
            ), '[]'),
            'total', (
                select count(*)
                from queen.dead_letters as d
                where d.queue_id = any (v_queues) and (v_group is null or d.group_name = v_group)
            )
        )
        from sized as s
        join queen.queues as q on q.id = s.queue_id
        left join queen.partitions as p on p.id = s.partition_id
    );
end;
$$;
