//! The store against a real PostgreSQL: a private cluster, one database per test.

mod support;

mod appends;
mod bundle;
mod connections;
mod cost;
mod cursors;
mod embedded;
mod groups;
mod keys;
mod log;
mod old_snapshot;
mod pages;
mod plans;
mod provisioning;
mod reads;
mod runs;
mod schema;
