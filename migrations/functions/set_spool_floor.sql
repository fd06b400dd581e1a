-- set_spool_floor.sql: a broker says what its spool may still need of the dedup evidence.
-- In     p_args: broker uuid, oldestMs bigint (acceptance of its oldest undrained record, ms since 1970), absent: none.
-- Out    {"floors":n}: brokers with undrained records.
-- Locks  its row.
-- Again  harmless.
-- Caller src/control.rs. Source: architecture 13, rule 14.
create or replace function queen.set_spool_floor(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
as $$
begin
    if p_args ? 'oldestMs' then
        insert into queen.spool_floors as f (broker, oldest_at)
        values ((p_args ->> 'broker')::uuid, to_timestamp((p_args ->> 'oldestMs')::bigint / 1000.0))
        on conflict on constraint spool_floors_pk do update
        set oldest_at = excluded.oldest_at, seen_at = clock_timestamp();
    else
        delete from queen.spool_floors as f where f.broker = (p_args ->> 'broker')::uuid;
    end if;
    delete from queen.spool_floors as f where f.seen_at < clock_timestamp() - interval '1 day';
    return (select json_build_object('floors', count(*)) from queen.spool_floors as f);
end;
$$;
