-- queue_flags.sql: what a shard must know of a queue before it plans a push to it.
-- In     p_args: queue text.
-- Out    {"encrypted":bool}; false for a queue that does not exist.
-- Locks  none.
-- Caller src/flags.rs, src/jobs/redrive.rs. Source: operations 3.2.
create or replace function queen.queue_flags(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    return json_build_object('encrypted', exists (
        select 1
        from queen.queues as q
        where q.tenant_id = p_tenant and q.name = (p_args ->> 'queue') collate "C" and q.encryption_enabled
    ));
end;
$$;
