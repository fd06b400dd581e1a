//! Files with direct I/O on glommio's ring: what is written does not pass, and does not fill, the page cache.
//!
//! Names (list, rename, remove) are plain calls: they are few, and this thread serves nobody else.

use super::disk::{Disk, Entry, Plain};
use super::format::BLOCK;
use glommio::GlommioError;
use glommio::io::{DmaFile, OpenOptions};
use std::io;
use std::path::Path;

/// Written and read at a time: a buffer of the ring's memory.
const PIECE: usize = 256 * 1024;

/// See the module. On a glommio executor only.
pub struct Direct {
    names: Plain,
}

impl Direct {
    /// Fails where the file system does not do direct I/O: a file is written, read and removed again.
    ///
    /// The first file that glommio opens on a device tells it, once for the process, whether the device can be polled:
    /// it reads the first block. Of an empty file that read succeeds without asking the device, and every later read
    /// of a device that cannot be polled fails, so the probe has a block before the ring sees it.
    pub async fn new(dir: &Path) -> io::Result<Direct> {
        const PROBE: &str = "probe";
        let direct = Direct { names: Plain::new(dir) };
        let _ = direct.remove(PROBE).await;
        let plain = direct.names.create(PROBE).await?;
        let filled = direct.names.write(&plain, 0, vec![0; BLOCK]).await;
        let filled = filled.and(direct.names.sync(&plain).await);
        direct.names.close(plain).await;
        let proved = match filled {
            Ok(()) => direct.prove(PROBE).await,
            Err(error) => Err(error),
        };
        direct.remove(PROBE).await?;
        proved.map(|()| direct)
    }

    async fn prove(&self, name: &str) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW);
        let file = options.dma_open(self.names.path(name)).await?;
        let written = self.write(&file, 0, vec![0; BLOCK]).await;
        let synced = self.sync(&file).await;
        let read = self.read(&file, 0, BLOCK).await;
        self.close(file).await;
        written.and(synced).and(read).map(drop)
    }
}

impl Disk for Direct {
    type File = DmaFile;

    async fn list(&self, failed: bool) -> io::Result<Vec<Entry>> {
        self.names.list(failed).await
    }

    async fn create(&self, name: &str) -> io::Result<DmaFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        Ok(options.dma_open(self.names.path(name)).await?)
    }

    async fn open(&self, name: &str) -> io::Result<DmaFile> {
        let mut options = OpenOptions::new();
        // Without O_NONBLOCK, which a ring takes for "answer at once or not at all".
        options.read(true).custom_flags(libc::O_NOFOLLOW);
        options.dma_open(self.names.path(name)).await.map_err(numbered)
    }

    async fn write(&self, file: &DmaFile, at: u64, blocks: Vec<u8>) -> io::Result<()> {
        let mut at = at;
        for piece in blocks.chunks(PIECE) {
            let mut buffer = file.alloc_dma_buffer(piece.len());
            buffer.as_bytes_mut()[..piece.len()].copy_from_slice(piece);
            let written = file.write_at(buffer, at).await?;
            if written != piece.len() {
                // The disk took what it had room for.
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            at += written as u64;
        }
        Ok(())
    }

    async fn read(&self, file: &DmaFile, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let wanted = (len - bytes.len()).min(PIECE);
            let piece = file.read_at(at + bytes.len() as u64, wanted).await.map_err(numbered)?;
            bytes.extend_from_slice(&piece);
            if piece.len() < wanted {
                break;
            }
        }
        Ok(bytes)
    }

    async fn sync(&self, file: &DmaFile) -> io::Result<()> {
        Ok(file.fdatasync().await?)
    }

    async fn truncate(&self, file: &DmaFile, len: u64) -> io::Result<()> {
        Ok(file.truncate(len).await?)
    }

    async fn close(&self, file: DmaFile) {
        let _ = file.close().await;
    }

    async fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.names.rename(from, to).await
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        self.names.remove(name).await
    }

    async fn sync_names(&self) -> io::Result<()> {
        self.names.sync_names().await
    }
}

/// With the number of the system, which glommio leaves out: it says whether it is the machine that is short of something.
fn numbered(error: GlommioError<()>) -> io::Error {
    match error {
        GlommioError::EnhancedIoError { source, .. } => source,
        error => error.into(),
    }
}
