-- set_maintenance.sql: stores one of the operator's switches.
-- In     p_args: key text (maintenance_mode, pop_maintenance_mode), enabled boolean.
-- Out    {"enabled":bool}
-- Locks  its row.
-- Again  harmless.
-- Caller src/http/maintenance.rs. Source: operations 4.8.
create or replace function queen.set_maintenance(p_tenant uuid, p_args jsonb)
returns json
language sql volatile
begin atomic
    insert into queen.system_state as s (key, value)
    values (p_args ->> 'key', jsonb_build_object('enabled', (p_args ->> 'enabled')::boolean))
    on conflict on constraint system_state_pk do update
    set value = excluded.value, updated_at = clock_timestamp()
    returning json_build_object('enabled', (s.value ->> 'enabled')::boolean);
end;
