-- extend_lease.sql: extends every claim that one lease id of one tenant still holds.
-- In     p_args: lease uuid text, partition bigint (the first claim, out of the lease id), more boolean (others may
--        share it), wide boolean (also in other queues), seconds integer, at least 1. Time is PostgreSQL's, read after the locks.
-- Out    {"renewed":n,"expiresAt":text or null}: claims extended, and the earliest expiry among them (microseconds).
-- Locks  cursor rows in (partition, group) order, as everything that waits for them.
-- Cost   one index probe; with more, a pass over the cursors of that queue; with wide, over those of the tenant (a
--        discovery pop claims in several queues): no hot row has an index on the lease, it would end HOT updates.
-- Again  harmless. Never revives an expired claim, never shortens one. The row's version stays: what a broker
--        remembers of it is still true, but for an expiry that only SQL judges.
-- Caller src/http/lease.rs. Source: data plane 6; rule 22.
create or replace function queen.extend_lease(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_lease uuid := p_args ->> 'lease';
    v_first bigint := p_args ->> 'partition';
    v_seconds interval := make_interval(secs => (p_args ->> 'seconds')::double precision);
    v_found bigint[];
    v_renewed bigint;
    v_expires timestamptz;
begin
    if (p_args ->> 'more')::boolean and (p_args ->> 'wide')::boolean then
        v_found := array(
            select c.partition_id
            from queen.queues as r
            join queen.partitions as p on p.queue_id = r.id and p.id + 0 > 0
            join queen.cursors as c on c.partition_id = p.id
            where r.tenant_id = p_tenant and c.lease_id = v_lease
        );
    elsif (p_args ->> 'more')::boolean then
        v_found := array(
            select c.partition_id
            from queen.partitions as p
            join queen.cursors as c on c.partition_id = p.id
            where p.queue_id = (select f.queue_id from queen.partitions as f where f.id = v_first)
                and p.id + 0 > 0
                and c.lease_id = v_lease
        );
    else
        v_found := array[v_first];
    end if;

    perform 1
    from queen.cursors as c
    where c.partition_id = any (v_found)
        and c.lease_id = v_lease
        and exists (
            select 1
            from queen.partitions as p
            join queen.queues as r on r.id = p.queue_id
            where p.id = c.partition_id and r.tenant_id = p_tenant
        )
    order by c.partition_id, c.group_id
    for no key update of c;

    -- A statement of its own, so that rows which changed during the wait are seen as they are now.
    with extended as (
        update queen.cursors as c
        set lease_expires_at = greatest(c.lease_expires_at, clock_timestamp() + v_seconds)
        from queen.partitions as p, queen.queues as r
        where c.partition_id = any (v_found)
            and c.lease_id = v_lease
            and p.id = c.partition_id
            and r.id = p.queue_id
            and r.tenant_id = p_tenant
            and clock_timestamp() < c.lease_expires_at
        returning c.lease_expires_at
    )
    select count(*), min(e.lease_expires_at) into v_renewed, v_expires from extended as e;
    return json_build_object('renewed', v_renewed, 'expiresAt', queen.utc_us(v_expires));
end;
$$;
