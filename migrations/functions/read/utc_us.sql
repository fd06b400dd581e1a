-- utc_us.sql: a time as the data plane prints it: UTC, microseconds, whatever the session's time zone.
-- In     p_at: a time, or null.
-- Out    2026-09-12T08:15:30.123456Z, or null.
-- Caller what answers the data plane. Source: data plane 1.6.
create or replace function queen.utc_us(p_at timestamptz)
returns text
language sql stable
as $$
    select to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');
$$;
