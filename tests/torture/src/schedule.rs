//! The row of episodes of a run, decided before it begins: how many brokers, which pace, how long a load.
//!
//! Holds: each half of a storm has episodes in which each counter of coverage can rise, so that no campaign of a quarter
//! of an hour or more is not valid by its plan alone. Knows no clock: an episode that takes longer makes the run longer.

use crate::coverage::can_rise;
use crate::faults::Fault;
use crate::nemesis::Pace;
use std::time::Duration;

/// Of the episodes of a storm so manieth is plain: there brokers come to rest, and polls wait.
const PLAIN_EVERY: usize = 4;
/// Which of them: the second one, so that a half with two episodes has both.
const PLAIN_AT: usize = 1;
/// A plain episode has a third of a storm's load: it is there for what it meets, not for how often it strikes.
const PLAIN_SHARE: u32 = 3;
/// Between two loads: a drain, a reading back, a verdict, on two quiet cores.
const BETWEEN: Duration = Duration::from_secs(20);

/// One episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    pub brokers: u8,
    pub pace: Pace,
    pub load: Duration,
}

/// The `n`th episode of a phase with so many brokers; `load`: of an episode at this pace.
pub fn turn(brokers: u8, pace: Pace, load: Duration, n: usize) -> Turn {
    match pace {
        Pace::Storm if n % PLAIN_EVERY == PLAIN_AT => Turn { brokers, pace: Pace::Plain, load: load / PLAIN_SHARE },
        _ => Turn { brokers, pace, load },
    }
}

/// One episode beyond the schedule for counters that have not risen: a storm, unless one of them can rise in a plain one
/// only.
pub fn more(brokers: u8, pace: Pace, load: Duration, missing: &[String], faults: &[Fault]) -> Turn {
    let [storm, plain] = [0, PLAIN_AT].map(|n| turn(brokers, pace, load, n));
    match missing.iter().any(|name| !can_rise(name, &storm, faults) && can_rise(name, &plain, faults)) {
        true => plain,
        false => storm,
    }
}

/// The episodes of a phase: so many, or as many as begin within the time.
pub fn turns(brokers: u8, pace: Pace, load: Duration, time: Duration, episodes: Option<u64>) -> Vec<Turn> {
    let mut all = Vec::new();
    let mut taken = Duration::ZERO;
    while episodes.map_or(taken < time, |episodes| (all.len() as u64) < episodes) {
        let turn = turn(brokers, pace, load, all.len());
        taken += turn.load + BETWEEN;
        all.push(turn);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Action, parse};
    use crate::coverage::required;
    use crate::faults::of_families;

    fn campaign(minutes: u64) -> Vec<(Vec<Turn>, Vec<Fault>)> {
        let words = ["campaign".into(), "--minutes".into(), minutes.to_string()];
        let Ok(Action::Campaign(options)) = parse(&words) else { panic!("a campaign") };
        let phase = |(brokers, time)| {
            let turns = turns(brokers, options.pace, options.load, time, options.episodes);
            (turns, of_families(&options.families, brokers))
        };
        options.phases().into_iter().map(phase).collect()
    }

    #[test]
    fn any_campaign_of_a_quarter_of_an_hour_covers_every_counter_in_each_half() {
        for minutes in 15..=240 {
            let phases = campaign(minutes);
            assert_eq!(phases.len(), 2, "one broker, and then two");
            for (turns, faults) in phases {
                let brokers = turns[0].brokers;
                for name in required(brokers, &faults, true, true) {
                    let rises = turns.iter().any(|turn| can_rise(&name, turn, &faults));
                    assert!(rises, "{name} in the half with {brokers} of {minutes} minutes: {turns:?}");
                }
            }
        }
    }

    /// ... and is as long as it was asked to be, with most of its load in storms.
    #[test]
    fn a_campaign_lasts_as_long_as_it_is_asked_to() {
        for minutes in [15, 20, 37, 60, 90] {
            for (turns, _) in campaign(minutes) {
                let half = Duration::from_secs(minutes * 30);
                let takes: Duration = turns.iter().map(|turn| turn.load + BETWEEN).sum();
                let last = turns[turns.len() - 1].load + BETWEEN;
                assert!(half <= takes && takes < half + last, "{minutes}: {takes:?}");
                let storms: Duration = turns.iter().filter(|t| t.pace == Pace::Storm).map(|turn| turn.load).sum();
                let all: Duration = turns.iter().map(|turn| turn.load).sum();
                assert!(all * 4 <= storms * 5, "{minutes}: {storms:?} of {all:?}");
            }
        }
    }

    #[test]
    fn what_is_missing_decides_what_one_more_episode_is() {
        let faults = of_families(&crate::faults::Family::ALL, 2);
        let more = |missing: &str| more(2, Pace::Storm, Duration::from_secs(9), &[missing.to_owned()], &faults).pace;
        assert_eq!(more("wake-ups across brokers"), Pace::Plain);
        assert_eq!(more("fault:crash-at-spool-synced: 19 of 20"), Pace::Storm);
        assert_eq!(more("transactions rolled back"), Pace::Storm);
    }

    #[test]
    fn a_number_of_episodes_is_what_runs() {
        let secs = Duration::from_secs;
        assert_eq!(turns(2, Pace::Plain, secs(30), secs(600), Some(3)), [turn(2, Pace::Plain, secs(30), 0); 3]);
        let paces = turns(1, Pace::Storm, secs(9), secs(1), Some(3)).into_iter().map(|turn| turn.pace);
        assert_eq!(paces.collect::<Vec<_>>(), [Pace::Storm, Pace::Plain, Pace::Storm]);
    }
}
