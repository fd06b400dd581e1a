//! A disk in memory that remembers what was synced, fails where it is told, and loses power.

use super::Rng;
use crate::spool::disk::{Disk, Entry, FAILED_DIR};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;

/// What a torn write leaves whole.
const SECTOR: usize = 512;

#[derive(Clone, Default)]
struct Inode {
    /// As the process sees it.
    now: Vec<u8>,
    /// After a power cut, for sure.
    synced: Vec<u8>,
    /// Written since the last sync.
    pending: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone)]
enum NameStep {
    Link(String, usize),
    Unlink(String),
    /// Both or neither.
    Rename(String, String, usize),
}

#[derive(Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    pending_names: Vec<NameStep>,
}

/// See the module. Clones are the same disk.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Rc<RefCell<State>>,
    /// Operations left before the power goes; then everything fails.
    power: Rc<Cell<Option<u64>>>,
    /// Writes and syncs that fail, per mille, and the generator that says which.
    faults: Rc<Cell<u64>>,
    rng: Rc<RefCell<Option<Rng>>>,
    /// Bytes the disk has, all files together.
    room: Rc<Cell<Option<usize>>>,
    pub syncs: Rc<Cell<u64>>,
    /// Files that are open.
    pub handles: Rc<Cell<u64>>,
    /// Reads of files so far.
    pub reads: Rc<Cell<u64>>,
    /// Opens and reads that succeed, how many fail after them, and with which number of the system.
    unreadable: Rc<Cell<(u64, u64, i32)>>,
    /// Changes and syncs of names that succeed, and how many fail after them.
    unmoved: Rc<Cell<(u64, u64)>>,
    /// Opens that fail, and so.
    unopened: Rc<Cell<(u64, i32)>>,
}

impl SimDisk {
    pub fn cut_after(&self, operations: u64) {
        self.power.set(Some(operations));
    }

    pub fn fail(&self, per_mille: u64, seed: u64) {
        self.faults.set(per_mille);
        *self.rng.borrow_mut() = Some(Rng::new(seed));
    }

    /// After so many opens and reads of files so many fail.
    pub fn fail_reads(&self, after: u64, times: u64, number: i32) {
        self.unreadable.set((after, times, number));
    }

    /// So many opens fail; files that are open are read.
    pub fn fail_opens(&self, times: u64, number: i32) {
        self.unopened.set((times, number));
    }

    /// After so many removals, renames and syncs of names so many fail.
    pub fn fail_moves(&self, after: u64, times: u64) {
        self.unmoved.set((after, times));
    }

    pub fn room(&self, bytes: Option<usize>) {
        self.room.set(bytes);
    }

    /// A file as it lies there.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let mut state = self.state.borrow_mut();
        state.inodes.push(Inode { now: bytes.clone(), synced: bytes, pending: Vec::new() });
        let inode = state.inodes.len() - 1;
        state.names.insert(name.into(), inode);
        state.synced_names.insert(name.into(), inode);
    }

    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state.borrow();
        state.names.get(name).map(|inode| state.inodes[*inode].now.clone())
    }

    pub fn names(&self) -> Vec<String> {
        self.state.borrow().names.keys().cloned().collect()
    }

    /// The disk after the power came back: what was not synced is lost, or there, or torn at sectors, in any mixture;
    /// of the changes of names since the last sync some first ones are there.
    pub fn after_cut(&self, rng: &mut Rng) -> SimDisk {
        let state = self.state.borrow();
        let image = SimDisk::default();
        let mut names = state.synced_names.clone();
        let kept = rng.below(state.pending_names.len() as u64 + 1) as usize;
        for step in &state.pending_names[..kept] {
            match step {
                NameStep::Link(name, inode) => drop(names.insert(name.clone(), *inode)),
                NameStep::Unlink(name) => drop(names.remove(name)),
                NameStep::Rename(from, to, inode) => {
                    names.remove(from);
                    names.insert(to.clone(), *inode);
                }
            }
        }
        for (name, inode) in names {
            let inode = &state.inodes[inode];
            let mut bytes = inode.synced.clone();
            for (at, written) in &inode.pending {
                for (i, sector) in written.chunks(SECTOR).enumerate() {
                    if rng.chance(500) {
                        let from = at + i * SECTOR;
                        if bytes.len() < from + sector.len() {
                            bytes.resize(from + sector.len(), 0);
                        }
                        bytes[from..from + sector.len()].copy_from_slice(sector);
                    }
                }
            }
            image.put(&name, bytes);
        }
        image
    }

    fn spend(&self) -> io::Result<()> {
        match self.power.get() {
            Some(0) => Err(io::Error::other("no power")),
            Some(n) => {
                self.power.set(Some(n - 1));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn opens_and_reads(&self) -> io::Result<()> {
        let (after, times, number) = self.unreadable.get();
        match (after, times) {
            (0, 0) => Ok(()),
            (0, _) => {
                self.unreadable.set((0, times - 1, number));
                Err(io::Error::from_raw_os_error(number))
            }
            _ => {
                self.unreadable.set((after - 1, times, number));
                Ok(())
            }
        }
    }

    fn moves(&self) -> io::Result<()> {
        match self.unmoved.get() {
            (0, 0) => Ok(()),
            (0, times) => {
                self.unmoved.set((0, times - 1));
                Err(io::Error::from_raw_os_error(libc::EROFS))
            }
            (after, times) => {
                self.unmoved.set((after - 1, times));
                Ok(())
            }
        }
    }

    fn luck(&self) -> io::Result<()> {
        let fails = self.rng.borrow_mut().as_mut().is_some_and(|rng| rng.chance(self.faults.get()));
        if fails { Err(io::Error::other("EIO")) } else { Ok(()) }
    }
}

impl Disk for SimDisk {
    type File = usize;

    async fn list(&self, failed: bool) -> io::Result<Vec<Entry>> {
        self.spend()?;
        let state = self.state.borrow();
        let prefix = format!("{FAILED_DIR}/");
        let all = state.names.iter().filter_map(|(name, inode)| {
            let name = match (failed, name.strip_prefix(&prefix)) {
                (true, Some(name)) => name,
                (false, None) => name,
                _ => return None,
            };
            Some(Entry { name: name.into(), bytes: state.inodes[*inode].now.len() as u64, regular: true })
        });
        Ok(all.collect())
    }

    async fn create(&self, name: &str) -> io::Result<usize> {
        self.spend()?;
        let mut state = self.state.borrow_mut();
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.inodes.push(Inode::default());
        let inode = state.inodes.len() - 1;
        state.names.insert(name.into(), inode);
        state.pending_names.push(NameStep::Link(name.into(), inode));
        self.handles.set(self.handles.get() + 1);
        Ok(inode)
    }

    async fn open(&self, name: &str) -> io::Result<usize> {
        self.spend()?;
        self.opens_and_reads()?;
        let (times, number) = self.unopened.get();
        if 0 < times {
            self.unopened.set((times - 1, number));
            return Err(io::Error::from_raw_os_error(number));
        }
        let inode = self.state.borrow().names.get(name).copied().ok_or(io::ErrorKind::NotFound)?;
        self.handles.set(self.handles.get() + 1);
        Ok(inode)
    }

    async fn write(&self, file: &usize, at: u64, blocks: Vec<u8>) -> io::Result<()> {
        self.spend()?;
        let mut state = self.state.borrow_mut();
        let used: usize = state.names.values().map(|inode| state.inodes[*inode].now.len()).sum();
        let end = at as usize + blocks.len();
        let more = end.saturating_sub(state.inodes[*file].now.len());
        if self.room.get().is_some_and(|room| used + more > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let inode = &mut state.inodes[*file];
        if inode.now.len() < end {
            inode.now.resize(end, 0);
        }
        inode.now[at as usize..end].copy_from_slice(&blocks);
        inode.pending.push((at as usize, blocks));
        drop(state);
        self.luck()
    }

    async fn read(&self, file: &usize, at: u64, len: usize) -> io::Result<Vec<u8>> {
        self.spend()?;
        self.opens_and_reads()?;
        self.reads.set(self.reads.get() + 1);
        let state = self.state.borrow();
        let bytes = &state.inodes[*file].now;
        let from = bytes.len().min(at as usize);
        Ok(bytes[from..bytes.len().min(from + len)].to_vec())
    }

    async fn sync(&self, file: &usize) -> io::Result<()> {
        self.spend()?;
        self.luck()?;
        self.syncs.set(self.syncs.get() + 1);
        let inode = &mut self.state.borrow_mut().inodes[*file];
        inode.synced = inode.now.clone();
        inode.pending.clear();
        Ok(())
    }

    async fn truncate(&self, file: &usize, len: u64) -> io::Result<()> {
        self.spend()?;
        self.state.borrow_mut().inodes[*file].now.truncate(len as usize);
        Ok(())
    }

    async fn close(&self, _: usize) {
        self.handles.set(self.handles.get() - 1);
    }

    async fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.spend()?;
        self.moves()?;
        let mut state = self.state.borrow_mut();
        let inode = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.into(), inode);
        state.pending_names.push(NameStep::Rename(from.into(), to.into(), inode));
        Ok(())
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        self.spend()?;
        self.moves()?;
        let mut state = self.state.borrow_mut();
        state.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        state.pending_names.push(NameStep::Unlink(name.into()));
        Ok(())
    }

    async fn sync_names(&self) -> io::Result<()> {
        self.spend()?;
        self.moves()?;
        let mut state = self.state.borrow_mut();
        state.synced_names = state.names.clone();
        state.pending_names.clear();
        Ok(())
    }
}
