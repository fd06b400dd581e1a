-- 0021_task_names.sql: the task that counts queues has the name operators know it by.
-- Why     `update queen.maintenance_leases set enabled = false where task = 'stats_refresh'` met no row. Source: operations 6.4, 8.1.
-- Locks   one row. Twice: yes, nothing is done the second time. Beside a broker of before: that one makes its old row again, and may count as well.
-- breaking: no

update queen.maintenance_leases as l
set task = 'stats_refresh'
where l.task = 'stats' and not exists (select from queen.maintenance_leases as n where n.task = 'stats_refresh');

delete from queen.maintenance_leases as l where l.task = 'stats';
