-- any_redrive.sql: whether any redrive of any tenant is running.
-- Out    true or false.
-- Locks  none. Cost: the redrives of the last month.
-- Caller src/jobs/redrive.rs.
create or replace function queen.any_redrive(p_tenant uuid, p_args jsonb)
returns json
language plpgsql stable
as $$
begin
    return to_json(exists (select 1 from queen.redrives as r where r.state = 'running'));
end;
$$;
