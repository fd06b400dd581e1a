-- list_partitions.sql: a tenant's partitions, most pending first.
-- In     p_args: queue text or null (all queues), limit integer.
-- Out    {"partitions":[...]}. lagSeconds: age of the oldest pending message, 0 when none. Of queues that the reconciler
--        counted, those are ranked that had the most pending messages then; figures are of now.
-- Locks  none. Cost: partitions and cursors of queues that were not counted; some index probes per listed partition.
-- Caller src/http/resources.rs. Source: data plane 16.1.
create or replace function queen.list_partitions(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_limit constant integer := (p_args ->> 'limit')::integer;
    v_counted uuid[];
    v_others uuid[];
    v_ids bigint[];
begin
    select array_agg(r.id) filter (where k.queue_id is not null), array_agg(r.id) filter (where k.queue_id is null)
    into v_counted, v_others
    from queen.queues as r
    left join queen.queue_counts as k on k.queue_id = r.id
    where r.tenant_id = p_tenant and (p_args ->> 'queue' is null or r.name = p_args ->> 'queue');
    v_ids := array(
        select f.partition_id
        from (
            select c.partition_id, c.pending, c.queue_id, c.name
            from queen.partition_counts(v_others) as c
            union all
            select n.partition_id, n.pending, n.queue_id, ''
            from queen.pending_ranks as n
            where n.queue_id = any (v_counted)
        ) as f
        join queen.queues as q on q.id = f.queue_id
        order by f.pending desc, q.name, f.name
        limit v_limit
    );
    return (
        select json_build_object('partitions', coalesce(json_agg(
            json_build_object(
                'queue', q.name,
                'partition', l.name,
                'id', l.partition_id::text,
                'pending', l.pending,
                'processing', l.processing,
                'lagSeconds', case when l.pending > 0 then greatest(0, coalesce(floor(extract(epoch from
                    statement_timestamp() - o.created_at)), 0))::bigint else 0 end
            )
            order by l.pending desc, q.name, l.name
        ), '[]'))
        from queen.counts_of(v_ids) as l
        join queen.queues as q on q.id = l.queue_id
        left join lateral queen.stored_at(l.partition_id, l.wanted) as o on l.pending > 0
    );
end;
$$;
