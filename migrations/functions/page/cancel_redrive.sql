-- cancel_redrive.sql: stops a redrive. What was moved stays moved; one that has ended stays as it ended.
-- In     p_args: id uuid text.
-- Out    the report, or null.
-- Locks  the row, behind the move of one dead letter at most.
-- Again  harmless.
-- Caller src/http/redrives.rs.
create or replace function queen.cancel_redrive(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
as $$
begin
    update queen.redrives as r
    set state = 'cancelled', finished_at = clock_timestamp(), updated_at = clock_timestamp()
    where r.id = (p_args ->> 'id')::uuid and r.tenant_id = p_tenant and r.state = 'running';
    return queen.get_redrive(p_tenant, p_args);
end;
$$;
