-- 0018_idle_minutes.sql: which minutes of queues had nothing but polls that found nothing.
-- Why     a queue that is only polled has a minute for as long as a scrape tells of it, not for the metrics age: purge_metrics finds
--         these rows here, among those of queues with messages.
-- Locks   queue_minutes: no minute is stored while the index is built, a second per million rows of history; such minutes are gaps of
--         curves. Nothing else waits. Twice: yes, nothing is done the second time.
-- breaking: no

create index if not exists queue_minutes_idle on queen.queue_minutes (minute)
where push_requests = 0 and push_messages = 0 and pop_messages = 0 and transactions = 0 and ack_messages = 0 and ack_failed = 0;
