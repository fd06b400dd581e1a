-- claim_task.sql: takes a periodic task when it is due and nobody runs it.
-- In     p_args: task, holder text; periodMs bigint.
-- Out    {"fence":n}, or {"fence":null}: not due, running elsewhere, or switched off by the operator; where it is not due, dueInMs says for how long.
-- Does   keeps the row's period as this broker's settings say; a shorter one pulls the next run in. The lease lasts three
--        periods, at least a minute: so long a dead holder stalls the task.
-- Locks  the task's row, skipped when somebody holds it.
-- Caller src/jobs.rs. Source: operations 6.4.
create or replace function queen.claim_task(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
as $$
declare
    v_task text := p_args ->> 'task';
    v_period bigint := (p_args ->> 'periodMs')::bigint;
    v_step interval := v_period * interval '1 millisecond';
    v_row queen.maintenance_leases;
    v_now timestamptz;
    v_not_due json;
begin
    insert into queen.maintenance_leases (task, period_ms)
    select v_task, v_period
    where not exists (select 1 from queen.maintenance_leases as m where m.task = v_task)
    on conflict on constraint maintenance_leases_pk do nothing;
    -- Nothing to do, as most polls find: no lock, no write.
    v_now := clock_timestamp();
    select case
            when m.enabled and (m.expires_at is null or m.expires_at <= v_now)
            then json_build_object('fence', null, 'dueInMs', ceil(extract(epoch from m.next_due_at - v_now) * 1000)::bigint)
            else json_build_object('fence', null)
        end
    into v_not_due
    from queen.maintenance_leases as m
    where m.task = v_task
        and m.period_ms = v_period
        and (not m.enabled or v_now < m.next_due_at or v_now < m.expires_at);
    if found then
        return v_not_due;
    end if;
    select * into v_row from queen.maintenance_leases as m where m.task = v_task for update skip locked;
    if not found then
        return json_build_object('fence', null);
    end if;
    v_now := clock_timestamp();
    if v_row.period_ms <> v_period then
        update queen.maintenance_leases as m
        set period_ms = v_period, next_due_at = least(m.next_due_at, v_now + v_step)
        where m.task = v_task
        returning * into v_row;
    end if;
    if not v_row.enabled or v_now < v_row.next_due_at or v_now < v_row.expires_at then
        return json_build_object('fence', null);
    end if;
    update queen.maintenance_leases as m
    set holder = p_args ->> 'holder',
        expires_at = v_now + greatest(3 * v_step, interval '1 minute'),
        fence = m.fence + 1,
        last_start_at = v_now
    where m.task = v_task
    returning * into v_row;
    return json_build_object('fence', v_row.fence);
end;
$$;
