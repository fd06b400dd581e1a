-- spool_floor.sql: now, or the oldest acceptance that some broker's spool still has: what evidence is counted from.
-- Locks  none.
-- Caller queen.forget_evidence, queen.retain_step, queen.cleanup_partitions. Source: rule 14.
create or replace function queen.spool_floor()
returns timestamptz
language sql volatile
begin atomic
    select least(clock_timestamp(), min(f.oldest_at))
    from queen.spool_floors as f
    where f.seen_at >= clock_timestamp() - interval '1 day';
end;
