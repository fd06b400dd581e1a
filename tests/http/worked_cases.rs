//! The worked cases of data plane 5.7 over HTTP. Offsets 10..14 are leased, committed is 9, retryLimit is 3.

use crate::harness::{Broker, Pop, rules, shared_postgres, unique};
use serde_json::{Value, json};

const GROUP: &str = "consumerGroup=g&subscriptionMode=all";

struct Case {
    broker: &'static Broker,
    queue: String,
    pop: Pop,
}

impl Case {
    fn new(broker: &'static Broker, lease_seconds: u32) -> Case {
        let queue = unique("w");
        broker.configure(&queue, json!({"retryLimit": 3}));
        broker.push_n(&queue, "p", "m", 15);
        assert_eq!(broker.pop(&queue, &format!("{GROUP}&batch=10&autoAck=true")).messages.len(), 10);
        let pop = broker.pop(&queue, &format!("{GROUP}&batch=5&leaseSeconds={lease_seconds}"));
        assert_eq!(pop.offsets(), [10, 11, 12, 13, 14]);
        Case { broker, queue, pop }
    }

    /// Sends one call of `(disposition, offset)` items; all must succeed; whether the lease was released.
    fn ack(&self, items: &[(&str, usize)]) -> bool {
        let results = self.send(items);
        assert!(results.iter().all(|r| r["success"] == true), "{results:?}");
        let released: Vec<_> = results.iter().map(|r| r["leaseReleased"].as_bool().expect("a bool")).collect();
        assert!(released.iter().all(|r| *r == released[0]), "one value per set: {results:?}");
        released[0]
    }

    fn send(&self, items: &[(&str, usize)]) -> Vec<Value> {
        let item = |(status, offset): &(&str, usize)| self.pop.messages[offset - 10].ack(status);
        self.broker.ack("g", &items.iter().map(item).collect::<Vec<_>>())
    }

    /// `committed` and the retry counter of the cursor row.
    #[track_caller]
    fn expect_cursor(&self, committed: i64, counter: i64) {
        let sql = format!(
            "select c.committed || ' ' || c.retry_count from queen.cursors as c \
             join queen.partitions as p on p.id = c.partition_id join queen.queues as q on q.id = p.queue_id \
             join queen.groups as g on g.id = c.group_id where q.name = '{}' and g.name = 'g'",
            self.queue
        );
        let row = shared_postgres().query(self.broker.database.as_ref().expect("a database"), &sql);
        assert_eq!(row, format!("{committed} {counter}"));
    }

    #[track_caller]
    fn expect_redelivered(&self, offsets: &[i64]) {
        assert_eq!(self.broker.pop(&self.queue, &format!("{GROUP}&wait=true&timeout=3000")).offsets(), offsets);
    }

    #[track_caller]
    fn expect_nothing_now(&self) {
        assert!(self.broker.pop(&self.queue, GROUP).is_empty());
    }
}

rules! {
    fn completed_14(b) {
        let case = Case::new(b, 60);
        assert!(case.ack(&[("completed", 14)]));
        case.expect_cursor(14, 0);
        case.expect_nothing_now();
    }

    fn completed_12(b) {
        let case = Case::new(b, 2);
        assert!(!case.ack(&[("completed", 12)]), "the lease is kept");
        case.expect_cursor(12, 0);
        case.expect_nothing_now();
        case.expect_redelivered(&[13, 14]);
    }

    fn completed_10_11_13_14_failed_12(b) {
        let case = Case::new(b, 60);
        let items = [("completed", 10), ("completed", 11), ("completed", 13), ("completed", 14), ("failed", 12)];
        assert!(case.ack(&items));
        case.expect_cursor(11, 1);
        case.expect_redelivered(&[12, 13, 14]);
    }

    fn failed_12_only(b) {
        let case = Case::new(b, 60);
        assert!(case.ack(&[("failed", 12)]));
        case.expect_cursor(9, 1);
        case.expect_redelivered(&[10, 11, 12, 13, 14]);
    }

    fn completed_10_retry_11(b) {
        let case = Case::new(b, 60);
        assert!(case.ack(&[("completed", 10), ("retry", 11)]));
        case.expect_cursor(10, 0);
        case.expect_redelivered(&[11, 12, 13, 14]);
    }

    fn dlq_12_only(b) {
        let case = Case::new(b, 60);
        let results = case.send(&[("dlq", 12)]);
        assert_eq!((&results[0]["dlq"], &results[0]["leaseReleased"]), (&json!(true), &json!(true)));
        case.expect_cursor(12, 0);
        case.expect_redelivered(&[13, 14]);
        assert_eq!(b.dead_letters(&case.queue).len(), 1);
    }

    fn completed_12_then_completed_10(b) {
        let case = Case::new(b, 60);
        assert!(!case.ack(&[("completed", 12)]));
        let again = case.send(&[("completed", 10)]).remove(0);
        assert_eq!((&again["success"], &again["noop"], &again["leaseReleased"]), (&json!(true), &json!(true), &json!(false)));
        case.expect_cursor(12, 0);
        case.expect_nothing_now();
    }

    fn completed_12_then_failed_10(b) {
        let case = Case::new(b, 60);
        assert!(!case.ack(&[("completed", 12)]));
        let again = case.send(&[("failed", 10)]).remove(0);
        assert_eq!((&again["success"], &again["noop"]), (&json!(false), &json!(false)));
        assert_eq!(again["error"], "already committed: the cursor moved past this message before this ack");
        case.expect_cursor(12, 0);
        case.expect_nothing_now();
    }

    fn failed_10_dlq_12(b) {
        let case = Case::new(b, 60);
        assert!(case.ack(&[("failed", 10), ("dlq", 12)]));
        case.expect_cursor(9, 1);
        case.expect_redelivered(&[10, 11, 12, 13, 14]);
        assert!(b.dead_letters(&case.queue).is_empty(), "the lowest signal decides");
    }
}
