//! The processes of a run and the network between them.
//!
//!     clients > Link > broker (1 or 2) > Link > (pgbouncer >) PostgreSQL

pub mod broker;
pub mod clocks;
pub mod pooler;
pub mod postgres;
pub mod process;
pub mod proxy;

use broker::Broker;
use clocks::{Clocks, Whose};
use pooler::Pooler;
use postgres::Postgres;
use proxy::Link;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// One broker with the links before and behind it.
pub struct Side {
    pub clients: Link,
    pub broker: Broker,
    pub database: Link,
    /// Held by whoever hurts the broker's process.
    pub hand: Mutex<()>,
}

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The broker.
    pub binary: PathBuf,
    pub brokers: u8,
    /// For the brokers.
    pub env: Vec<(String, String)>,
    /// A pooler in transaction mode before PostgreSQL.
    pub pooler: bool,
    /// Clocks can jump.
    pub clocks: bool,
    /// The directory stays behind.
    pub keep: bool,
}

impl Setup {
    /// Brokers at PostgreSQL, with nothing special.
    pub fn plain(binary: &Path, brokers: u8) -> Setup {
        Setup { binary: binary.to_owned(), brokers, env: Vec::new(), pooler: false, clocks: false, keep: false }
    }
}

pub struct World {
    /// Dropped first to last: brokers before their database.
    pub sides: Vec<Side>,
    pub pooler: Option<Pooler>,
    pub postgres: Postgres,
    pub clocks: Option<Clocks>,
    dir: PathBuf,
    keep: bool,
}

impl World {
    /// Starts everything under `dir`, which must not be there yet; waits until the brokers serve.
    pub fn start(dir: &Path, setup: &Setup) -> io::Result<World> {
        std::fs::create_dir_all(dir)?;
        // PostgreSQL runs as another user where this process is root.
        std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let clocks = match setup.clocks {
            true => Some(Clocks::under(dir)?.ok_or_else(|| io::Error::other("no libfaketime here: apt install it"))?),
            false => None,
        };
        let env = |whose| clocks.as_ref().map_or(Vec::new(), |clocks| clocks.env(whose));
        let postgres = Postgres::start(&dir.join("pg"), env(Whose::Database))?;
        let pooler = setup.pooler.then(|| Pooler::start(&dir.join("pooler"), postgres.port)).transpose()?;
        let server = pooler.as_ref().map_or(postgres.port, |pooler| pooler.port);
        let broker_env = [setup.env.clone(), env(Whose::Brokers)].concat();
        let mut sides = Vec::new();
        for n in 0..setup.brokers {
            let database = Link::start(process::free_port()?, server)?;
            let broker = Broker::new(&setup.binary, &dir.join(format!("broker{n}")), database.port, &broker_env)?;
            let clients = Link::start(process::free_port()?, broker.port)?;
            sides.push(Side { clients, broker, database, hand: Mutex::default() });
        }
        let world = World { sides, pooler, postgres, clocks, dir: dir.to_owned(), keep: setup.keep };
        for side in &world.sides {
            side.broker.start()?;
        }
        Ok(world)
    }

    /// Ports that clients use.
    pub fn ports(&self) -> Vec<u16> {
        self.sides.iter().map(|side| side.clients.port).collect()
    }

    /// Leaves the directory behind when this goes.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.sides.clear();
        self.postgres.end(libc::SIGQUIT);
        if !self.keep {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}
