use super::{bytes_of, within_bytes};
use crate::command::{Codec, Record, Said};
use crate::ids::{Offset, Stamp};

fn record(base: i64, count: u32, raw_len: u32) -> Record {
    Record {
        base: Offset(base),
        created_at: Stamp(0),
        count,
        codec: Codec::Raw,
        flags: 0,
        raw_len,
        body: Default::default(),
        frames: None,
        keys: Default::default(),
    }
}

/// The names of a tiny message may be many times its size: as much of a log is claimed as fits with them.
#[test]
fn what_is_said_of_each_message_counts_with_it() {
    let records = [record(0, 100, 1000), record(100, 900, 9000)];
    let said = Said { bytes: 300, names: 2 };
    for (name, budget, last) in
        [("", 3100, 9), ("p", 3120, 9), (&*"p".repeat(845), 20_000, 9), ("", 100 * 310 + 309, 99)]
    {
        let said = said.of_each(name);
        let end = within_bytes(&records, Offset(0), budget, said);
        assert_eq!(end, Offset(last), "{budget}");
        let taken = |end| bytes_of(&records, Offset(0), end, said);
        assert!(taken(end) <= budget && budget < taken(end.plus(1)), "counted in the same way");
    }
    assert_eq!(within_bytes(&records, Offset(5), 1, said.of_each("p")), Offset(5), "one message however large");
    assert_eq!(within_bytes(&records, Offset(5), u64::MAX, 0), Offset(999));
}
