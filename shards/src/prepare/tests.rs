use super::*;
use crate::command::Command;
use crate::fake::{Fake, PARTITION, moved, pop};
use crate::ids::Micros;

/// A page of a scan that was asked for before a bundle changed a cursor tells of a lease that the bundle may have ended.
#[test]
fn what_was_asked_for_before_a_bundle_changed_a_cursor_is_not_taken_over() {
    let mut fake = Fake::new();
    fake.ask(1, pop("1"));
    fake.settle();
    fake.moved(vec![moved(2)]);
    let asked = Micros(fake.now);
    let lane = fake.shard.lanes.by_number(PARTITION).expect("it was popped from");
    let group = fake.shard.lanes[lane].cursors[0].group;
    let id = fake.shard.queues.groups[group].id;
    fake.now += 1;
    let news = vec![News::CursorChanged { partition: PARTITION, group: id, from: 2 }];
    fake.ask(2, Command::Heard { store: 0, news });
    let cursor = &fake.shard.lanes[lane].cursors[0];
    assert!(cursor.row.is_none() && !cursor.leased(Micros(fake.now)), "{cursor:?}");
    assert!(!cursor.lacks_row(asked) && cursor.lacks_row(Micros(fake.now)), "{cursor:?}");
}
