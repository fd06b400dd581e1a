//! Black box: two brokers on one database. What one answered, the other one sees; none depends on the other. Source:
//! operations 7; data plane 3.4 (a pop after the answer must see it); rules 8 to 11.

#[path = "../http/harness/mod.rs"]
mod harness;

mod pooled;
mod sees;
mod survives;

use harness::{Broker, Setup, shared_postgres};

/// Two brokers, each with a spool of its own.
fn two() -> (Broker, Broker) {
    two_with(|setup| setup)
}

fn two_with(set: impl Fn(Setup) -> Setup) -> (Broker, Broker) {
    let database = shared_postgres().create_database();
    let start = || set(Setup::on(shared_postgres(), &database)).start();
    (start(), start())
}

const ALL: &str = "consumerGroup=g&subscriptionMode=all&batch=100&partitions=64";

/// The same for a parked poll.
fn parked(timeout_ms: u64) -> String {
    format!("{ALL}&wait=true&timeout={timeout_ms}")
}
