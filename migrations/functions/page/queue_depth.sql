-- queue_depth.sql: how much of one queue waits, for one group or for the slowest.
-- In     p_args: queue text, group text or null, limit integer (partitions listed at most; the sums cover all).
-- Out    the page, with "partitionsTruncated":true where there are more partitions than are listed; or {"error":"Queue not found"}. A group that nobody knows waits for everything stored. Of a
--        conflating group, one message per partition counts.
-- Locks  none. Cost: the queue's partitions and cursors, unless the reconciler counted them; some index probes per listed
--        partition. No message is read.
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
    v_ids bigint[];
    v_page json;
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
    v_ids := array(
        select p.id
        from queen.partitions as p
        where p.queue_id = v_queue and p.name >= ''
        order by p.name
        limit (p_args ->> 'limit')::integer
    );
    v_page := (
        with summed as (
            select coalesce(sum(s.pending), 0) as pending, coalesce(sum(s.processing), 0) as processing,
                coalesce(sum(s.partitions_pending), 0) as partitions_pending,
                coalesce(sum(s.partitions_ready), 0) as partitions_ready
            from queen.queue_sums(array[v_queue], false, 0) as s
            where v_group is null
            having v_group is null
            union all
            select k.lag, k.processing, k.lagging, k.ready
            from queen.group_counts as k
            where k.group_id = v_group_id
            union all
            select
                coalesce(sum(w.pending), 0),
                coalesce(sum(least(w.pending, w.leased)), 0),
                count(*) filter (where w.pending > 0),
                count(*) filter (where w.pending > w.leased)
            from queen.group_depth(v_queue, v_group_id, null) as w
            where v_group is not null
            having v_group is not null
                and not exists (select from queen.group_counts as k where k.group_id = v_group_id)
        ),
        listed as (
            select c.name, c.pending, c.processing
            from queen.counts_of(v_ids) as c
            where v_group is null
            union all
            select w.name, w.pending, least(w.pending, w.leased)
            from queen.group_depth(v_queue, v_group_id, v_ids) as w
            where v_group is not null
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
    if exists (
        select from queen.partitions as p where p.queue_id = v_queue and p.name >= '' order by p.name
        offset (p_args ->> 'limit')::integer limit 1
    ) then
        v_page := (left(v_page::text, -1) || ', "partitionsTruncated" : true}')::json;
    end if;
    return v_page;
end;
$$;
