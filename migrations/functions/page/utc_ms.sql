-- utc_ms.sql: a time as management listings print it: UTC, milliseconds, whatever the session's time zone.
-- In     p_at: a time, or null.
-- Out    2026-09-12T08:15:30.123Z, or null.
-- Caller the functions beside this one. Source: data plane 1.6.
create or replace function queen.utc_ms(p_at timestamptz)
returns text
language sql stable
as $$
    select to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"');
$$;
