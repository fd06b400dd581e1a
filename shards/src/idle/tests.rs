use crate::fake::{Fake, pop};
use crate::limits::{GROUP_IDLE_US, GROUPS_LOOKED};

#[test]
fn groups_that_nobody_asks_for_leave_memory() {
    let mut fake = Fake::new();
    let groups = 3 * GROUPS_LOOKED;
    for group in 1..=groups {
        fake.ask(group as u64, pop(&group.to_string()));
        fake.settle();
        let (commit, moves) = fake.moves.remove(0);
        assert_eq!(moves.len(), 1);
        let result = Err(crate::effect::StoreError::Unavailable("away".into()));
        fake.turn(vec![crate::command::Event::Moved { commit, result }]);
    }
    assert_eq!(fake.shard.sizes().groups, groups);
    fake.now += GROUP_IDLE_US / 2;
    fake.ask(99, pop("1"));
    fake.now += GROUP_IDLE_US / 2 + 1;
    for _ in 0..groups {
        fake.turn(Vec::new());
    }
    assert_eq!(fake.shard.sizes().groups, 1, "the one that was asked for");
    assert_eq!(fake.shard.sizes().groups_left, groups as u64 - 1);
    // What was remembered of their cursors went with them.
    assert_eq!(fake.shard.lanes.slab.refs().map(|lane| fake.shard.lanes[lane].cursors.len()).sum::<usize>(), 1);
    // Whoever comes again is served.
    fake.ask(100, pop("2"));
    fake.settle();
    assert_eq!(fake.moves.len(), 1);
}
