-- queue_depth.sql: how much of one queue waits, for one group or for the slowest.
-- In     p_args: queue text, group text or null, limit integer (partitions listed at most; the sums cover all).
-- Out    the page, or {"error":"Queue not found"}. A group without a cursor waits for everything stored. Of a
--        conflating group, one message per partition counts.
-- Locks  none. Cost: the queue's partitions and cursors; no message is read.
-- Caller src/http/resources.rs. Source: data plane 8.6; operations 5.8.3.
create or replace function queen.queue_depth(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_queue uuid;
    v_group text := p_args ->> 'group';
    v_group_id bigint;
    v_conflation boolean := false;
begin
    select r.id into v_queue
    from queen.queues as r
    where r.tenant_id = p_tenant and r.name = p_args ->> 'queue';
    if not found then
        return json_build_object('error', 'Queue not found');
    end if;
    if v_group is not null then
        select g.id, g.conflation into v_group_id, v_conflation
        from queen.groups as g
        where g.queue_id = v_queue and g.name = v_group;
        v_conflation := coalesce(v_conflation, false);
    end if;
    return (
        with counted as materialized (
            select c.name, c.pending, c.processing
            from queen.partition_counts(array[v_queue]) as c
            where v_group is null
            union all
            select
                w.name,
                w.pending,
                least(w.pending, coalesce(w.leased, 0)) as processing
            from (
                select
                    p.name,
                    greatest(0, p.last_offset - greatest(coalesce(c.committed, -1), p.log_start - 1)) as pending,
                    case when c.lease_expires_at > statement_timestamp() then c.batch_end - c.committed end as leased
                from queen.partitions as p
                left join queen.cursors as c on c.partition_id = p.id and c.group_id = v_group_id
                where p.queue_id = v_queue and v_group is not null
            ) as w
        ),
        summed as (
            select
                coalesce(sum(c.pending), 0) as pending,
                coalesce(sum(c.processing), 0) as processing,
                count(*) filter (where c.pending > 0) as partitions_pending,
                count(*) filter (where c.pending > c.processing) as partitions_ready
            from counted as c
        ),
        listed as (
            select *
            from counted as c
            order by c.name
            limit (p_args ->> 'limit')::integer
        )
        select json_build_object(
            'queue', p_args ->> 'queue',
            'group', v_group,
            'pending', s.pending,
            'processing', s.processing,
            'ready', s.pending - s.processing,
            'partitionsPending', s.partitions_pending,
            'partitionsReady', s.partitions_ready,
            'conflation', v_conflation,
            'effectivePending', case when v_conflation then s.partitions_pending else s.pending end,
            'effectiveReady', case when v_conflation then s.partitions_ready else s.pending - s.processing end,
            'partitions', coalesce((
                select json_agg(
                    json_build_object(
                        'partition', l.name,
                        'pending', l.pending,
                        'processing', l.processing,
                        'ready', l.pending - l.processing
                    )
                    order by l.name
                )
                from listed as l
            ), '[]')
        )
        from summed as s
    );
end;
$$;
