//! Reads that fail: they are tried again in the next round, and given up after some. Pure.
//!
//! Reading stands still meanwhile, since what lies behind must not overtake it. Source: operations 4.5.

use std::io;

/// Reads that fail in a row, each in a round of its own, before what they wanted is given up.
pub(super) const READ_FAILURES_MAX: u32 = 5;

/// Whether the machine is short of something (descriptors, memory, room), which says nothing of a file.
pub(super) fn is_short(error: &io::Error) -> bool {
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::EINTR];
    error.raw_os_error().is_some_and(|number| short.contains(&number))
        || matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Of one reader.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// The file that was read.
    of: u64,
    in_a_row: u32,
    waits: bool,
}

impl Failures {
    /// A read of a file failed. True: once too often, and so is every further one of it until one succeeds; else it waits for
    /// the next round.
    ///
    /// What the machine is short of does not count.
    pub fn count(&mut self, file: u64, error: &io::Error) -> bool {
        if self.of != file {
            *self = Failures { of: file, ..Failures::default() };
        }
        if is_short(error) {
            self.waits = true;
            return false;
        }
        self.in_a_row = (self.in_a_row + 1).min(READ_FAILURES_MAX);
        self.waits = self.in_a_row < READ_FAILURES_MAX;
        !self.waits
    }

    /// A read succeeded, or something else is read from now on.
    pub fn end(&mut self) {
        *self = Failures::default();
    }

    /// Nothing is to be read before the next round.
    pub fn waits(&self) -> bool {
        self.waits
    }

    pub fn next_round(&mut self) {
        self.waits = false;
    }

    /// Failures that counted since a read succeeded.
    pub fn in_a_row(&self) -> u32 {
        self.in_a_row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_given_up_after_five_rounds_unless_the_machine_is_short_of_something() {
        let (bad, short) = (io::Error::from_raw_os_error(libc::EIO), io::Error::from_raw_os_error(libc::EMFILE));
        let mut failures = Failures::default();
        for round in 1..READ_FAILURES_MAX {
            assert!(!failures.count(1, &bad) && failures.waits());
            failures.next_round();
            assert!(!failures.waits());
            assert!(!failures.count(1, &short) && failures.waits());
            failures.next_round();
            assert_eq!(failures.in_a_row(), round);
        }
        assert!(failures.count(1, &bad) && !failures.waits());
        assert!(failures.count(1, &bad), "nothing was read since");
        assert!(!failures.count(2, &bad) && failures.waits(), "another file");
        failures.end();
        assert!(!failures.count(1, &bad) && failures.waits());
    }
}
