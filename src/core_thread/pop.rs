//! The ask of a pop: one that is not waited for any longer is withdrawn, so that the engine serves nobody who has left.

use super::{Answer, Core};
use crate::rt;
use crate::slots::Waiting;
use queen_shards::command::{Command, Pop, Verdict};
use queen_shards::ids::Micros;
use std::rc::Rc;
use std::time::Duration;

/// Withdraws its pop when it is dropped without a verdict.
struct AskedPop {
    core: Rc<Core>,
    shard: usize,
    waiting: Waiting<Answer>,
    /// The shard has it, and has not answered.
    open: bool,
}

impl AskedPop {
    async fn verdict(&mut self) -> Verdict {
        loop {
            if let Answer::Verdict(verdict) = self.waiting.next().await {
                self.open = false;
                return verdict;
            }
        }
    }

    fn withdraw(&self) {
        self.core.tell(self.shard, self.waiting.slot(), Command::Withdraw);
    }
}

impl Drop for AskedPop {
    fn drop(&mut self) {
        if self.open {
            self.withdraw();
        }
    }
}

impl Core {
    /// Asks a shard for a pop, and withdraws it at `until`. `None`: it came to that; what is claimed for it after all is given
    /// back. What is acked by being claimed cannot be: there a claim that is on its way is waited for.
    pub async fn pop(self: &Rc<Self>, shard: usize, pop: Pop, until: Option<Micros>) -> Option<Verdict> {
        let auto_ack = pop.auto_ack;
        let mut asked = AskedPop { core: self.clone(), shard, waiting: self.slots.open(), open: false };
        let full = self.send(shard, asked.waiting.slot(), Command::Pop(pop));
        asked.open = full.is_none();
        let answered = self
            .by(until, async {
                if let Some(sent) = full {
                    sent.await;
                    asked.open = true;
                }
                asked.verdict().await
            })
            .await;
        if answered.is_some() || !auto_ack || !asked.open {
            return answered;
        }
        asked.withdraw();
        Some(asked.verdict().await)
    }

    /// What comes of `future`, if it does by `until`.
    pub async fn by<T>(&self, until: Option<Micros>, future: impl Future<Output = T>) -> Option<T> {
        match until {
            Some(until) => rt::timeout(Duration::from_micros(until.since(self.now())), future).await,
            None => Some(future.await),
        }
    }
}
