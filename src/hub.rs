//! Hand-off between threads: one bounded mailbox per shard, any thread may send.
//!
//!     any thread: send -> queue of the target ... the bell rings only if the target sleeps
//!     the target's thread: drain until empty -> wait (sleeping flag up, look once more, then the bell)
//!
//! Holds: a mailbox never grows; a full one gives the message back, and [`Hub::send_wait`] makes the sender wait,
//! which ends in TCP back-pressure. Mail from one thread to one target arrives in order. Knows nothing of mail.

use crate::rt::{Doorbell, Ringer, sleep};
use crossbeam::queue::ArrayQueue;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

/// Pause of a sender whose target is full: long enough to let it work, short against a commit.
const FULL_PAUSE: Duration = Duration::from_millis(1);

struct Mailbox<M> {
    queue: ArrayQueue<M>,
    /// The owner is about to wait for the bell, or waits: whoever takes the flag down rings.
    asleep: AtomicBool,
    bell: Ringer,
}

/// The mailboxes of all shards. Cheap to clone.
pub struct Hub<M> {
    boxes: Arc<[Mailbox<M>]>,
}

impl<M> Clone for Hub<M> {
    fn clone(&self) -> Self {
        Hub { boxes: self.boxes.clone() }
    }
}

impl<M: Send + 'static> Hub<M> {
    /// `targets` mailboxes of `capacity` messages each. Fails for want of descriptors.
    pub fn new(targets: usize, capacity: usize) -> io::Result<Hub<M>> {
        let mailbox = |_| {
            let bell = Ringer::new()?;
            Ok(Mailbox { queue: ArrayQueue::new(capacity), asleep: AtomicBool::new(false), bell })
        };
        Ok(Hub { boxes: (0..targets).map(mailbox).collect::<io::Result<Arc<[_]>>>()? })
    }

    /// How many mailboxes there are.
    pub fn targets(&self) -> usize {
        self.boxes.len()
    }

    /// Puts mail into a mailbox, or gives it back when that is full. Under 100 ns while the target is awake.
    pub fn send(&self, target: usize, mail: M) -> Result<(), M> {
        let mailbox = &self.boxes[target];
        mailbox.queue.push(mail)?;
        // Pairs with the fence in `wait`: either the owner sees this mail on its second look, or the flag is seen here.
        fence(Ordering::SeqCst);
        if mailbox.asleep.load(Ordering::Relaxed) && mailbox.asleep.swap(false, Ordering::AcqRel) {
            mailbox.bell.ring();
        }
        Ok(())
    }

    /// [`Hub::send`] that waits while the mailbox is full. On a runtime's thread only.
    pub async fn send_wait(&self, target: usize, mut mail: M) {
        while let Err(back) = self.send(target, mail) {
            mail = back;
            sleep(FULL_PAUSE).await;
        }
    }

    /// The receiving end of mailbox `me`, on its thread's runtime. Take it once.
    pub fn inbox(&self, me: usize) -> io::Result<Inbox<M>> {
        Ok(Inbox { hub: self.clone(), me, bell: self.boxes[me].bell.doorbell()? })
    }
}

/// See [`Hub::inbox`].
pub struct Inbox<M> {
    hub: Hub<M>,
    me: usize,
    bell: Doorbell,
}

impl<M> Inbox<M> {
    /// Moves up to `max` messages to the end of `into`; says whether there was any.
    pub fn drain(&self, into: &mut Vec<M>, max: usize) -> bool {
        let queue = &self.hub.boxes[self.me].queue;
        let before = into.len();
        into.extend(std::iter::from_fn(|| queue.pop()).take(max));
        into.len() > before
    }

    /// Returns when there is mail: at once if there is some now. May be dropped and called again.
    pub async fn wait(&mut self) {
        let mailbox = &self.hub.boxes[self.me];
        loop {
            if !mailbox.queue.is_empty() {
                return;
            }
            mailbox.asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !mailbox.queue.is_empty() {
                mailbox.asleep.store(false, Ordering::Relaxed);
                return;
            }
            self.bell.wait().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::{Choice, run};

    fn drivers(check: fn(Choice)) {
        check(Choice::Epoll);
        check(Choice::Auto);
    }

    /// Reads `want` messages on a runtime of this thread, sleeping whenever there is none.
    fn receive(driver: Choice, hub: Hub<(usize, u64)>, want: usize) -> Vec<(usize, u64)> {
        run(driver, async move {
            let mut inbox = hub.inbox(0).unwrap();
            let mut mail = Vec::new();
            while mail.len() < want {
                if !inbox.drain(&mut mail, 64) {
                    inbox.wait().await;
                }
            }
            mail
        })
        .unwrap()
    }

    #[test]
    fn mail_of_each_sender_arrives_whole_and_in_order() {
        drivers(|driver| {
            const SENDERS: usize = 4;
            const EACH: u64 = 20_000;
            let hub = Hub::new(1, 256).unwrap();
            let senders: Vec<_> = (0..SENDERS)
                .map(|sender| {
                    let hub = hub.clone();
                    std::thread::spawn(move || {
                        for n in 0..EACH {
                            let mut mail = (sender, n);
                            while let Err(back) = hub.send(0, mail) {
                                mail = back;
                                std::thread::yield_now();
                            }
                        }
                    })
                })
                .collect();
            let mail = receive(driver, hub, SENDERS * EACH as usize);
            senders.into_iter().for_each(|s| s.join().unwrap());
            for sender in 0..SENDERS {
                let of: Vec<u64> = mail.iter().filter(|m| m.0 == sender).map(|m| m.1).collect();
                assert!(of.iter().copied().eq(0..EACH));
            }
        });
    }

    /// Ping-pong: every message meets a sleeping target, so a lost wake would hang.
    #[test]
    fn a_sleeping_target_is_woken_each_time() {
        drivers(|driver| {
            const ROUNDS: u64 = 2_000;
            let hub: Hub<u64> = Hub::new(2, 4).unwrap();
            let there = hub.clone();
            let echo = std::thread::spawn(move || {
                run(driver, async move {
                    let mut inbox = there.inbox(1).unwrap();
                    let mut mail = Vec::new();
                    loop {
                        inbox.wait().await;
                        inbox.drain(&mut mail, 8);
                        for n in mail.drain(..) {
                            there.send(0, n).unwrap();
                            if n == ROUNDS {
                                return;
                            }
                        }
                    }
                })
                .unwrap()
            });
            run(driver, async move {
                let mut inbox = hub.inbox(0).unwrap();
                let mut mail = Vec::new();
                for n in 0..=ROUNDS {
                    hub.send(1, n).unwrap();
                    inbox.wait().await;
                    inbox.drain(&mut mail, 8);
                    assert_eq!(std::mem::take(&mut mail), [n]);
                }
            })
            .unwrap();
            echo.join().unwrap();
        });
    }

    #[test]
    fn a_full_mailbox_gives_mail_back_and_send_wait_waits() {
        drivers(|driver| {
            let hub: Hub<u64> = Hub::new(1, 2).unwrap();
            assert_eq!([hub.send(0, 1), hub.send(0, 2), hub.send(0, 3)], [Ok(()), Ok(()), Err(3)]);
            run(driver, async move {
                let sender = hub.clone();
                crate::rt::spawn(async move { sender.send_wait(0, 3).await });
                crate::rt::yield_now().await;
                let mut inbox = hub.inbox(0).unwrap();
                let mut mail = Vec::new();
                while mail.len() < 3 {
                    inbox.wait().await;
                    inbox.drain(&mut mail, 1);
                }
                assert_eq!(mail, [1, 2, 3]);
            })
            .unwrap();
        });
    }

    /// A ring that was for mail already drained only makes the next wait look once more.
    #[test]
    fn a_dropped_wait_loses_no_mail() {
        drivers(|driver| {
            let hub: Hub<u64> = Hub::new(1, 2).unwrap();
            run(driver, async move {
                let mut inbox = hub.inbox(0).unwrap();
                for n in 0..100 {
                    let mut wait = Box::pin(inbox.wait());
                    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(wait.as_mut().poll(cx))).await;
                    assert!(first.is_pending());
                    hub.send(0, n).unwrap();
                    drop(wait);
                    inbox.wait().await;
                    let mut mail = Vec::new();
                    assert!(inbox.drain(&mut mail, 9));
                    assert_eq!(mail, [n]);
                }
            })
            .unwrap();
        });
    }
}
