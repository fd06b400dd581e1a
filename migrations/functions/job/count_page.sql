-- count_page.sql: counts a page of a queue's partitions and of its groups' cursors, and adds what was counted of the pages before.
-- In     p_walk: the queue, its groups, and what was counted until there; `next` null or 0: this is its first page. p_ids: the page's
--        partitions. p_next: the partition at which the page after this one begins; null: this is the last one. p_ranks:
--        partitions ranked per queue and group.
-- Does   the last page publishes: what pages of the screen read changes, and what was kept until then goes. The others only keep.
-- Locks  none that waits, beside the row of queen.count_walks, which the caller has.
-- Cost   the partitions and cursors of the page, twice, and the ranks.
-- Caller count_queue. Source: operations 5.7.
create or replace function queen.count_page(p_walk queen.count_walks, p_ids bigint[], p_next bigint, p_ranks integer)
returns void
language plpgsql volatile
as $$
begin
    perform queen.count_page_partitions(p_walk, p_ids, p_next, p_ranks);
    perform queen.count_page_cursors(p_walk, p_ids, p_next, p_ranks);
    if p_next is null and coalesce(p_walk.next, 0) > 0 then
        perform queen.forget_count(p_walk.queue_id);
    end if;
end;
$$;
