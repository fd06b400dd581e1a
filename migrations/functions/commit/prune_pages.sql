-- prune_pages.sql: clears dead versions from pages that a commit has written to, so that the next ones find room there.
-- In     p_places: where its rows lay, null where that is not known; p_turn: another number at each commit.
-- Out    nothing. Of a commit over many rows an eighth of their pages is looked at, four at least, others the next time: a page has room for twenty to
--        thirty dead versions.
-- Why    PostgreSQL clears a page when a scan reads it, not when a row is fetched by its place; and a unique index, which looked at a row's
--        versions before it took a new one, is not there any more (0019). With neither two updates of five left their page, with such an
--        index one, with this one of five hundred.
-- Locks  none. Cost: some microseconds a page.
-- Caller queen.append, queen.move_cursors. Source: architecture (Statements).
create or replace function queen.prune_pages(p_table text, p_places tid[], p_turn bigint)
returns void
language plpgsql volatile
set enable_seqscan = off
as $$
declare
    v_all constant integer := cardinality(p_places);
    v_pages constant integer := least(v_all, greatest(4, v_all / 8));
    v_block bigint;
    v_last bigint := -1;
begin
    for n in 0 .. v_pages - 1 loop
        v_block := (p_places[1 + (p_turn + n * v_all / v_pages) % v_all]::text::point)[0];
        continue when v_block is null or v_block = v_last;
        v_last := v_block;
        if p_table = 'partitions' then
            perform from queen.partitions as p
            where p.ctid >= format('(%s,0)', v_block)::tid and p.ctid < format('(%s,0)', v_block + 1)::tid;
        else
            perform from queen.cursors as c
            where c.ctid >= format('(%s,0)', v_block)::tid and c.ctid < format('(%s,0)', v_block + 1)::tid;
        end if;
    end loop;
end;
$$;
