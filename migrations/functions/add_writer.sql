-- add_writer.sql: a new writer of the commit log, with an empty ring.
-- In     p_replaces: a writer whose place it takes, 0 for none.
-- Out    its number.
-- Locks  nothing that others wait for.
-- Caller src/store/log.rs, add_writer. Source: architecture 13, rules 8 and 9.
create or replace function queen.add_writer(p_broker uuid, p_replaces bigint)
returns bigint
language plpgsql volatile
as $$
declare
    v_writer bigint;
begin
    update queen.writers as w set retired_at = clock_timestamp() where w.writer = p_replaces;
    insert into queen.writers (broker) values (p_broker) returning writer into v_writer;
    insert into queen.commits (writer, slot) select v_writer, i from generate_series(0, 255) as i;
    return v_writer;
end;
$$;
