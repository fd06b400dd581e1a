-- touch_queue.sql: does nothing; the line of the commit log that comes with it has all brokers read the queue anew.
-- In     p_args: queue.
-- Out    an empty object.
-- Locks  none.
-- Again  harmless.
-- Caller src/core_thread/effects.rs, when a pop has registered a conflating group. Source: data plane 4.10; rule 8.
create or replace function queen.touch_queue(p_tenant uuid, p_args jsonb)
returns json
language sql stable
begin atomic
    select json_build_object();
end;
