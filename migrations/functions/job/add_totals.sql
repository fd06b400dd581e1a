-- add_totals.sql: adds what one broker counted to the lifetime counters.
-- In     p_args: pushRequests, pushMessages, popRequests, popMessages, ackRequests, ackMessages, ackFailed,
--        deadLettered, transactions, dbErrors; absent ones add nothing. p_tenant is not looked at.
-- Out    {}.
-- Locks  the one row, for an instant; a few times a minute per broker.
-- Again  adds again: a caller whose outcome is unknown may count twice or lose a delta. Nothing decides on these.
-- Caller the control thread. Source: operations 5.4.2, 5.6.1.
create or replace function queen.add_totals(p_tenant uuid, p_args jsonb)
returns json
language plpgsql volatile
as $$
begin
    insert into queen.totals as t (
        push_requests, push_messages, pop_requests, pop_messages, ack_requests, ack_messages, ack_failed,
        dead_lettered, transactions, db_errors
    )
    values (
        coalesce((p_args ->> 'pushRequests')::bigint, 0),
        coalesce((p_args ->> 'pushMessages')::bigint, 0),
        coalesce((p_args ->> 'popRequests')::bigint, 0),
        coalesce((p_args ->> 'popMessages')::bigint, 0),
        coalesce((p_args ->> 'ackRequests')::bigint, 0),
        coalesce((p_args ->> 'ackMessages')::bigint, 0),
        coalesce((p_args ->> 'ackFailed')::bigint, 0),
        coalesce((p_args ->> 'deadLettered')::bigint, 0),
        coalesce((p_args ->> 'transactions')::bigint, 0),
        coalesce((p_args ->> 'dbErrors')::bigint, 0)
    )
    on conflict on constraint totals_pk do update
    set push_requests = t.push_requests + excluded.push_requests,
        push_messages = t.push_messages + excluded.push_messages,
        pop_requests = t.pop_requests + excluded.pop_requests,
        pop_messages = t.pop_messages + excluded.pop_messages,
        ack_requests = t.ack_requests + excluded.ack_requests,
        ack_messages = t.ack_messages + excluded.ack_messages,
        ack_failed = t.ack_failed + excluded.ack_failed,
        dead_lettered = t.dead_lettered + excluded.dead_lettered,
        transactions = t.transactions + excluded.transactions,
        db_errors = t.db_errors + excluded.db_errors,
        updated_at = clock_timestamp();
    return json_build_object();
end;
$$;
