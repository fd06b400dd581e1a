//! Invariants 33 to 36: where a group starts. (35's group deletion comes with its route.)

use crate::harness::{encode, rules, unique};

rules! {
    fn i33_new_skips_the_backlog_of_its_first_pop_and_nothing_later(b) {
        let q = unique("i33");
        for p in 0..4 {
            b.push_n(&q, &format!("old{p}"), "old", 3);
        }
        let group = "consumerGroup=g&batch=100&partitions=20";
        assert!(b.pop(&q, group).is_empty(), "`new` is the default");
        for p in 0..4 {
            b.push_n(&q, &format!("old{p}"), "new", 1);
            b.push_n(&q, &format!("born{p}"), "first", 2);
        }
        let mut got: Vec<_> = b.drain(&q, group, "g").into_iter().map(|m| (m.partition, m.transaction_id)).collect();
        got.sort();
        let mut want = Vec::new();
        for p in 0..4 {
            want.push((format!("born{p}"), "first0".to_owned()));
            want.push((format!("born{p}"), "first1".to_owned()));
            want.push((format!("old{p}"), "new0".to_owned()));
        }
        want.sort();
        assert_eq!(got, want);
    }

    fn i33_the_empty_first_pop_of_a_missing_queue_counts(b) {
        let q = unique("i33e");
        assert!(b.pop(&q, "consumerGroup=g&subscriptionMode=new").is_empty());
        b.push_n(&q, "p", "m", 3);
        assert_eq!(b.drain(&q, "consumerGroup=g", "g").len(), 3);
    }

    fn i34_all_and_timestamp_start_where_they_say(b) {
        let q = unique("i34");
        for round in 0..4 {
            b.push_n(&q, "p", &format!("r{round}-"), 2);
        }
        let all = b.drain(&q, "consumerGroup=all&subscriptionMode=all", "all");
        assert_eq!(all.len(), 8);
        let from = |group: &str, at: &str| {
            let got = b.drain(&q, &format!("consumerGroup={group}&subscriptionFrom={}", encode(at)), group);
            got.into_iter().map(|m| m.offset).collect::<Vec<_>>()
        };
        assert_eq!(from("at2", &all[4].created_at), [4, 5, 6, 7], "at the stamp of a stored group: that group");
        assert_eq!(from("old", "2001-01-01T00:00:00Z"), (0..8).collect::<Vec<_>>());
        assert_eq!(from("future", "2101-01-01T00:00:00+02:00"), Vec::<i64>::new());
        assert_eq!(from("now", "now"), Vec::<i64>::new());
        assert_eq!(from("nonsense", "yesterday-ish"), Vec::<i64>::new(), "unparsable acts as new");
    }

    fn i35_a_registration_is_fixed(b) {
        let q = unique("i35");
        b.push_n(&q, "p", "old", 3);
        assert!(b.pop(&q, "consumerGroup=g&subscriptionMode=new").is_empty());
        assert!(b.pop(&q, "consumerGroup=g&subscriptionMode=all").is_empty());
        assert!(b.pop(&q, "consumerGroup=g&subscriptionFrom=2001-01-01T00:00:00Z").is_empty());
        b.push_n(&q, "p", "new", 1);
        assert_eq!(b.pop(&q, "consumerGroup=g&subscriptionMode=all").keys(), ["new0"]);
        // A pinned first pop seeds its own partition only, from its own words.
        assert_eq!(b.pop_pinned(&q, "p", "consumerGroup=h&subscriptionMode=all&autoAck=true").messages.len(), 4);
    }

    fn i36_queue_mode_starts_at_the_oldest_message(b) {
        let q = unique("i36");
        b.push_n(&q, "p", "m", 3);
        let pop = b.pop(&q, "subscriptionMode=new&subscriptionFrom=now");
        assert_eq!(pop.offsets(), [0, 1, 2]);
        assert_eq!((pop.consumer_group.as_str(), pop.messages[0].consumer_group.as_str()), ("__QUEUE_MODE__", "__QUEUE_MODE__"));
    }
}
