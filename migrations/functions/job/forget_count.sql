-- forget_count.sql: forgets what was counted of a queue that was not counted to its end, or what its last page has published.
-- In     p_queue. Out nothing. Locks the queue's row of queen.count_walks.
-- Caller count_queue, count_page.
create or replace function queen.forget_count(p_queue uuid)
returns void
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
    delete from queen.count_walks as w where w.queue_id = p_queue;
    delete from queen.count_walk_groups as k where k.queue_id = p_queue;
    delete from queen.count_walk_ranks as r where r.queue_id = p_queue;
end;
$$;
