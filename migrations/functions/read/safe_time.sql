-- safe_time.sql: a time below which every stamp is committed and visible to the next statement.
-- Out    it lies before the start of every transaction that has written: a stamp is taken after its transaction began. A role
--        that cannot see other roles' transactions gets a time a minute back, degraded.
-- Locks  none. Cost: a look at the backends.
-- Caller changed_partitions, mark_partitions. Source: state plane 9; rule 4.
create or replace function queen.safe_time()
returns table (at timestamptz, degraded boolean)
language plpgsql volatile
as $$
declare
    v_oldest timestamptz;
begin
    at := clock_timestamp();
    select
        min(a.xact_start) filter (where a.backend_xid is not null),
        coalesce(bool_or(a.usesysid <> u.oid and not pg_has_role(u.oid, 'pg_read_all_stats', 'usage')), false)
    into v_oldest, degraded
    from pg_stat_activity as a
    cross join (select r.oid from pg_roles as r where r.rolname = current_user) as u
    where a.datname = current_database() and a.backend_type = 'client backend' and a.pid <> pg_backend_pid();
    at := least(at, v_oldest) - interval '1 microsecond';
    if degraded then
        at := at - interval '1 minute';
    end if;
    return next;
end;
$$;
