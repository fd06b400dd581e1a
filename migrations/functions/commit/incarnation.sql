-- incarnation.sql: which store this is: the cluster, its timeline, the database, the run of the server. Another one after a failover and after a
--        restore, and after each start of the server.
-- Out    system identifier / timeline / number of the database / when the server started.
-- Does   asks once per session and keeps the answer there: none of the four changes while the server runs, and a session ends with its server. Behind a
--        pooler it is a word about the server's session, so it holds for whoever is given that session; where it was reset it is asked again.
--        An older copy of the data directory has the same cluster, timeline and database; nothing in it says that it is older. But data changes hands
--        only while no server runs on it: whatever was put there, another server serves it.
-- Fails  on a standby: its timeline is not its own yet.
-- Locks  none.
-- Costs  nothing to speak of once the session knows; some 20 us the first time, when the control file is read.
-- Caller queen.log_commit, queen.is_incarnation, queen.read_log, queen.changed_partitions. Source: rule 12.
create or replace function queen.incarnation()
returns text
language plpgsql stable
as $$
declare
    v_known text := current_setting('queen.incarnation', true);
begin
    if v_known <> '' then
        return v_known;
    end if;
    select format(
            '%s/%s/%s/%s',
            s.system_identifier,
            ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::integer,
            d.oid,
            queen.utc_us(pg_postmaster_start_time())
        )
    into v_known
    from pg_control_system() as s
    join pg_database as d on d.datname = current_database();
    return set_config('queen.incarnation', v_known, false);
end;
$$;
