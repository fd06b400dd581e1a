use crate::command::{AckItem, AckSet, Command, Disposition, Event, PopFrom, Start, Verdict, Watch};
use crate::effect::{Call, Reply};
use crate::fake::{Fake, PARTITION, lane, moved, plain, pop};
use crate::ids::{Key, Micros, Offset, Slot, TenantId};
use crate::place::LaneKey;

#[test]
fn a_queue_that_is_as_it_was_is_scanned_once_after_news_were_lost() {
    let mut fake = Fake::new();
    fake.ask(1, pop("1"));
    fake.settle();
    fake.moved(vec![moved(2)]);
    assert!(matches!(fake.reply(1), Some(Verdict::Pop(pop)) if pop.claims.len() == 1));
    fake.turn(vec![Event::Log {
        began: Micros(fake.now),
        lanes: Vec::new(),
        freed: Vec::new(),
        changed: Vec::new(),
        lost: true,
    }]);
    let find = fake.calls.pop().expect("the queue is read");
    assert!(matches!(find.1, Call::FindQueue { .. }));
    // It is asked for before that is answered.
    fake.ask(2, pop("1"));
    fake.settle();
    fake.calls.push(find);
    fake.answer(|call| Ok(plain(call)));
    fake.moves.clear();
    fake.ask(3, pop("1"));
    assert!(fake.calls.is_empty(), "scanned again: {:?}", fake.calls);
}

#[test]
fn a_partition_that_grew_by_a_replay_is_offered_and_nothing_is_scanned() {
    let mut fake = Fake::new();
    fake.ask(1, pop("1"));
    fake.settle();
    fake.moved(vec![moved(2)]);
    let tenant = TenantId::DEFAULT;
    let items = vec![AckItem { key: Key(7), word: Disposition::Completed, error: None }];
    let set = AckSet { tenant, partition: PARTITION, group: "1".into(), lease: None, items };
    fake.ask(2, Command::Ack { sets: vec![set] });
    fake.moved(vec![moved(3)]);
    // Nothing is left.
    let key = LaneKey::new(tenant, "q".into(), "p".into());
    let watch = |from| Command::Watch(Watch { from, group: "1".into(), start: Start::All });
    fake.ask(3, watch(PopFrom::Queue { tenant, queue: "q".into() }));
    fake.ask(4, watch(PopFrom::Partition(key.clone())));
    assert_eq!(fake.woken, []);
    fake.ask(5, Command::LaneGrew { lane: key });
    assert!(matches!(&fake.calls[..], [(_, Call::FindLane { .. })]), "{:?}", fake.calls);
    assert!(fake.reply(5).is_none(), "not before it was read");
    fake.answer(|_| {
        let mut row = lane().row;
        row.last_offset = Offset(1);
        Ok(Reply::Lanes(vec![Some(row)]))
    });
    assert!(matches!(fake.reply(5), Some(Verdict::Done)));
    assert_eq!(fake.woken, [Slot(3), Slot(4)]);
    assert!(fake.calls.is_empty(), "scanned again: {:?}", fake.calls);
}
