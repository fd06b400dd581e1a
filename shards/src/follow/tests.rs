use crate::command::{Event, Verdict};
use crate::effect::Call;
use crate::fake::{Fake, moved, plain, pop};

#[test]
fn a_queue_that_is_as_it_was_is_scanned_once_after_news_were_lost() {
    let mut fake = Fake::new();
    fake.ask(1, pop("1"));
    fake.settle();
    fake.moved(vec![moved(2)]);
    assert!(matches!(fake.reply(1), Some(Verdict::Pop(pop)) if pop.claims.len() == 1));
    fake.turn(vec![Event::Log { lanes: Vec::new(), freed: Vec::new(), changed: Vec::new(), lost: true }]);
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
