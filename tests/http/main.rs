//! Black box over HTTP: the binary, a real PostgreSQL, nothing of the broker's code.
//!
//! One module per family. The tests of `invariants` carry the number of their rule in data plane 14; `probes` those of
//! faults met in the field. Most run twice, see `harness::rules`.

mod harness;

mod bad_input;
mod binary;
mod churn;
mod commits;
mod configure;
mod conflation;
mod dead_letters;
mod embedded;
mod encryption;
mod groups;
mod health;
mod hostile;
mod invariants;
mod lease;
mod lifecycle;
mod messages;
mod minutes;
mod pop;
mod probes;
mod push;
mod redrive;
mod resources;
mod retention;
mod routes;
mod silence;
mod tenants;
mod tls;
mod tokens;
mod transaction;
mod transport;
mod upgrade;
mod vectors;
mod wire;
mod worked_cases;
