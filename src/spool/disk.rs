//! The disk under the spool, as a trait: files in one directory, written in whole blocks, durable after a sync.
//!
//! Holds: `write` takes whole blocks at whole blocks ([`BLOCK`]); nothing is durable before `sync` of the file and,
//! for names, `sync_names`. A test puts another disk here, which loses and tears what was not synced.

use super::format::BLOCK;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Subdirectory of what was set aside.
pub const FAILED_DIR: &str = "failed";

/// A file as the directory lists it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: String,
    pub bytes: u64,
    /// Not a link, a directory or a device.
    pub regular: bool,
}

/// Files of the spool. Names are relative to its directory; `failed/x` is the one subdirectory.
#[allow(async_fn_in_trait, reason = "one thread, never boxed")]
pub trait Disk {
    type File;
    /// Files directly in the directory, or in `failed`, in no order.
    async fn list(&self, failed: bool) -> io::Result<Vec<Entry>>;
    /// A new file; fails when there is one.
    async fn create(&self, name: &str) -> io::Result<Self::File>;
    /// For reading. Follows no link.
    async fn open(&self, name: &str) -> io::Result<Self::File>;
    async fn write(&self, file: &Self::File, at: u64, blocks: Vec<u8>) -> io::Result<()>;
    /// Bytes from `at` (a whole block) on; fewer than `len` only at the end.
    async fn read(&self, file: &Self::File, at: u64, len: usize) -> io::Result<Vec<u8>>;
    async fn sync(&self, file: &Self::File) -> io::Result<()>;
    async fn truncate(&self, file: &Self::File, len: u64) -> io::Result<()>;
    async fn close(&self, file: Self::File);
    async fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    async fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes names durable: of the directory, and of `failed`.
    async fn sync_names(&self) -> io::Result<()>;
}

/// Ordinary files through the page cache.
pub struct Plain {
    dir: PathBuf,
}

impl Plain {
    pub fn new(dir: &Path) -> Plain {
        Plain { dir: dir.into() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// Makes the directory and its `failed`, with names that last.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    let failed = dir.join(FAILED_DIR);
    if !failed.is_dir() {
        fs::create_dir_all(&failed)?;
        sync_dir(dir)?;
        dir.parent().map_or(Ok(()), sync_dir)?;
    }
    Ok(())
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

impl Disk for Plain {
    type File = File;

    async fn list(&self, failed: bool) -> io::Result<Vec<Entry>> {
        let dir = if failed { self.path(FAILED_DIR) } else { self.dir.clone() };
        let mut entries = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            // A name that is not UTF-8 is not one of ours.
            let Ok(name) = entry.file_name().into_string() else { continue };
            let about = entry.metadata()?;
            entries.push(Entry { name, bytes: about.len(), regular: about.file_type().is_file() });
        }
        Ok(entries)
    }

    async fn create(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(self.path(name))
    }

    async fn open(&self, name: &str) -> io::Result<File> {
        // A pipe in the place of a file must not block.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        OpenOptions::new().read(true).custom_flags(flags).open(self.path(name))
    }

    async fn write(&self, file: &File, at: u64, blocks: Vec<u8>) -> io::Result<()> {
        debug_assert!(at.is_multiple_of(BLOCK as u64) && blocks.len().is_multiple_of(BLOCK));
        file.write_all_at(&blocks, at)
    }

    async fn read(&self, file: &File, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            match file.read_at(&mut bytes[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    async fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    async fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    async fn close(&self, _: File) {}

    async fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path(from), self.path(to))
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path(name))
    }

    async fn sync_names(&self) -> io::Result<()> {
        sync_dir(&self.dir)?;
        sync_dir(&self.path(FAILED_DIR))
    }
}
