//! CPU and memory of the broker and of PostgreSQL, as /proc shows them.
//!
//! The broker is the process that listens on the port, else the ones named `queen`; PostgreSQL is every
//! process named `postgres`. Nothing is seen when the broker runs elsewhere or /proc is hidden, and then the
//! figures are absent, not zero. Times count in ticks of 10 ms: exact enough over seconds, not below.

use crate::poller::{own_cpu, page_bytes, ticks_per_second};
use std::collections::{BTreeMap, HashMap};
use std::fs;

/// What a snapshot reads of one process.
#[derive(Clone, Debug, PartialEq)]
struct Stat {
    name: String,
    parent: u32,
    own_ticks: u64,
    /// Ticks of children that ended and were waited for.
    reaped_ticks: u64,
    resident_pages: u64,
}

/// Fields 2, 4, 14 to 17 and 24 of /proc/PID/stat; the name may hold spaces and parentheses.
fn parse_stat(text: &str) -> Option<Stat> {
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let fields: Vec<&str> = text[close + 1..].split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<i64>().ok().map(|n| n.max(0) as u64);
    Some(Stat {
        name: text.get(open + 1..close)?.to_owned(),
        parent: number(4)? as u32,
        own_ticks: number(14)? + number(15)?,
        reaped_ticks: number(16)? + number(17)?,
        resident_pages: number(24)?,
    })
}

fn stats() -> HashMap<u32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter_map(|pid| Some((pid, parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// Inodes of the sockets that listen on `port`, in the text of /proc/net/tcp or tcp6.
fn listening_inodes(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (_, hex_port) = fields.get(1)?.rsplit_once(':')?;
            let here = *fields.get(3)? == LISTEN && u16::from_str_radix(hex_port, 16).ok()? == port;
            here.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
        })
        .collect()
}

/// The process that listens on `port` of this machine.
pub fn find_broker(port: u16) -> Option<u32> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .flat_map(|table| listening_inodes(&table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    let all = stats();
    let owns_one = |pid: &u32| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| {
            fs::read_link(file.path()).is_ok_and(|to| inodes.iter().any(|inode| to.as_os_str() == inode.as_str()))
        })
    };
    let mut pids: Vec<u32> = all.keys().copied().collect();
    pids.sort_unstable();
    let named = || pids.iter().find(|&pid| all[pid].name == "queen");
    pids.iter().find(|pid| owns_one(pid)).or_else(named).copied()
}

/// CPU used so far, in microseconds, and memory now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub broker_us: Option<u64>,
    pub postgres_us: Option<u64>,
    pub client_us: u64,
    /// All processes and interrupts of the machine.
    pub machine_us: Option<u64>,
    /// Time the hypervisor gave to others.
    pub steal_us: Option<u64>,
    pub broker_rss_kb: Option<u64>,
}

/// Reads /proc once. Costs about a millisecond for a hundred processes.
pub fn snapshot(broker: Option<u32>) -> Snapshot {
    let all = stats();
    let (machine_us, steal_us) = fs::read_to_string("/proc/stat").ok().and_then(|text| machine(&text)).unzip();
    let broker = broker.map(|pid| family(&all, pid)).filter(|family| !family.is_empty());
    let sum = |of: fn(&Stat) -> u64| broker.as_ref().map(|family| family.iter().map(|stat| of(stat)).sum::<u64>());
    Snapshot {
        broker_us: sum(|stat| stat.own_ticks).map(to_us),
        postgres_us: postgres_ticks(&all).map(to_us),
        client_us: own_cpu().as_micros() as u64,
        machine_us,
        steal_us,
        broker_rss_kb: sum(|stat| stat.resident_pages).map(|pages| pages * page_bytes() / 1024),
    }
}

/// CPU time in microseconds and resident kilobytes of one process now; the cheap reading between two snapshots.
pub fn glance(pid: u32) -> Option<(u64, u64)> {
    let stat = parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    Some((to_us(stat.own_ticks), stat.resident_pages * page_bytes() / 1024))
}

/// A process and all that descend from it, PostgreSQL's left out: a broker may be several processes.
fn family(all: &HashMap<u32, Stat>, pid: u32) -> Vec<&Stat> {
    let mut found: Vec<&Stat> = all.get(&pid).into_iter().collect();
    let mut unseen = vec![pid];
    while let Some(parent) = unseen.pop() {
        for (&child, stat) in all.iter().filter(|(_, stat)| stat.parent == parent && stat.name != "postgres") {
            found.push(stat);
            unseen.push(child);
        }
    }
    found
}

/// How a broker waits for its sockets, by the descriptors it holds: `io_uring` or `epoll`, with their numbers.
///
/// A broker on io_uring keeps at most one epoll instance, for what is not hot; one on epoll has one per thread.
pub fn driver(pid: u32) -> Option<String> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    Some(driver_of(links.map(|link| link.to_string_lossy().into_owned())))
}

fn driver_of(links: impl Iterator<Item = String>) -> String {
    let (mut rings, mut epolls) = (0, 0);
    for link in links {
        rings += usize::from(link == "anon_inode:[io_uring]");
        epolls += usize::from(link == "anon_inode:[eventpoll]");
    }
    let word = if rings > 0 && epolls <= 1 { "io_uring" } else { "epoll" };
    format!("{word} ({rings} rings, {epolls} epoll)")
}

/// The broker's settings: its environment's `QUEEN_*`, `DB_POOL_SIZE` and the like. Secrets are left out, and so is
/// where things are.
pub fn broker_settings(pid: u32) -> Option<BTreeMap<String, String>> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    Some(public_settings(&String::from_utf8_lossy(&environ)))
}

fn public_settings(environ: &str) -> BTreeMap<String, String> {
    const READ: &[&str] = &["QUEEN_", "DB_POOL_SIZE", "FILE_BUFFER_", "RETENTION_", "JWT_ENABLED", "LOG_LEVEL"];
    const HIDDEN: &[&str] = &["SECRET", "KEY", "PASSWORD", "URL", "DIR", "CERT", "ADDR", "PEERS"];
    environ
        .split('\0')
        .filter_map(|pair| pair.split_once('='))
        .filter(|(name, _)| READ.iter().any(|read| name.starts_with(read)))
        .filter(|(name, _)| !HIDDEN.iter().any(|hidden| name.contains(hidden)))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Where the PostgreSQL that a broker runs as its child listens, as libpq reads it.
pub fn embedded_postgres(broker: u32) -> Option<String> {
    let all = stats();
    let (pid, _) = all.iter().find(|(_, stat)| stat.parent == broker && stat.name == "postgres")?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<String> =
        command.split(|&byte| byte == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
    let at = words.iter().position(|word| word == "-k")?;
    Some(format!("host={} user=queen", words.get(at + 1)?))
}

fn to_us(ticks: u64) -> u64 {
    ticks * 1_000_000 / ticks_per_second()
}

/// Busy (without idle and steal) and steal of the first line of /proc/stat.
fn machine(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().filter_map(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ticks[..] else { return None };
    Some((to_us(user + nice + system + irq + softirq), to_us(steal)))
}

/// Ticks of all PostgreSQL processes. A postmaster also counts what its ended children used, so a backend that
/// goes away between two snapshots is not lost from their difference.
fn postgres_ticks(all: &HashMap<u32, Stat>) -> Option<u64> {
    let is_postgres = |stat: &Stat| stat.name == "postgres";
    let mut ticks = None;
    for stat in all.values().filter(|stat| is_postgres(stat)) {
        let postmaster = !all.get(&stat.parent).is_some_and(is_postgres);
        *ticks.get_or_insert(0) += stat.own_ticks + if postmaster { stat.reaped_ticks } else { 0 };
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn stat(parent: u32, own_ticks: u64, reaped_ticks: u64) -> Stat {
        Stat { name: "postgres".into(), parent, own_ticks, reaped_ticks, resident_pages: 0 }
    }

    #[test]
    fn a_backend_that_ends_keeps_its_time() {
        let before = HashMap::from([(10, stat(1, 5, 100)), (11, stat(10, 40, 0)), (12, stat(10, 7, 0))]);
        let after = HashMap::from([(10, stat(1, 5, 145)), (12, stat(10, 9, 0))]);
        let used = postgres_ticks(&after).unwrap() - postgres_ticks(&before).unwrap();
        assert_eq!(used, 5 + 2);
        assert_eq!(postgres_ticks(&HashMap::new()), None);
    }

    #[test]
    fn a_broker_is_all_its_processes_but_postgresql() {
        let named = |name: &str, parent, own_ticks| Stat { name: name.into(), ..stat(parent, own_ticks, 0) };
        let all = HashMap::from([
            (10, named("queen", 1, 5)),
            (11, named("worker", 10, 7)),
            (12, named("helper", 11, 9)),
            (13, named("postgres", 10, 100)),
            (14, named("postgres", 13, 100)),
            (15, named("other", 1, 100)),
        ]);
        assert_eq!(family(&all, 10).iter().map(|stat| stat.own_ticks).sum::<u64>(), 21);
        assert!(family(&all, 99).is_empty());
    }

    #[test]
    fn the_driver_is_told_by_the_descriptors() {
        let told = |rings: usize, epolls: usize| {
            let links =
                ["anon_inode:[io_uring]"].repeat(rings).into_iter().chain(["anon_inode:[eventpoll]"].repeat(epolls));
            driver_of(links.chain(["socket:[7]"]).map(str::to_owned))
        };
        assert_eq!(told(5, 1), "io_uring (5 rings, 1 epoll)");
        assert_eq!(told(3, 3), "epoll (3 rings, 3 epoll)"); // The spool's thread has rings of its own.
        assert_eq!(told(0, 8), "epoll (0 rings, 8 epoll)");
    }

    #[test]
    fn settings_are_told_and_secrets_are_not() {
        let told = public_settings(
            "PATH=/bin\0QUEEN_SHARDS=2\0QUEEN_ENCRYPTION_KEY=aa\0QUEEN_SYNC_SECRET=b\0DB_POOL_SIZE=40\0PG_PASSWORD=c\0",
        );
        let want = [("DB_POOL_SIZE", "40"), ("QUEEN_SHARDS", "2")];
        assert_eq!(told, want.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn a_name_with_parentheses_is_read() {
        let text = "7 (a (b) c) S 3 1 1 0 -1 4194304 1 2 3 4 50 60 70 80 20 0 1 0 99 1000 25 18446744073709551615";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.name.as_str(), stat.parent), ("a (b) c", 3));
        assert_eq!((stat.own_ticks, stat.reaped_ticks, stat.resident_pages), (110, 150, 25));
        assert_eq!(parse_stat("7 (x"), None);
    }

    #[test]
    fn the_listener_of_a_port_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(find_broker(port), Some(std::process::id()));
        let seen = snapshot(Some(std::process::id()));
        assert!(seen.broker_rss_kb.unwrap() > 0 && seen.client_us > 0);
    }
}
