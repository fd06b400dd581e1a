//! The command line.

use crate::faults::Family;
use crate::nemesis::Pace;
use std::path::PathBuf;
use std::time::Duration;

pub const HELP: &str = "\
queen-torture: faults against a broker under load, everything written down and judged

  queen-torture [OPTIONS]               runs as many episodes as begin within the time
  queen-torture check HISTORY           judges a history that a red run left
  queen-torture campaign [OPTIONS]      the same with all faults, recorded under tests/torture/results
  queen-torture planted [OPTIONS]       builds the broker with planted bugs and shows that each is found

  --minutes M          how long, default 10            --episodes N       instead of a time
  --episode-secs S     load of one episode, default 30, of a campaign 120
  --faults F1,F2,...   of F1 F2 F3 F4 F5 F9 F10 F11 F13 F14 F16 F17, or none; default all these;
                        F12 (clocks, by libfaketime) alone or with others
  --pace P             plain: with pauses between faults; storm: without, several at once, as a campaign does
  --seed N             default: from the clock, printed
  --brokers N          1 or 2; default 1, and with F13 or F17 2 in the second half of the time
  --producers N        default 4                       --pause-ms N       between two requests of one, default 15
  --recovery-ms N      limit of C13, default 5000      --drain-secs N     longest the drain may stand still, default 60
  --broker PATH        binary; default: builds this workspace's, with the feature `torture`, into target/rig
  --env NAME=VALUE     for the broker, may be repeated
  --only NAME          of the planted bugs
  --dir DIR            where processes live, default a new one under the temporary directory
  --machine NAME       of the directory a campaign is recorded in, default <cores>-core
  --record DIR         writes DIR/summary.md, and the history of each red episode
  --pooler             a pgbouncer in transaction mode before PostgreSQL
  --keep               leaves the directory behind

Exit status: 0 green, 1 red, 2 the rig failed, 3 not valid: something asked for never happened.
";

/// Hits of each crash window within a full campaign; a shorter one owes its share. Source: reliability 3.
const WINDOW_GOAL: u64 = 20;
const CAMPAIGN: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub time: Duration,
    pub episodes: Option<u64>,
    pub load: Duration,
    pub families: Vec<Family>,
    pub pace: Pace,
    pub seed: Option<u64>,
    /// 0: as the families want it.
    pub brokers: u8,
    pub producers: u16,
    pub pause: Duration,
    pub recovery: Duration,
    pub drain: Duration,
    pub broker: Option<PathBuf>,
    pub env: Vec<(String, String)>,
    pub only: Option<String>,
    pub dir: Option<PathBuf>,
    pub machine: Option<String>,
    pub record: Option<PathBuf>,
    pub keep: bool,
    pub pooler: bool,
    /// How often each crash window must be hit, or the run is not valid.
    pub window_goal: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            time: Duration::from_secs(600),
            episodes: None,
            load: Duration::from_secs(30),
            families: Family::ALL.to_vec(),
            pace: Pace::Plain,
            seed: None,
            brokers: 0,
            producers: 4,
            pause: Duration::from_millis(15),
            recovery: Duration::from_secs(5),
            drain: Duration::from_secs(60),
            broker: None,
            env: Vec::new(),
            only: None,
            dir: None,
            machine: None,
            record: None,
            keep: false,
            pooler: false,
            window_goal: 1,
        }
    }
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Help,
    Check(PathBuf),
    Run(Box<Options>),
    Campaign(Box<Options>),
    Planted(Box<Options>),
}

/// Reads the arguments after the program's name. Err: one line that says what is wrong.
pub fn parse(arguments: &[String]) -> Result<Action, String> {
    match arguments.first().map(String::as_str) {
        Some("help" | "--help" | "-h") => Ok(Action::Help),
        Some("check") => match arguments {
            [_, path] => Ok(Action::Check(path.into())),
            _ => Err("check needs one history".into()),
        },
        Some("planted") => Ok(Action::Planted(Box::new(options(&arguments[1..], Options::default())?))),
        Some("campaign") => {
            // Between two loads lie a drain and a reading back, which take their time.
            let load = Duration::from_secs(120);
            let mut campaign = options(&arguments[1..], Options { load, pace: Pace::Storm, ..Options::default() })?;
            let share = campaign.time.as_secs_f64() / CAMPAIGN.as_secs_f64();
            campaign.window_goal = ((WINDOW_GOAL as f64 * share) as u64).clamp(1, WINDOW_GOAL);
            Ok(Action::Campaign(Box::new(campaign)))
        }
        _ => Ok(Action::Run(Box::new(options(arguments, Options::default())?))),
    }
}

/// `options`: what holds unless something else is said.
fn options(arguments: &[String], mut options: Options) -> Result<Options, String> {
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        if name == "--pooler" {
            options.pooler = true;
            continue;
        }
        if name == "--keep" {
            options.keep = true;
            continue;
        }
        let value = rest.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} {value}: not a number"));
        match name.as_str() {
            "--minutes" => {
                let minutes: f64 = value.parse().map_err(|_| format!("{name} {value}: not a number"))?;
                let time = Duration::try_from_secs_f64(minutes * 60.0);
                options.time = time.map_err(|_| format!("{name} {value}: not a time"))?;
            }
            "--episodes" => options.episodes = Some(number()?),
            "--episode-secs" => options.load = Duration::from_secs(number()?),
            "--faults" => options.families = families(value)?,
            "--pace" => {
                options.pace = match value.as_str() {
                    "plain" => Pace::Plain,
                    "storm" => Pace::Storm,
                    _ => return Err(format!("--pace {value}: plain or storm")),
                }
            }
            "--seed" => options.seed = Some(number()?),
            "--brokers" => options.brokers = number()?.clamp(1, 2) as u8,
            "--producers" => options.producers = number()?.clamp(1, 64) as u16,
            "--pause-ms" => options.pause = Duration::from_millis(number()?),
            "--recovery-ms" => options.recovery = Duration::from_millis(number()?),
            "--drain-secs" => options.drain = Duration::from_secs(number()?),
            "--broker" => options.broker = Some(value.into()),
            "--env" => {
                let (name, value) = value.split_once('=').ok_or_else(|| format!("--env {value}: NAME=VALUE"))?;
                options.env.push((name.into(), value.into()));
            }
            "--only" => options.only = Some(value.clone()),
            "--machine" => options.machine = Some(value.clone()),
            "--dir" => options.dir = Some(value.into()),
            "--record" => options.record = Some(value.into()),
            _ => return Err(format!("{name} is not an option; --help lists them")),
        }
    }
    Ok(options)
}

impl Options {
    /// Numbers of brokers one after another, each with its share of the time.
    pub fn phases(&self) -> Vec<(u8, Duration)> {
        match self.brokers {
            0 if self.families.iter().any(|f| matches!(f, Family::F13 | Family::F17)) => {
                vec![(1, self.time / 2), (2, self.time / 2)]
            }
            n => vec![(n.max(1), self.time)],
        }
    }
}

fn families(text: &str) -> Result<Vec<Family>, String> {
    if text == "none" {
        return Ok(Vec::new());
    }
    let family = |name: &str| Family::of(name.trim()).ok_or_else(|| format!("--faults: no family {name}"));
    text.split(',').map(family).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Action, String> {
        parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn two_brokers_come_with_f13_only() {
        let secs = Duration::from_secs;
        let Ok(Action::Run(all)) = of("--minutes 0.5") else { panic!("a run") };
        assert_eq!(all.phases(), [(1, secs(15)), (2, secs(15))]);
        let Ok(Action::Run(plain)) = of("--minutes 0.5 --faults F1,F9") else { panic!("a run") };
        assert_eq!(plain.phases(), [(1, secs(30))]);
        let Ok(Action::Run(both)) = of("--faults F1,F13 --minutes 3") else { panic!("a run") };
        assert_eq!(both.phases(), [(1, secs(90)), (2, secs(90))]);
        let Ok(Action::Campaign(two)) = of("campaign --minutes 3 --brokers 2") else { panic!("a campaign") };
        assert_eq!((two.phases(), two.families), (vec![(2, secs(180))], Family::ALL.to_vec()));
    }

    #[test]
    fn a_campaign_owes_its_share_of_the_crash_windows() {
        for (minutes, goal) in [(1, 1), (6, 2), (30, 10), (60, 20), (600, 20)] {
            let Ok(Action::Campaign(options)) = of(&format!("campaign --minutes {minutes}")) else { panic!("one") };
            assert_eq!(options.window_goal, goal, "{minutes}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for bad in ["--minutes x", "--faults F99", "--wat 1", "--seed", "check", "--env X", "--minutes -1", "--pace x"]
        {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
