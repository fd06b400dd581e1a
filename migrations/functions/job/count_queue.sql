-- count_queue.sql: the reconciler's step: counts the next queue in id order and its groups; one queue per call, or one page of it.
-- In     p_args: after uuid text or null (a new pass); exact bigint (a database with no more partitions is counted by the pages
--        themselves: what was counted before is forgotten); ranks integer (partitions ranked per queue and per group, whose
--        oldest messages are looked up); skip boolean or null: the queue is only named, and what was counted of it forgotten.
--        page bigint or null: partitions and cursors of a step; null: all of the queue in one. walk uuid text or null: go on with this
--        queue instead. keepMs bigint: a queue whose last page is older is begun anew. Covers all tenants.
-- Out    {"queue":uuid or null,"left":bool}: the queue counted, or passed over; null: the pass is over. left: another page of it is due.
-- Does   each partition is counted once, as it is at that moment: a page is a few statements, and each sees what was committed before
--        it. A queue of one page is published at once. Of a larger one the sums so far are in queen.count_walks, and what pages of the
--        screen read changes with its last page. A group counts if it was there at the first.
-- Locks  the queue's row of queen.count_walks: two brokers' pages come one after the other.
-- Cost   `page` partitions and cursors, twice; a thousandth of `page` in partitions at least, however many groups there are.
-- Caller src/jobs.rs. Source: operations 5.7, STATS_INTERVAL_MS.
create or replace function queen.count_queue(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
set jit = off
set plan_cache_mode = force_custom_plan
as $$
declare
    v_page constant bigint := (p_args ->> 'page')::bigint;
    v_kept constant timestamptz
        := clock_timestamp() - coalesce((p_args ->> 'keepMs')::bigint, 600000) * interval '1 millisecond';
    v_queue uuid := (p_args ->> 'walk')::uuid;
    v_walk queen.count_walks;
    v_limit bigint;
    v_ids bigint[];
    v_next bigint;
begin
    if v_queue is null then
        if p_args ->> 'after' is null then
            if (
                select count(*) from (select from queen.partitions as p limit (p_args ->> 'exact')::bigint + 1) as p
            ) <= (p_args ->> 'exact')::bigint then
                delete from queen.queue_counts;
                delete from queen.group_counts;
                delete from queen.pending_ranks;
                delete from queen.lag_ranks;
                perform queen.forget_count(w.queue_id) from queen.count_walks as w;
                return json_build_object('queue', null);
            end if;
            delete from queen.queue_counts as k where not exists (select from queen.queues as q where q.id = k.queue_id);
            delete from queen.pending_ranks as n where not exists (select from queen.queues as q where q.id = n.queue_id);
            delete from queen.group_counts as k where not exists (select from queen.groups as g where g.id = k.group_id);
            delete from queen.lag_ranks as n where not exists (select from queen.groups as g where g.id = n.group_id);
            perform queen.forget_count(w.queue_id)
            from queen.count_walks as w
            where w.walked_at < v_kept or not exists (select from queen.queues as q where q.id = w.queue_id);
        end if;
        select q.id into v_queue
        from queen.queues as q
        where q.id > coalesce((p_args ->> 'after')::uuid, '00000000-0000-0000-0000-000000000000')
        order by q.id
        limit 1;
        if not found then
            return json_build_object('queue', null);
        end if;
    end if;
    if (p_args ->> 'skip')::boolean or not exists (select from queen.queues as q where q.id = v_queue) then
        perform queen.forget_count(v_queue);
        return json_build_object('queue', v_queue);
    end if;

    if v_page is not null then
        select * into v_walk from queen.count_walks as w where w.queue_id = v_queue for update;
        if v_walk.walked_at < v_kept then
            perform queen.forget_count(v_queue);
            v_walk := null;
        end if;
        if v_walk.queue_id is null and p_args ->> 'walk' is not null then
            -- Another broker did the rest.
            return json_build_object('queue', v_queue);
        end if;
    end if;
    v_walk.groups := array(
        select g.id
        from queen.groups as g
        where g.queue_id = v_queue and (v_walk.queue_id is null or g.id = any (v_walk.groups))
    );
    if v_page is not null then
        v_limit := greatest(v_page / (1 + cardinality(v_walk.groups)), v_page / 1000, 1);
    end if;
    v_ids := array(
        select p.id
        from queen.partitions as p
        where p.queue_id = v_queue and p.id + 0 >= coalesce(v_walk.next, 0)
        order by p.id + 0
        limit v_limit + 1
    );
    if cardinality(v_ids) > v_limit then
        v_next := v_ids[v_limit + 1];
        v_ids := v_ids[:v_limit];
        if v_walk.queue_id is null then
            insert into queen.count_walks as w (queue_id, groups)
            values (v_queue, v_walk.groups)
            on conflict on constraint count_walks_pk do nothing;
            if not found then
                -- Another broker began it meanwhile.
                return json_build_object('queue', v_queue);
            end if;
        end if;
    end if;
    v_walk.queue_id := v_queue;
    perform queen.count_page(v_walk, v_ids, v_next, (p_args ->> 'ranks')::integer);
    return json_build_object('queue', v_queue, 'left', v_next is not null);
end;
$$;
