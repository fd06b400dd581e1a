use super::*;
use proptest::prelude::*;

const ROOM: Room = Room { records: 100, bytes: 1 << 20 };

fn id(at: u64) -> SpoolId {
    SpoolId { file: 1, at }
}

/// Record `n` of lane `n % lanes`, each of them with its shard.
fn handed(records: u64, lanes: u64) -> Handed {
    let mut handed = Handed::new(Room { records: records as usize, ..ROOM });
    (0..records).for_each(|n| handed.hand_over(id(n), n % lanes, 10));
    handed
}

/// Refuses a record. True: it is set aside.
fn aside(handed: &mut Handed, id: SpoolId, written: u64) -> bool {
    let aside = handed.refuse(id, written).expect("with a shard").aside;
    if aside {
        handed.set_aside(id);
    }
    aside
}

/// Refuses records; how many are set aside.
fn refuse(handed: &mut Handed, records: &[SpoolId], written: u64) -> usize {
    records.iter().filter(|id| aside(handed, **id, written)).count()
}

fn next_round(handed: &mut Handed) -> Vec<SpoolId> {
    handed.next_round();
    handed.try_again()
}

#[test]
fn what_refuses_all_records_costs_one_at_a_time_and_what_is_mended_nothing() {
    let mut handed = handed(10, 10);
    let all: Vec<SpoolId> = (0..10).map(id).collect();
    let mut out = all.clone();
    for time in 1..=5 {
        assert_eq!(out, all);
        assert_eq!(refuse(&mut handed, &out, 0), (time == 5) as usize);
        assert_eq!(handed.try_again(), [], "not before a round has passed");
        out = next_round(&mut handed);
        assert_eq!(handed.try_again(), [], "they are being tried");
    }
    assert_eq!(out, all[1..]);
    assert!(out.iter().all(|id| handed.store(*id, true)));
    assert_eq!((next_round(&mut handed), handed.len()), (Vec::new(), 0));
}

#[test]
fn a_record_that_cannot_be_set_aside_now_is_tried_again() {
    let mut handed = handed(1, 1);
    for time in 1..8 {
        let refused = handed.refuse(id(0), 0).expect("with a shard");
        assert_eq!((refused.counted, refused.aside), (Some(time), time >= REFUSALS_MAX));
        assert_eq!((next_round(&mut handed), handed.len()), (vec![id(0)], 1));
    }
    assert!(aside(&mut handed, id(0), 0));
    assert_eq!((next_round(&mut handed), handed.len(), handed.refuse(id(0), 0)), (vec![], 0, None));
}

#[test]
fn records_that_are_refused_while_others_are_stored_are_set_aside_together() {
    for live in [false, true] {
        let mut handed = handed(20, 20);
        let (mut good, mut bad): (Vec<SpoolId>, Vec<SpoolId>) = ((0..10).map(id).collect(), (10..20).map(id).collect());
        for round in 0..6 {
            let aside = refuse(&mut handed, &bad, if live { round } else { 0 });
            assert_eq!(
                aside,
                if round == 5 { 9 } else { (round == 4) as usize },
                "the oldest counts from the first on"
            );
            if !live {
                handed.store(good.pop().expect("some"), true);
            }
            bad = next_round(&mut handed);
        }
        assert!(bad.is_empty());
    }
}

/// A retry of what a lost answer had stored writes nothing: the right to write may be missing all the same.
#[test]
fn what_was_stored_before_does_not_make_a_refusal_count() {
    for (new, aside) in [(false, false), (true, true)] {
        let mut handed = handed(20, 20);
        let mut bad = vec![id(0), id(1)];
        for round in 0..=REFUSALS_MAX as u64 {
            bad.retain(|id| !self::aside(&mut handed, *id, 0));
            assert!(handed.store(id(10 + round), new));
            let again = next_round(&mut handed);
            assert_eq!(again, bad);
        }
        // The oldest counts in any case; the other one is not set aside for that.
        assert_eq!(bad.is_empty(), aside, "{bad:?}");
        assert!(bad.iter().all(|bad| *bad == id(1)));
    }
}

/// The next records of a lane of which one was set aside are tried twice, while others are stored; else five times again.
#[test]
fn a_lane_with_many_bad_records_does_not_take_five_tries_for_each() {
    let mut handed = handed(40, 1);
    let mut tries = |n: u64, written: &mut dyn FnMut(u64) -> u64| {
        let mut tried = 1;
        while !aside(&mut handed, id(n), written(tried)) {
            assert_eq!(next_round(&mut handed), [id(n)]);
            tried += 1;
        }
        tried
    };
    assert_eq!(tries(0, &mut |tried| tried), 5);
    assert_eq!(tries(1, &mut |tried| 5 + tried), 2);
    // The right to write is lost after a record was stored: nothing is stored any more.
    assert_eq!(tries(2, &mut |_| 8), 5);
    assert_eq!(tries(3, &mut |tried| 8 + tried), 2);
}

#[test]
fn what_waits_behind_a_refused_record_takes_no_room_and_what_comes_behind_it_stays_on_disk() {
    let mut handed = handed(100, 1);
    assert_eq!(handed.room().records, 0);
    assert!(!aside(&mut handed, id(0), 0));
    assert_eq!((handed.room().records, handed.room().bytes), (100, 1 << 20));
    assert!(handed.waits(0) && !handed.waits(1));
    handed.put_off(id(100), 0);
    handed.put_off(id(101), 0);
    assert_eq!(handed.lanes_put_off(), [0]);
    // Another lane with as much: there is as much room for both, and not more.
    (200..300).for_each(|n| handed.hand_over(id(n), 1, 10));
    handed.refuse(id(200), 0);
    assert_eq!(handed.room().records, 0);
    (201..251).for_each(|n| assert!(handed.store(id(n), true)));
    assert_eq!(handed.room().records, 50);
    // The refused one is stored: the others go on, and then those on disk, a few at a time and in order.
    assert_eq!(next_round(&mut handed), [id(0), id(200)]);
    handed.store(id(0), true);
    assert_eq!(handed.next_later(), None, "its shard has enough");
    (1..80).for_each(|n| assert!(handed.store(id(n), true)));
    assert_eq!(handed.next_later(), Some((id(100), 0)));
    handed.hand_over(id(100), 0, 10);
    assert!(handed.waits(0), "not before the one that was put off");
    assert_eq!(handed.next_later(), Some((id(101), 0)));
    handed.lose(0);
    assert_eq!(handed.lanes_put_off(), [0; 0]);
    (80..=100).for_each(|n| assert!(handed.store(id(n), true)));
    assert!(!handed.waits(0));
}

#[test]
fn some_are_tried_in_a_round_oldest_first_and_one_of_each_lane() {
    let mut handed = handed(4000, 1000);
    let all: Vec<SpoolId> = (0..4000).map(id).collect();
    assert_eq!(refuse(&mut handed, &all, 0), 0);
    let first = next_round(&mut handed);
    assert_eq!(first, all[..TRIES_PER_ROUND]);
    assert_eq!(handed.try_again(), []);
    // What refused them is mended: as fast as they are stored the next ones follow, those of the same lanes first by age.
    first.iter().for_each(|id| assert!(handed.store(*id, true)));
    assert_eq!(handed.try_again(), all[TRIES_PER_ROUND..2 * TRIES_PER_ROUND]);
    let mut tried = 2 * TRIES_PER_ROUND;
    let mut out = all[TRIES_PER_ROUND..2 * TRIES_PER_ROUND].to_vec();
    while !out.is_empty() {
        out.iter().for_each(|id| assert!(handed.store(*id, true)));
        out = handed.try_again();
        tried += out.len();
    }
    assert_eq!((tried, handed.len()), (4000, 0));
}

/// What a spool does, and what its shards say: of the n-th lane that has something to say.
#[derive(Debug, Clone)]
enum Step {
    Read(usize),
    /// What was put off cannot be read now.
    FailToRead,
    Store(usize),
    Refuse(usize),
    Round,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1usize..9).prop_map(Step::Read),
        1 => Just(Step::FailToRead),
        3 => any::<usize>().prop_map(Step::Store),
        2 => any::<usize>().prop_map(Step::Refuse),
        1 => Just(Step::Round),
    ]
}

proptest! {
    /// Whatever happens in whatever order: what is counted is what there is, and all records are decided in the end.
    #[test]
    fn records_of_a_lane_are_handed_over_in_order_and_once(
        lanes in proptest::collection::vec(0u64..4, 1..60),
        steps in proptest::collection::vec(step(), 0..200),
        stay_refused in 0u8..16,
    ) {
        let mut handed = Handed::new(Room { records: 8, bytes: 1 << 20 });
        let mut next = 0;
        // What each shard has, a fifo for each lane; its front may wait for the spool's word.
        let mut shards: BTreeMap<u64, VecDeque<u64>> = BTreeMap::new();
        let mut waiting: HashSet<u64> = HashSet::new();
        let mut decided: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut written = 0;
        // In the end some lanes are refused for good: each of their records takes that many rounds at most, one after another.
        let end = [Step::Read(8), Step::Round, Step::Store(0), Step::Store(1), Step::Store(2), Step::Store(3)];
        let rounds = (1 + REFUSALS_MAX as usize) * (1 + lanes.len());
        let end = std::iter::repeat_n(end, rounds).flatten().map(|step| (step, stay_refused));
        for (step, refusing) in steps.into_iter().map(|step| (step, 0)).chain(end) {
            match step {
                Step::Read(n) => {
                    for _ in 0..n.min(handed.room().records) {
                        let later = handed.next_later();
                        let Some((id, lane)) = later.or_else(|| Some((id(next as u64), *lanes.get(next)?))) else { break };
                        next += later.is_none() as usize;
                        if later.is_none() && handed.waits(lane) {
                            handed.put_off(id, lane);
                            continue;
                        }
                        handed.hand_over(id, lane, 1);
                        shards.entry(lane).or_default().push_back(id.at);
                    }
                }
                Step::FailToRead => {
                    let Some((id, lane)) = handed.next_later() else { continue };
                    handed.put_back(id, lane);
                    prop_assert!(handed.has_later() && handed.waits(lane), "nothing of its lane comes before it");
                    prop_assert_eq!(handed.next_later(), Some((id, lane)));
                    handed.put_back(id, lane);
                }
                Step::Store(n) | Step::Refuse(n) => {
                    let free: Vec<u64> = shards
                        .iter()
                        .filter(|(_, records)| records.front().is_some_and(|at| !waiting.contains(at)))
                        .map(|(lane, _)| *lane)
                        .collect();
                    if free.is_empty() {
                        continue;
                    }
                    let lane = free[n % free.len()];
                    let records = shards.get_mut(&lane).expect("some");
                    let at = records[0];
                    if matches!(step, Step::Store(_)) && refusing >> lane & 1 == 0 {
                        prop_assert!(handed.store(id(at), true));
                        written += 1;
                    } else if !aside(&mut handed, id(at), written) {
                        waiting.insert(at);
                        continue;
                    }
                    records.pop_front();
                    decided.entry(lane).or_default().push(at);
                }
                Step::Round => handed.next_round(),
            }
            for again in handed.try_again() {
                prop_assert!(waiting.remove(&again.at), "it waits");
            }
            let with_shards: usize = shards.values().map(VecDeque::len).sum();
            prop_assert_eq!(handed.len(), with_shards);
            let of_held: usize =
                shards.iter().filter(|(lane, _)| handed.held.contains_key(lane)).map(|(_, records)| records.len()).sum();
            prop_assert_eq!(handed.of_held.records, of_held);
        }
        let mut all: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (at, lane) in lanes.iter().enumerate() {
            all.entry(*lane).or_default().push(at as u64);
        }
        prop_assert_eq!(decided, all);
        prop_assert!(handed.held.is_empty() && handed.is_empty());
    }
}
