//! What connections and clients suffer.

use super::{Nemesis, OUTAGE, Pace, TRAP_LIMIT};
use crate::world::Side;
use crate::world::proxy::{Link, Mode, Trap};
use std::time::Duration;

/// All connections that a link has.
const ALL: usize = usize::MAX;

impl Nemesis<'_> {
    /// Resets some connections several times; in a storm all of them, again as soon as they work.
    pub(super) fn resets(&mut self, link: &Link) -> u64 {
        let mut hits = 0;
        for _ in 0..self.rng.range(1, 12) {
            let storm = self.pace == Pace::Storm;
            hits += link.reset(if storm { ALL } else { self.rng.range(1, 6) as usize });
            let pause = if storm { self.between(60, 200) } else { self.between(5, 150) };
            self.wait(pause);
        }
        hits
    }

    /// The far side goes without a word, and its end comes late.
    pub(super) fn half_open(&mut self, link: &Link) -> u64 {
        let hits = link.half_open(self.rng.range(1, 4) as usize);
        let pause = match (self.pace, self.rng.range(0, 100)) {
            (Pace::Storm, 0..=89) => self.between(200, 1000),
            (_, 0..=79) => self.between(300, 3500),
            _ => self.between(3500, 14_000),
        };
        self.wait(pause);
        link.close_halves();
        hits
    }

    pub(super) fn mode(&mut self, link: &Link, mode: Mode) -> u64 {
        let pause = match (self.pace, self.rng.range(0, 100)) {
            (Pace::Mild, _) => self.between(300, 2500),
            (Pace::Storm, 0..=89) => self.between(200, 900),
            (Pace::Storm, 90..=97) => self.between(1000, 4000),
            (_, 0..=79) => self.between(300, 3500),
            _ if mode == Mode::Hole => self.between(3500, 14_000),
            _ => self.between(1000, 4000),
        };
        self.hold_mode(&[link], mode, pause);
        1
    }

    /// Sets a mode on some links for a time.
    fn hold_mode(&self, links: &[&Link], mode: Mode, time: Duration) {
        let _held: Vec<_> = links.iter().map(|link| link.hold()).collect();
        links.iter().for_each(|link| link.set(mode));
        self.wait(time);
        links.iter().for_each(|link| link.set(Mode::Pass));
    }

    /// Nothing comes through these links for a while, and nobody is told. Mostly short: a second is longer than any hint,
    /// and ten are longer than any deadline.
    pub(super) fn cut_off(&mut self, links: &[&Link]) -> u64 {
        let pause = match (self.pace, self.rng.range(0, 100)) {
            (Pace::Mild, _) => self.between(1000, 2500),
            (_, 0..=84) => self.between(1000, 1800),
            (_, 85..=95) => self.between(2500, 6000),
            (_, 96..=98) => self.between(11_000, 20_000),
            _ => self.between(20_000, 60_000),
        };
        self.hold_mode(links, Mode::Hole, pause);
        1
    }

    /// Counts only if the other one went on meanwhile.
    pub(super) fn cut_off_one(&mut self, at: usize, side: &Side) -> Result<u64, String> {
        let other = 1 - at;
        let before = self.shared.accepted(other);
        self.cut_off(&[&side.clients, &side.database]);
        Ok(u64::from(before < self.shared.accepted(other)))
    }

    /// The clients of one broker stand still, their requests and leases with them.
    pub(super) fn pause_clients(&mut self, at: usize) -> u64 {
        let before = self.shared.stood(at);
        self.shared.freeze(at, true);
        let pause = self.freeze();
        self.wait(pause);
        self.shared.freeze(at, false);
        u64::from(before < self.shared.stood(at))
    }

    /// Resets the connection between a commit and its answer, several times; how often.
    fn cut(&mut self, side: &Side, times: u64, pause: (u64, u64)) -> u64 {
        for hits in 0..times {
            if !side.database.trap(Trap::CutAnswer, TRAP_LIMIT) {
                return hits;
            }
            let pause = self.between(pause.0, pause.1);
            self.wait(pause);
        }
        times
    }

    pub(super) fn cut_commits(&mut self, side: &Side) -> u64 {
        let (times, pause) = match self.pace {
            Pace::Mild => (1, (5, 150)),
            Pace::Plain => (self.rng.range(4, 12), (5, 150)),
            Pace::Storm => (self.rng.range(10, 25), (0, 30)),
        };
        self.cut(side, times, pause)
    }

    /// The same, and before anybody can repeat what it does not know of, the database is away for longer than the short
    /// window.
    pub(super) fn cut_commits_and_outage(&mut self, side: &Side) -> u64 {
        let times = if self.pace == Pace::Storm { 8 } else { 1 };
        let cut = self.cut(side, times, (0, 1));
        side.database.set(Mode::Down);
        self.wait(OUTAGE);
        side.database.set(Mode::Pass);
        cut
    }
}
