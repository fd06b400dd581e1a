-- queue_flags.sql: what a shard must know of queues before it plans a push to them.
-- In     p_args: queues, an array of names. It must be there: none of them encrypted is what an older broker, which names one queue
--        in another way, would read out of an empty answer; an error stops what it was about to store in plain.
-- Out    a JSON array of those that are encrypted, [] for none. A queue that does not exist is not.
-- Locks  none. Costs one index probe per name.
-- Caller src/core_thread.rs, src/jobs/redrive.rs. Source: operations 3.2.
create or replace function queen.queue_flags(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    if p_args -> 'queues' is null then
        raise exception 'queue_flags: `queues` is missing' using errcode = 'invalid_parameter_value';
    end if;
    return (
        select coalesce(json_agg(q.name), '[]')
        from jsonb_array_elements_text(p_args -> 'queues') as n (name)
        cross join lateral (
            select q.name
            from queen.queues as q
            where q.tenant_id = p_tenant and q.name = n.name collate "C" and q.encryption_enabled
            offset 0
        ) as q
    );
end;
$$;
