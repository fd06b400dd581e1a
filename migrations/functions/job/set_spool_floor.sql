-- set_spool_floor.sql: a broker says what its spool may still need of the dedup evidence, and that it is there.
-- In     p_args: broker uuid; oldestMs bigint (acceptance of its oldest undrained record, ms since 1970), absent: none;
--        gone boolean: it ends, and has none.
-- Out    {"floors":n}: brokers that count.
-- Locks  its row.
-- Again  harmless.
-- Caller src/control.rs. Source: rule 14.
create or replace function queen.set_spool_floor(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
as $$
begin
    delete from queen.spool_floors as f
    where f.seen_at < clock_timestamp() - interval '1 day'
        or (f.broker = (p_args ->> 'broker')::uuid and (p_args ->> 'gone')::boolean);
    if not coalesce((p_args ->> 'gone')::boolean, false) then
        insert into queen.spool_floors as f (broker, oldest_at)
        values (
            (p_args ->> 'broker')::uuid,
            least(clock_timestamp(), to_timestamp((p_args ->> 'oldestMs')::bigint / 1000.0))
        )
        on conflict on constraint spool_floors_pk do update
        set oldest_at = excluded.oldest_at, seen_at = clock_timestamp();
    end if;
    return (select json_build_object('floors', count(*)) from queen.spool_floors as f);
end;
$$;
