-- find_dead_letter.sql: where one dead letter came from, before it is replayed.
-- In     p_args: id uuid text; or partition bigint and transaction text, for the newest of that message; payload
--        boolean: it comes along.
-- Out    {"id","queue","partition","encrypted","payload"}, or null. payload: hex, or null.
-- Locks  none.
-- Caller src/http/dead_letters.rs, src/jobs/redrive.rs. Source: data plane 9.4, 10.3.
create or replace function queen.find_dead_letter(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
begin
    if p_args ->> 'id' is not null then
        return (
            select json_build_object(
                'id', d.id, 'queue', q.name, 'partition', coalesce(p.name, 'Default'), 'encrypted', d.encrypted,
                'payload', case when (p_args ->> 'payload')::boolean then encode(d.payload, 'hex') end)
            from queen.dead_letters as d
            join queen.queues as q on q.id = d.queue_id
            left join queen.partitions as p on p.id = d.partition_id
            where d.id = (p_args ->> 'id')::uuid and q.tenant_id = p_tenant
        );
    end if;
    return (
        select json_build_object(
            'id', d.id, 'queue', q.name, 'partition', coalesce(p.name, 'Default'), 'encrypted', d.encrypted,
            'payload', case when (p_args ->> 'payload')::boolean then encode(d.payload, 'hex') end)
        from queen.dead_letters as d
        join queen.queues as q on q.id = d.queue_id
        left join queen.partitions as p on p.id = d.partition_id
        where d.partition_id = (p_args ->> 'partition')::bigint
            and d.transaction_id = p_args ->> 'transaction'
            and q.tenant_id = p_tenant
        order by d.failed_at desc, d.id
        limit 1
    );
end;
$$;
