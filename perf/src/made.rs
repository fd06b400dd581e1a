//! Pushes that are made before the run.
//!
//! A client that makes its pushes as it goes shares the machine's caches with the broker, one that compresses them most of
//! all: then what a push costs the broker is told with what its client does beside it.

use crate::request::Pushes;

/// Whole requests, one behind the other.
pub struct Made {
    bytes: Vec<u8>,
    /// Of each: where it ends, and the sum of its ids.
    ends: Vec<(usize, u64)>,
    /// How many are taken.
    taken: usize,
    /// Makes those that the run wants beyond them, as it goes.
    maker: Box<Pushes>,
}

impl Made {
    /// Makes `count` requests; they have no stamp that a consumer could read.
    pub fn new(mut maker: Pushes, count: usize) -> Made {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(count));
        for _ in 0..count {
            let (request, sum) = maker.next(u64::MAX);
            bytes.extend_from_slice(request);
            ends.push((bytes.len(), sum));
        }
        Made { bytes, ends, taken: 0, maker: Box::new(maker) }
    }

    /// The next request and the sum of its ids. `stamp`: for one that is made only now.
    pub fn next(&mut self, stamp: u64) -> (&[u8], u64) {
        let Some(&(end, sum)) = self.ends.get(self.taken) else { return self.maker.next(stamp) };
        let start = self.taken.checked_sub(1).map_or(0, |before| self.ends[before].0);
        self.taken += 1;
        (&self.bytes[start..end], sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Form, Scenario};

    #[test]
    fn made_pushes_are_those_that_would_have_been_made_and_go_on_behind_the_last() {
        for form in [Form::Json, Form::Packed] {
            let scenario = Scenario { form, batch: 3, ..Scenario::default() };
            let mut plain = Pushes::new("h:1", "q", &scenario, 7);
            let mut made = Pushes::new("h:1", "q", &Scenario { made: 4, ..scenario }, 7);
            for _ in 0..6 {
                let (want, want_sum) = plain.next(u64::MAX);
                let (got, got_sum) = made.next(u64::MAX);
                assert_eq!((got, got_sum), (want, want_sum));
            }
        }
    }
}
