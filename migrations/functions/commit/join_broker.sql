-- join_broker.sql: a broker says that it will commit; what it wrote with before is retired.
-- Out    how many other brokers there are.
-- Locks  its own rows.
-- Again  harmless.
-- Caller src/store/log.rs, join. Source: rules 8 and 10.
create or replace function queen.join_broker(p_broker uuid)
returns bigint
language plpgsql volatile
as $$
begin
    insert into queen.brokers as b (broker)
    values (p_broker)
    on conflict on constraint brokers_pk do update set joined_at = clock_timestamp(), seen_at = clock_timestamp();
    update queen.writers as w
    set retired_at = clock_timestamp()
    where w.broker = p_broker and w.retired_at is null;
    return (select count(*) from queen.brokers as b where b.broker <> p_broker);
end;
$$;
