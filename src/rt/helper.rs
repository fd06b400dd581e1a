//! Work that is too long for a shard's thread, done by one low-priority thread of the process.

use super::doorbell::Ringer;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

type Job = Box<dyn FnOnce() + Send>;

/// Added to the thread's nice value: it gets what the shards leave.
const NICE: i32 = 10;

/// What `work` returns, done elsewhere, after what was asked before. Callers bound how much they ask.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let ringer = Ringer::new()?;
    let mut bell = ringer.doorbell()?;
    let place = Arc::new(Mutex::new(None));
    let result = place.clone();
    let job: Job = Box::new(move || {
        let done = work();
        *result.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(done);
        ringer.ring();
    });
    helper()?.send(job).map_err(|_| io::Error::other("the helper thread has ended"))?;
    loop {
        bell.wait().await;
        if let Some(done) = place.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take() {
            return Ok(done);
        }
    }
}

fn helper() -> io::Result<Sender<Job>> {
    static HELPER: OnceLock<Mutex<Option<Sender<Job>>>> = OnceLock::new();
    let mut sender = HELPER.get_or_init(Mutex::default).lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(sender) = &*sender {
        return Ok(sender.clone());
    }
    let (send, jobs) = channel::<Job>();
    std::thread::Builder::new().name("queen-helper".into()).spawn(move || {
        leave_the_cores();
        jobs.into_iter().for_each(|job| job());
    })?;
    Ok(sender.insert(send).clone())
}

/// A new thread inherits the core its maker is pinned to: it takes the main thread's mask instead, which is all of them.
fn leave_the_cores() {
    // SAFETY: the set is ours and its size is given; the calls fail without an effect, which only costs speed.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(libc::getpid(), size_of::<libc::cpu_set_t>(), &mut set) == 0 {
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
    }
}
