use crate::command::{Event, LogLane};
use crate::effect::Call;
use crate::fake::{Fake, PARTITION, lane, plain, pop};
use crate::ids::{Offset, TenantId};
use crate::limits::LANE_IDLE_US;
use crate::place::LaneKey;

/// A scan of millions of partitions takes a minute: what is done with meanwhile must not add up.
#[test]
fn a_lane_with_nothing_left_leaves_memory_during_a_scan() {
    let mut fake = Fake::new();
    fake.shard.config.lanes_kept = 0;
    fake.ask(1, pop("1"));
    fake.answer(|call| Ok(plain(call)));
    assert!(matches!(&fake.calls[..], [(_, Call::Scan { .. })]), "{:?}", fake.calls);
    for (name, log_start) in [("p", 0), ("empty", 1)] {
        let grown = LogLane {
            key: LaneKey::new(TenantId::DEFAULT, "q".into(), name.into()),
            partition: crate::ids::PartitionId(PARTITION.0 * (1 + log_start)),
            last_offset: Offset(0),
            log_start: Offset(log_start),
            last_created_at: lane().row.last_created_at,
        };
        fake.turn(vec![Event::Log { lanes: vec![grown], freed: Vec::new(), changed: Vec::new(), lost: false }]);
    }
    assert_eq!(fake.shard.sizes().lanes, 2);
    fake.now += LANE_IDLE_US + 1;
    fake.turn(Vec::new());
    assert_eq!(fake.shard.sizes().lanes, 1, "the one that a cursor is read for stays");
}
