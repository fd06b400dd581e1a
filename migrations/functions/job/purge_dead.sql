-- purge_dead.sql: one bounded step of removing what deleted queues left behind.
-- In     p_limit: rows deleted at most.
-- Out    rows deleted; fewer than p_limit: nothing is left that nobody else works on.
-- Locks  dead ids, skipping those another broker works on, and rows that nothing else can reach.
-- Again  yes: call it until it returns less than p_limit.
-- Caller the cleanup job. Source: rule 3.
create or replace function queen.purge_dead(p_limit integer)
returns integer
language plpgsql volatile
as $$
declare
    v_left integer := p_limit;
    v_id bigint;
    v_done integer;
begin
    -- A queue whose deletion was interrupted.
    if (queen.drop_queue(null, json_build_object('queue', null, 'limit', p_limit)::jsonb) ->> 'left')::boolean then
        return p_limit;
    end if;
    while v_left > 0 loop
        select d.partition_id into v_id
        from queen.dead_partitions as d
        order by d.partition_id
        limit 1
        for update skip locked;
        exit when not found;

        delete from queen.segments as s
        where s.partition_id = v_id and s.base_offset <= (
            select max(n.base_offset)
            from (
                select t.base_offset
                from queen.segments as t
                where t.partition_id = v_id
                order by t.base_offset
                limit v_left
            ) as n
        );
        get diagnostics v_done = row_count;
        v_left := v_left - v_done;
        continue when v_left = 0;

        delete from queen.evidence as e
        where e.partition_id = v_id and e.base_offset <= (
            select max(n.base_offset)
            from (
                select t.base_offset
                from queen.evidence as t
                where t.partition_id = v_id
                order by t.base_offset
                limit v_left
            ) as n
        );
        get diagnostics v_done = row_count;
        v_left := v_left - v_done;
        continue when v_left = 0;

        -- Dead letters of an ack that was in flight when the queue was deleted.
        delete from queen.dead_letters as d where d.partition_id = v_id;
        delete from queen.dead_partitions as d where d.partition_id = v_id;
        v_left := v_left - 1;
    end loop;
    return p_limit - v_left;
end;
$$;
