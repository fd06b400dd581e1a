-- list_partitions.sql: a tenant's partitions, most pending first.
-- In     p_args: queue text or null (all queues), limit integer.
-- Out    {"partitions":[...]}. lagSeconds: age of the oldest pending message, 0 when none.
-- Locks  none. Cost: the partitions and cursors of the queues asked for; an index probe per listed partition.
-- Caller src/http/resources.rs. Source: data plane 16.1.
create or replace function queen.list_partitions(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_ids uuid[];
begin
    v_ids := array(
        select r.id
        from queen.queues as r
        where r.tenant_id = p_tenant
            and (p_args ->> 'queue' is null or r.name = p_args ->> 'queue')
    );
    return (
        with listed as (
            select q.name as queue, c.*
            from queen.partition_counts(v_ids) as c
            join queen.queues as q on q.id = c.queue_id
            order by c.pending desc, q.name, c.name
            limit (p_args ->> 'limit')::integer
        )
        select json_build_object('partitions', coalesce(json_agg(
            json_build_object(
                'queue', l.queue,
                'partition', l.name,
                'id', l.partition_id::text,
                'pending', l.pending,
                'processing', l.processing,
                'lagSeconds', case when l.pending > 0 then greatest(0, coalesce(floor(extract(epoch from
                    statement_timestamp() - queen.message_time(l.partition_id, l.wanted))), 0))::bigint else 0 end
            )
            order by l.pending desc, l.queue, l.name
        ), '[]'))
        from listed as l
    );
end;
$$;
