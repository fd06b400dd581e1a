//! Behind a pooler that shares sessions (PgBouncer, `pool_mode = transaction`): everything works as on a direct connection;
//! hints are lost, because LISTEN belongs to a session, so the log is read in turns. Source: operations 7.2, 8.2.

use super::ALL;
use super::sees::{p, wakes_across};
use crate::harness::{
    Broker, Postgres, Setup, as_postgres, eventually, free_port, give_to_postgres, scratch_dir, spawn, unique,
};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PGBOUNCER: &str = "/usr/sbin/pgbouncer";

/// PgBouncer in front of a server, with fewer sessions than the brokers open connections.
struct Pooler {
    port: u16,
    process: Child,
}

impl Pooler {
    fn before(postgres: &Postgres) -> Pooler {
        let (dir, port) = (scratch_dir("pooler"), free_port());
        give_to_postgres(&dir);
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\n\
             default_pool_size = 4\nmax_client_conn = 200\n",
            postgres.port
        );
        let file = dir.join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("settings");
        let log = std::fs::File::create(dir.join("log")).expect("log");
        let mut command = Command::new(PGBOUNCER);
        command.arg(&file).stdin(Stdio::null()).stdout(log.try_clone().expect("dup")).stderr(log);
        as_postgres(&mut command);
        let process = spawn(command, libc::SIGKILL).expect("pgbouncer starts");
        eventually("the pooler listens", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        Pooler { port, process }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
    }
}

/// Lines of a log that say that something went wrong.
fn complaints(broker: &Broker) -> Vec<String> {
    broker.log().lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).map(str::to_owned).collect()
}

#[test]
fn behind_a_pooler_hints_are_lost_and_nothing_else() {
    if !Path::new(PGBOUNCER).exists() {
        eprintln!("NOT RUN: brokers behind a pooler: {PGBOUNCER} is missing, .ci/setup --tests installs it");
        assert!(std::env::var_os("CI").is_none(), "CI has everything that tests need");
        return;
    }
    let postgres = Postgres::start(&[]);
    let pooler = Pooler::before(&postgres);
    let start = || Setup::on(&postgres, "postgres").env("PG_PORT", &pooler.port.to_string()).start();
    let (a, b) = (start(), start());
    let quiet = [complaints(&a), complaints(&b)];
    for broker in [&a, &b] {
        eventually("LISTEN is given up", || broker.log().contains("LISTEN hears nothing here").then_some(()));
    }

    let took = wakes_across(&a, &b, 30, Duration::ZERO);
    println!("p50 {:?}, most {:?}", p(&took, 500), p(&took, 1000));
    assert!(p(&took, 1000) < Duration::from_secs(1), "{took:?}");

    // Sessions change under every call, and those of both brokers are the same ones.
    let q = unique("pooled");
    let brokers = [&a, &b];
    for round in 0..40 {
        let (from, to) = (brokers[round % 2], brokers[(round + 1) % 2]);
        let key = format!("m{round}");
        assert_eq!(from.push_keys(&q, &format!("p{}", round % 5), &[&key])[0]["status"], "queued");
        let pop = to.pop(&q, ALL);
        assert_eq!(pop.keys(), [&*key]);
        from.complete("g", &pop);
    }
    for (broker, before) in brokers.iter().zip(quiet) {
        let log = broker.log();
        assert_eq!(log.matches("LISTEN hears nothing here").count(), 1, "it is said once");
        assert_eq!(complaints(broker), before, "nothing fails");
    }
}
