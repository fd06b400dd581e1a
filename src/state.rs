//! Calls that need neither a lane nor the engine: one SQL function each, `(tenant uuid, args jsonb) returns json`.
//!
//! `http` builds a [`StateCall`], `store` runs it, `http` turns the reply into a body.

use queen_shards::effect::StoreError;
use queen_shards::ids::TenantId;
use serde_json::Value;

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

/// `Variant "sql_name" Way [Tells],` lines.
macro_rules! functions {
    ($($function:ident $name:literal $way:ident $($tells:ident)?,)*) => {
        /// The SQL functions, `queen.<name>`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum StateFn {
            $($function,)*
        }

        impl StateFn {
            /// Name of the function in schema `queen`.
            pub fn name(self) -> &'static str {
                match self {
                    $(StateFn::$function => $name,)*
                }
            }

            /// Which connection of the control thread runs it: calls on one go one behind another.
            pub fn way(self) -> Way {
                match self {
                    $(StateFn::$function => Way::$way,)*
                }
            }

            /// What other brokers must hear of.
            pub fn tells(self) -> Option<Tells> {
                match self {
                    $($(StateFn::$function => Some(Tells::$tells),)?)*
                    _ => None,
                }
            }
        }
    };
}

// Each with who calls it.
functions! {
    // `http/configure.rs`
    Configure          "configure"           Change Queue,
    // `http/resources.rs`
    ListQueues         "list_queues"         Page,
    GetQueue           "get_queue"           Page,
    QueueDepth         "queue_depth"         Page,
    DeleteQueue        "delete_queue"        Change Queue,
    DropQueue          "drop_queue"          Change,
    ListNamespaces     "list_namespaces"     Page,
    ListTasks          "list_tasks"          Page,
    ListPartitions     "list_partitions"     Page,
    Overview           "overview"            Page,
    // `http/status.rs`
    Status             "status"              Page,
    StatusQueues       "status_queues"       Page,
    StatusQueue        "status_queue"        Page,
    // `http/status.rs`: what the database knows for `/metrics/prometheus`.
    ClusterMetrics     "cluster_metrics"     Page,
    // `http/groups.rs`
    ListGroups         "list_groups"         Page,
    LaggingGroups      "lagging_groups"      Page,
    GetGroup           "get_group"           Page,
    UpdateSubscription "update_subscription" Change,
    SeekGroup          "seek_group"          Long   Queue,
    DeleteGroup        "delete_group"        Long   Queue,
    // `http/dead_letters.rs`
    ListDeadLetters    "list_dead_letters"   Page,
    PurgeDeadLetters   "purge_dead_letters"  Long,
    FindDeadLetter     "find_dead_letter"    Change,
    ReplayDeadLetter   "replay_dead_letter"  Change Growth,
    // `http/redrives.rs`
    StartRedrive       "start_redrive"       Long,
    GetRedrive         "get_redrive"         Change,
    CancelRedrive      "cancel_redrive"      Change,
    // `jobs/redrive.rs`
    AnyRedrive         "any_redrive"         Long,
    NextRedrives       "next_redrives"       Long,
    RedriveRow         "redrive_row"         Long   Growth,
    // `http/messages.rs`
    ListMessages       "list_messages"       Page,
    GetMessage         "get_message"         Page,
    // `http/fetch.rs`
    Fetch              "fetch"               Read,
    ChangedPartitions  "changed_partitions"  Read,
    // `http/lease.rs`
    ExtendLease        "extend_lease"        Short,
    // `http/maintenance.rs`
    Maintenance        "maintenance"         Short,
    SetMaintenance     "set_maintenance"     Short,
    // `http/pop/matched.rs`: names of the tenant's queues that match a namespace and a task.
    MatchQueues        "match_queues"        Short,
    // `core_thread.rs`, `jobs/redrive.rs`: what of a queue a push and a redrive must know.
    QueueFlags         "queue_flags"         Short,
    // `core_thread/effects.rs`: nothing but the word, for all brokers, that a queue is to be read anew.
    TouchQueue         "touch_queue"         Change Queue,
    // The control thread: adds this broker's counters to the lifetime totals, and the same by minute.
    AddTotals          "add_totals"          Long,
    AddHistory         "add_history"         Long,
    // The control thread: what this broker's spool may need of the evidence.
    SetSpoolFloor      "set_spool_floor"     Long,
    // `jobs`, on connections of its own: who runs a periodic task, and the steps of a sweep.
    ClaimTask          "claim_task"          Long,
    ReleaseTask        "release_task"        Long,
    MarkPartitions     "mark_partitions"     Long,
    RetainStep         "retain_step"         Long,
    ForgetEvidence     "forget_evidence"     Long,
    CleanupPartitions  "cleanup_partitions"  Long,
    PurgeMetrics       "purge_metrics"       Long,
    // `jobs`: measures the stored bytes of the next queue, or a page of it; counts the next queue and its groups, or a page.
    MeasureRetained    "measure_retained"    Long,
    CountQueue         "count_queue"         Long,
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
