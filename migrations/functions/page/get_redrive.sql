-- get_redrive.sql: the progress of a redrive.
-- In     p_args: id uuid text.
-- Out    the report, or null.
-- Locks  none.
-- Caller src/http/redrives.rs.
create or replace function queen.get_redrive(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
as $$
begin
    return (
        select queen.redrive_report(r)
        from queen.redrives as r
        where r.id = (p_args ->> 'id')::uuid and r.tenant_id = p_tenant
    );
end;
$$;
