//! The processes of a run and the network between them.
//!
//!     clients > Link > broker (1 or 2) > Link > PostgreSQL

pub mod broker;
pub mod postgres;
pub mod process;
pub mod proxy;

use broker::Broker;
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

pub struct World {
    /// Dropped first to last: brokers before their database.
    pub sides: Vec<Side>,
    pub postgres: Postgres,
    dir: PathBuf,
    keep: bool,
}

impl World {
    /// Starts everything under `dir`, which must not be there yet; waits until the brokers serve.
    pub fn start(dir: &Path, binary: &Path, brokers: u8, env: &[(String, String)], keep: bool) -> io::Result<World> {
        std::fs::create_dir_all(dir)?;
        // PostgreSQL runs as another user where this process is root.
        std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        let postgres = Postgres::start(&dir.join("pg"))?;
        let mut sides = Vec::new();
        for n in 0..brokers {
            let database = Link::start(process::free_port()?, postgres.port)?;
            let broker = Broker::new(binary, &dir.join(format!("broker{n}")), database.port, env)?;
            let clients = Link::start(process::free_port()?, broker.port)?;
            sides.push(Side { clients, broker, database, hand: Mutex::default() });
        }
        let world = World { sides, postgres, dir: dir.to_owned(), keep };
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
