//! Layouts of recorded machines, whole pages compared with what is kept beside the recordings.

use crate::layout::{Postgres, propose};
use crate::list;
use crate::machine::Machine;
use crate::page::render;
use crate::source::Source;
use std::fs;
use std::path::{Path, PathBuf};

fn machines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("machines")
}

fn machine(name: &str) -> Machine {
    let text = fs::read_to_string(machines().join(format!("{name}.txt"))).unwrap();
    Machine::read(&Source::recorded(&text).unwrap()).unwrap()
}

/// QUEEN_REGENERATE=1 writes the page instead of comparing it.
#[track_caller]
fn check_page(name: &str, postgres: Postgres, kept: &str) {
    let machine = machine(name);
    let page = render(&machine, &propose(&machine, postgres), None);
    let path = machines().join(kept);
    if std::env::var_os("QUEEN_REGENERATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    assert_eq!(page, fs::read_to_string(&path).unwrap_or_default(), "{kept}: QUEEN_REGENERATE=1 writes it");
}

/// Shards, threads of PostgreSQL, as lists.
fn layout(name: &str, postgres: Postgres) -> (String, String) {
    let layout = propose(&machine(name), postgres);
    (list::render(&layout.shards), list::render(&layout.database))
}

#[test]
fn pages_are_as_kept() {
    for name in
        ["1-node-2-cores", "1-node-16-cores-smt", "2-nodes-64-cores-smt", "4-nodes-32-cores", "container-3.5-of-16"]
    {
        check_page(name, Postgres::Here, &format!("{name}.here.expected"));
    }
    check_page("2-nodes-64-cores-smt", Postgres::Elsewhere, "2-nodes-64-cores-smt.elsewhere.expected");
}

#[test]
fn two_cores_are_shared() {
    assert_eq!(layout("1-node-2-cores", Postgres::Here), ("0-1".into(), String::new()));
}

#[test]
fn a_shard_has_a_physical_core() {
    // 16 cores, threads 0-15 and 16-31: eleven shards on first threads, PostgreSQL on both threads of five cores.
    assert_eq!(layout("1-node-16-cores-smt", Postgres::Here), ("0-10".into(), "11-15,27-31".into()));
}

#[test]
fn nodes_are_given_whole_and_shards_go_to_the_card() {
    // The card is at node 1, whose cores are 32-63 and 96-127.
    let (shards, database) = layout("2-nodes-64-cores-smt", Postgres::Here);
    assert_eq!((shards.as_str(), database.as_str()), ("32-63", "0-31,64-95"));
    let interrupts = propose(&machine("2-nodes-64-cores-smt"), Postgres::Here).interrupts;
    assert_eq!(interrupts.len(), 8);
    assert!(interrupts.iter().all(|(_, cpus)| cpus.iter().all(|cpu| (96..128).contains(cpu))), "{interrupts:?}");
    let (shards, database) = layout("4-nodes-32-cores", Postgres::Here);
    assert_eq!((shards.as_str(), database.as_str()), ("0-23", "24-31"));
}

#[test]
fn elsewhere_means_all_cores() {
    assert_eq!(layout("2-nodes-64-cores-smt", Postgres::Elsewhere), ("0-63".into(), String::new()));
}

#[test]
fn a_quota_counts_before_cores() {
    let layout = propose(&machine("container-3.5-of-16"), Postgres::Here);
    assert_eq!(layout.shards.len(), 2, "two thirds of the 3 whole cores that 3.5 pay for");
    assert!(layout.warnings[0].contains("3.5 of 8 cores"), "{:?}", layout.warnings);
}

#[test]
fn a_recording_is_what_it_was_made_of() {
    let text = fs::read_to_string(machines().join("2-nodes-64-cores-smt.txt")).unwrap();
    let again = Source::recorded(&text).unwrap().record();
    let facts = |text: &str| format!("{:?}", Machine::read(&Source::recorded(text).unwrap()).unwrap());
    assert_eq!(facts(&text), facts(&again));
}

#[test]
fn this_machine_has_a_layout_too() {
    let machine = Machine::read(&Source::Live).unwrap();
    for postgres in [Postgres::Here, Postgres::Elsewhere] {
        let layout = propose(&machine, postgres);
        assert!(!layout.shards.is_empty() && layout.shards.iter().all(|cpu| !layout.database.contains(cpu)));
        assert!(render(&machine, &layout, None).contains("Layout"));
    }
    let recorded = Source::recorded(&Source::Live.record()).unwrap();
    assert_eq!(format!("{:?}", Machine::read(&recorded).unwrap().cpus), format!("{:?}", machine.cpus));
}

#[test]
fn lists_are_read_and_written() {
    assert_eq!(list::parse("0-2,8,10-11\n"), Some(vec![0, 1, 2, 8, 10, 11]));
    assert_eq!(list::render(&[11, 0, 2, 1, 8, 10]), "0-2,8,10-11");
    assert_eq!(list::parse("x"), None);
}

#[test]
fn what_is_no_recording_is_refused() {
    assert!(Source::recorded("hello").is_err());
    let empty = Source::recorded("== /proc/meminfo\nMemTotal: 1 kB\n").unwrap();
    assert!(Machine::read(&empty).unwrap_err().contains("no CPUs"));
}

#[test]
fn a_sync_of_the_disk_is_timed() {
    let times = crate::disk::sync_times(&std::env::temp_dir()).unwrap();
    assert!(times.p50 <= times.p99);
    assert!(crate::disk::sync_times(Path::new("/nowhere")).is_err());
}
