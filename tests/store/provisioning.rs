//! Queues and partitions come into being.

use crate::support::*;
use queen::store;
use queen_shards::command::Start;
use queen_shards::effect::{Call, Contact, LaneRow, Options, Reply};
use queen_shards::ids::{Offset, PartitionId, Stamp, TenantId};

fn lanes(reply: Reply) -> Vec<Option<LaneRow>> {
    match reply {
        Reply::Lanes(rows) => rows,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_queue_is_made_with_default_options_and_parts_of_its_name() {
    on_store(async |db| {
        let row = db.provision("billing.refund.eu", &["p"]).await[0];
        let options = Options {
            lease_secs: 60,
            retry_limit: 3,
            dead_letter: true,
            delay_secs: 0,
            window_secs: 0,
            dedup_secs: 3600,
            fill_wait_ms: 0,
            encrypted: false,
            completed_secs: 0,
        };
        assert_eq!(row.queue.options, options);
        assert_eq!((row.last_offset, row.log_start, row.last_created_at), (Offset::NONE, Offset(0), Stamp(0)));
        db.provision("orders", &["p"]).await;
        let named = "select count(*) from queen.queues where (name, namespace, task) in
            (('billing.refund.eu', 'billing', 'refund'), ('orders', 'orders', ''))";
        assert_eq!(db.number(named).await, 2);
        assert_eq!(db.number("select count(*) from queen.queues where lease_time is null").await, 2);
    });
}

/// Whoever tells of a queue tells how long acks of its completed messages resolve.
#[test]
fn every_reading_of_a_queue_tells_of_completed_retention() {
    on_store(async |db| {
        let id = db.provision("q", &["p"]).await[0].partition;
        db.sql("update queen.queues set completed_retention_seconds = 86400").await;
        let tenant = TenantId::DEFAULT;
        let found = match db.call(Call::FindPartitions { tenant, ids: vec![id] }).await {
            Reply::Found(found) => found[0].as_ref().expect("it is there").row.queue,
            other => panic!("{other:?}"),
        };
        let Reply::Queue(Some(named)) = db.call(Call::FindQueue { tenant, queue: "q".into() }).await else { panic!() };
        let by_names = lanes(db.call(Call::FindLane { lane: lane("q", "p") }).await)[0].expect("it is there").queue;
        let provisioned = db.provision("q", &["p"]).await[0].queue;
        let opened = db.open("q", "g", Contact::Register(Start::All)).await.expect("a group").queue;
        for queue in [found, named, by_names, provisioned, opened] {
            assert_eq!(queue.options.completed_secs, 86400);
            assert_eq!((queue.id, queue.options.dedup_secs), (found.id, 3600));
        }
    });
}

#[test]
fn a_partition_number_carries_its_placement_slot() {
    on_store(async |db| {
        let rows = db.provision("q", &["a", "b", "c", "ä\u{1f980}"]).await;
        for (row, name) in rows.iter().zip(["a", "b", "c", "ä\u{1f980}"]) {
            assert_eq!(row.partition.0 & 4095, lane("q", name).slot() as i64);
            assert!(4095 < row.partition.0);
        }
    });
}

#[test]
fn provisioning_again_and_twice_in_one_call_changes_nothing() {
    on_store(async |db| {
        let first = db.provision("q", &["b", "a", "b"]).await;
        assert_eq!(first[0], first[2]);
        assert_eq!(db.provision("q", &["a", "b"]).await, [first[1], first[0]]);
        assert_eq!(db.number("select count(*) from queen.partitions").await, 2);
        assert_eq!(db.number("select last_value from queen.partition_numbers").await, 2, "no number is wasted");
    });
}

#[test]
fn tenants_do_not_share_names() {
    on_store(async |db| {
        let mine = db.provision("q", &["a"]).await[0];
        let other = queen_shards::place::LaneKey::new(TenantId(7), "q".into(), "a".into());
        let theirs = lanes(db.call(Call::Provision { lanes: vec![other] }).await)[0].unwrap();
        assert_ne!(mine.queue.id, theirs.queue.id);
        let ids = vec![theirs.partition, mine.partition, PartitionId(1)];
        let Reply::Found(found) = db.call(Call::FindPartitions { tenant: TenantId::DEFAULT, ids }).await else {
            panic!()
        };
        assert!(found[0].is_none() && found[2].is_none());
        let found = found[1].as_ref().unwrap();
        assert_eq!((&*found.queue, &*found.partition, found.row), ("q", "a", mine));
    });
}

#[test]
fn finding_makes_nothing() {
    on_store(async |db| {
        assert_eq!(lanes(db.call(Call::FindLane { lane: lane("q", "a") }).await), [None]);
        let queue = Call::FindQueue { tenant: TenantId::DEFAULT, queue: "q".into() };
        assert!(matches!(db.call(queue).await, Reply::Queue(None)));
        assert_eq!(db.number("select count(*) from queen.queues").await, 0);
        let made = db.provision("q", &["a"]).await[0];
        assert_eq!(lanes(db.call(Call::FindLane { lane: lane("q", "a") }).await), [Some(made)]);
        let queue = Call::FindQueue { tenant: TenantId::DEFAULT, queue: "q".into() };
        assert!(matches!(db.call(queue).await, Reply::Queue(Some(row)) if row == made.queue));
    });
}

/// Several connections provision overlapping sets of queues and partitions in opposite orders.
#[test]
fn callers_that_race_agree_and_never_deadlock() {
    on_store(async |db| {
        for round in 0..20 {
            let names: Vec<_> =
                (0..6).flat_map(|q| (0..6).map(move |p| (format!("r{round}q{q}"), format!("p{p}")))).collect();
            let ask = |reverse: bool| {
                let mut lanes: Vec<_> = names.iter().map(|(q, p)| lane(q, p)).collect();
                if reverse {
                    lanes.reverse();
                }
                let target = db.target.clone();
                async move {
                    let client = connect(&target).await;
                    let mut rows = lanes_of(store::call(&any(&client), &Call::Provision { lanes }).await.unwrap());
                    if reverse {
                        rows.reverse();
                    }
                    rows
                }
            };
            let (a, b, c) = futures_util::future::join3(ask(false), ask(true), ask(false)).await;
            assert_eq!(a, b);
            assert_eq!(a, c);
        }
        assert_eq!(db.number("select count(*) from queen.partitions").await, 20 * 36);
    });
}

fn lanes_of(reply: Reply) -> Vec<LaneRow> {
    lanes(reply).into_iter().map(|row| row.expect("made")).collect()
}
