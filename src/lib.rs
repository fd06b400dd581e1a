//! The edge of the broker: sockets, PostgreSQL, disk, clock, environment. The engine is `queen-shards`.

pub mod auth;
pub mod cipher;
pub mod config;
pub mod conn;
pub mod control;
pub mod core_thread;
pub mod embedded;
pub mod flags;
pub mod follow;
pub mod gate;
pub mod http;
pub mod hub;
pub mod jobs;
pub mod limits;
pub mod mail;
pub mod planted;
pub mod rt;
pub mod slots;
pub mod spool;
pub mod state;
pub mod store;
pub mod telemetry;
pub mod tls;
pub mod torture;
pub mod wire;
pub mod writer;
