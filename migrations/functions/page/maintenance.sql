-- maintenance.sql: the operator's switches as they are stored; an absent row is off.
-- Out    {"push":bool,"pop":bool}
-- Locks  none.
-- Caller src/http/maintenance.rs. Source: operations 4.8.
create or replace function queen.maintenance(p_tenant uuid, p_args jsonb)
returns json
language sql stable
begin atomic
    select json_build_object(
        'push', coalesce(bool_or((s.value ->> 'enabled')::boolean) filter (where s.key = 'maintenance_mode'), false),
        'pop', coalesce(bool_or((s.value ->> 'enabled')::boolean) filter (where s.key = 'pop_maintenance_mode'), false)
    )
    from queen.system_state as s
    where s.key in ('maintenance_mode', 'pop_maintenance_mode');
end;
