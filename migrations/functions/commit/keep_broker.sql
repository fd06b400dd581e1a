-- keep_broker.sql: a broker says that it is still there, or that it ends; what is over is removed.
-- In     p_gone: it ends and commits no more.
-- Locks  its own row; rows of brokers and writers that are over. Deleting a ring makes a late commit of its writer fail.
-- Again  harmless.
-- Caller src/store/log.rs, keep. Source: rule 8.
create or replace function queen.keep_broker(p_broker uuid, p_gone boolean)
returns void
language plpgsql volatile
as $$
begin
    if p_gone then
        delete from queen.brokers as b where b.broker = p_broker;
    else
        insert into queen.brokers as b (broker)
        values (p_broker)
        on conflict on constraint brokers_pk do update set seen_at = clock_timestamp();
    end if;
    delete from queen.brokers as b where b.seen_at < clock_timestamp() - interval '1 day';
    update queen.writers as w
    set retired_at = clock_timestamp()
    where w.retired_at is null and not exists (select from queen.brokers as b where b.broker = w.broker);
    with over as (
        delete from queen.writers as w
        where w.retired_at < clock_timestamp() - interval '1 minute'
        returning w.writer
    )
    delete from queen.commits as c using over as o where c.writer = o.writer;
end;
$$;
