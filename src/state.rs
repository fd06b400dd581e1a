//! Calls that need neither a lane nor the engine: one SQL function each, `(tenant uuid, args jsonb) returns json`.
//!
//! `http` builds a [`StateCall`], `store` runs it, `http` turns the reply into a body.

use queen_shards::effect::StoreError;
use queen_shards::ids::TenantId;
use serde_json::Value;

/// The SQL functions, `queen.<name>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateFn {
    /// `http/configure.rs`
    Configure,
    /// `http/resources.rs`
    ListQueues,
    GetQueue,
    QueueDepth,
    DeleteQueue,
    DropQueue,
    ListNamespaces,
    ListTasks,
    ListPartitions,
    Overview,
    /// `http/status.rs`
    Status,
    StatusQueues,
    StatusQueue,
    /// `http/groups.rs`
    ListGroups,
    LaggingGroups,
    GetGroup,
    UpdateSubscription,
    SeekGroup,
    DeleteGroup,
    /// `http/dead_letters.rs`
    ListDeadLetters,
    PurgeDeadLetters,
    FindDeadLetter,
    ReplayDeadLetter,
    /// `http/redrives.rs`
    StartRedrive,
    GetRedrive,
    CancelRedrive,
    /// `jobs/redrive.rs`
    AnyRedrive,
    NextRedrives,
    RedriveRow,
    /// `http/messages.rs`
    ListMessages,
    GetMessage,
    /// `http/fetch.rs`
    Fetch,
    ChangedPartitions,
    /// `flags.rs`
    QueueFlags,
    /// `http/pop.rs`: nothing but the word, for all brokers, that a queue is to be read anew.
    TouchQueue,
    /// `http/lease.rs`
    ExtendLease,
    /// `http/pop/matched.rs`: names of the tenant's queues that match a namespace and a task.
    MatchQueues,
    /// `telemetry`: what the database knows for `/metrics/prometheus`.
    ClusterMetrics,
    /// The control thread: adds this broker's counters to the lifetime totals.
    AddTotals,
    /// The same, by minute.
    AddHistory,
    /// `jobs`: who runs a periodic task, and the steps of a sweep.
    ClaimTask,
    ReleaseTask,
    MarkPartitions,
    RetainStep,
    ForgetEvidence,
    CleanupPartitions,
    PurgeMetrics,
    /// `http/maintenance.rs`
    Maintenance,
    SetMaintenance,
    /// The control thread: what this broker's spool may need of the evidence.
    SetSpoolFloor,
    /// `jobs`: measures the stored bytes of the next queue, or a page of it; counts the next queue and its groups, or a page.
    MeasureRetained,
    CountQueue,
}

#[derive(Debug)]
pub struct StateCall {
    pub function: StateFn,
    pub tenant: TenantId,
    pub args: serde_json::Value,
}

/// What a refusal of [`StateCall::check`] begins with.
pub const NOT_ALLOWED: &str = "control characters are not allowed in ";

impl StateCall {
    /// PostgreSQL holds no NUL in a text: said here, by the name of the argument, instead of asked there.
    pub fn check(&self) -> Result<(), StoreError> {
        match nul_in("arguments", &self.args) {
            Some(name) => Err(StoreError::Refused(format!("{NOT_ALLOWED}{name}"))),
            None => Ok(()),
        }
    }
}

/// The innermost name under which a text with a NUL is.
fn nul_in<'a>(name: &'a str, args: &'a Value) -> Option<&'a str> {
    match args {
        Value::String(text) => text.contains('\0').then_some(name),
        Value::Array(all) => all.iter().find_map(|one| nul_in(name, one)),
        Value::Object(all) => {
            all.iter().find_map(|(key, one)| if key.contains('\0') { Some(name) } else { nul_in(key, one) })
        }
        _ => None,
    }
}

/// The JSON text the function returned; `None` for SQL null.
pub type StateReply = Result<Option<String>, StoreError>;

/// Kinds of calls, so that none waits behind one that may take much longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Somebody waits at work: a lease that is extended, a pop that looks for its queues, a first push.
    Short,
    /// Changes or finds a few rows, or a bounded number.
    Change,
    /// Changes or counts as many rows as there are: seconds.
    Long,
    /// Messages by offset, again and again.
    Read,
    /// What a person or a scrape looks at: reads perhaps much.
    Page,
}

/// What other brokers hear of a change with it, by the commit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// To read the queue of its arguments anew (all queues, when they name none).
    Queue,
    /// That the partition of its reply, `grown`, may have grown; nothing where that is null.
    Growth,
}

impl StateFn {
    /// What other brokers must hear of.
    pub fn tells(self) -> Option<Tells> {
        match self {
            StateFn::Configure
            | StateFn::DeleteQueue
            | StateFn::SeekGroup
            | StateFn::DeleteGroup
            | StateFn::TouchQueue => Some(Tells::Queue),
            StateFn::ReplayDeadLetter | StateFn::RedriveRow => Some(Tells::Growth),
            _ => None,
        }
    }

    /// Which connection of the control thread runs it: calls on one go one behind another.
    pub fn way(self) -> Way {
        match self {
            StateFn::ListQueues
            | StateFn::GetQueue
            | StateFn::QueueDepth
            | StateFn::ListNamespaces
            | StateFn::ListTasks
            | StateFn::ListPartitions
            | StateFn::Overview
            | StateFn::Status
            | StateFn::StatusQueues
            | StateFn::StatusQueue
            | StateFn::ListGroups
            | StateFn::LaggingGroups
            | StateFn::GetGroup
            | StateFn::ListDeadLetters
            | StateFn::ListMessages
            | StateFn::GetMessage
            | StateFn::ClusterMetrics => Way::Page,
            StateFn::Fetch | StateFn::ChangedPartitions => Way::Read,
            StateFn::ExtendLease
            | StateFn::MatchQueues
            | StateFn::QueueFlags
            | StateFn::Maintenance
            | StateFn::SetMaintenance => Way::Short,
            StateFn::Configure
            | StateFn::TouchQueue
            | StateFn::UpdateSubscription
            | StateFn::DeleteQueue
            | StateFn::DropQueue
            | StateFn::FindDeadLetter
            | StateFn::ReplayDeadLetter
            | StateFn::GetRedrive
            | StateFn::CancelRedrive => Way::Change,
            StateFn::SeekGroup | StateFn::DeleteGroup | StateFn::PurgeDeadLetters | StateFn::StartRedrive => Way::Long,
            // Jobs call them, on connections of their own.
            StateFn::AnyRedrive
            | StateFn::NextRedrives
            | StateFn::RedriveRow
            | StateFn::AddTotals
            | StateFn::AddHistory
            | StateFn::ClaimTask
            | StateFn::ReleaseTask
            | StateFn::MarkPartitions
            | StateFn::RetainStep
            | StateFn::ForgetEvidence
            | StateFn::CleanupPartitions
            | StateFn::PurgeMetrics
            | StateFn::SetSpoolFloor
            | StateFn::MeasureRetained
            | StateFn::CountQueue => Way::Long,
        }
    }

    /// Name of the function in schema `queen`.
    pub fn name(self) -> &'static str {
        match self {
            StateFn::Configure => "configure",
            StateFn::ListQueues => "list_queues",
            StateFn::GetQueue => "get_queue",
            StateFn::QueueDepth => "queue_depth",
            StateFn::DeleteQueue => "delete_queue",
            StateFn::DropQueue => "drop_queue",
            StateFn::ListNamespaces => "list_namespaces",
            StateFn::ListTasks => "list_tasks",
            StateFn::ListPartitions => "list_partitions",
            StateFn::Overview => "overview",
            StateFn::Status => "status",
            StateFn::StatusQueues => "status_queues",
            StateFn::StatusQueue => "status_queue",
            StateFn::ListGroups => "list_groups",
            StateFn::LaggingGroups => "lagging_groups",
            StateFn::GetGroup => "get_group",
            StateFn::UpdateSubscription => "update_subscription",
            StateFn::SeekGroup => "seek_group",
            StateFn::DeleteGroup => "delete_group",
            StateFn::ListDeadLetters => "list_dead_letters",
            StateFn::PurgeDeadLetters => "purge_dead_letters",
            StateFn::FindDeadLetter => "find_dead_letter",
            StateFn::ReplayDeadLetter => "replay_dead_letter",
            StateFn::StartRedrive => "start_redrive",
            StateFn::GetRedrive => "get_redrive",
            StateFn::CancelRedrive => "cancel_redrive",
            StateFn::AnyRedrive => "any_redrive",
            StateFn::NextRedrives => "next_redrives",
            StateFn::RedriveRow => "redrive_row",
            StateFn::ListMessages => "list_messages",
            StateFn::GetMessage => "get_message",
            StateFn::Fetch => "fetch",
            StateFn::ChangedPartitions => "changed_partitions",
            StateFn::QueueFlags => "queue_flags",
            StateFn::TouchQueue => "touch_queue",
            StateFn::ExtendLease => "extend_lease",
            StateFn::MatchQueues => "match_queues",
            StateFn::ClusterMetrics => "cluster_metrics",
            StateFn::AddTotals => "add_totals",
            StateFn::AddHistory => "add_history",
            StateFn::ClaimTask => "claim_task",
            StateFn::ReleaseTask => "release_task",
            StateFn::MarkPartitions => "mark_partitions",
            StateFn::RetainStep => "retain_step",
            StateFn::ForgetEvidence => "forget_evidence",
            StateFn::CleanupPartitions => "cleanup_partitions",
            StateFn::PurgeMetrics => "purge_metrics",
            StateFn::MeasureRetained => "measure_retained",
            StateFn::Maintenance => "maintenance",
            StateFn::SetMaintenance => "set_maintenance",
            StateFn::SetSpoolFloor => "set_spool_floor",
            StateFn::CountQueue => "count_queue",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::refusals::Refusal;
    use serde_json::json;

    #[test]
    fn a_nul_in_a_text_of_any_place_is_a_bad_request() {
        let refused = |args: Value| {
            let call = StateCall { function: StateFn::Fetch, tenant: TenantId::DEFAULT, args };
            call.check().err().map(|error| {
                let response = Refusal::store("fetch", &error).response();
                (response.status, String::from_utf8(response.body).expect("UTF-8"))
            })
        };
        let body = |name: &str| Some((400, format!(r#"{{"error":"control characters are not allowed in {name}"}}"#)));
        assert_eq!(refused(json!({"queue": "\0"})), body("queue"));
        assert_eq!(
            refused(json!({"entries": [{"queue": "a"}, {"queue": "a", "partition": "a\0"}]})),
            body("partition")
        );
        assert_eq!(refused(json!({"groups": ["a", "\0"]})), body("groups"));
        assert_eq!(refused(json!({"x": {"a\0": 1}})), body("x"));
        assert_eq!(refused(json!({"queue": "\\u0000", "limit": 0, "group": null, "f": false})), None);
    }
}
