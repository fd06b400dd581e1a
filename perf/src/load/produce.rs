//! Who pushes: producers, in closed or open loop, and those whose pushes are part of bundles.

use super::sockets::transmit;
use super::{Load, Stage, Waiting, sample};
use crate::answer;

impl Load<'_> {
    /// Sends pushes from idle producers as far as the loop (closed: backlog, open: time) allows.
    pub(super) fn push_idle(&mut self) {
        while let Some(&token) = self.idle.front() {
            if !self.connections[token].open {
                self.idle.pop_front();
                continue;
            }
            let now = self.now();
            let since = if self.period > 0 {
                if self.due > now || self.due >= self.window.1 {
                    return;
                }
                self.due += self.period;
                self.due - self.period
            } else {
                let max = self.plan.scenario.backlog_max;
                let full = self.plan.scenario.consumers > 0 && max > 0 && self.backlog() >= max;
                let enough = matches!(self.stage, Stage::Fill(total) if self.sent >= total);
                if full || enough || self.stage == Stage::Drain {
                    return;
                }
                now
            };
            self.idle.pop_front();
            // What is filled in was due on no clock of this run.
            let stamp = if matches!(self.stage, Stage::Fill(_)) { u64::MAX } else { since };
            let (bytes, sum) = self.template.next(stamp);
            self.sent_sum = self.sent_sum.wrapping_add(sum);
            self.sent += u64::from(self.plan.scenario.batch);
            let connection = &mut self.connections[token];
            if let Err(text) = transmit(connection, &self.poller, token, bytes) {
                self.lose(token, text);
                continue;
            }
            (connection.waiting, connection.since) = (Waiting::Push, since);
        }
    }

    pub(super) fn push_answered(&mut self, now: u64, since: u64, status: u16, body: &[u8]) {
        let batch = u64::from(self.plan.scenario.batch);
        let queued = answer::queued(body) as u64;
        if status != 201 || queued != batch {
            self.tally.fail(format!("push: {status}, {queued} of {batch} queued: {}", sample(body)));
        }
        self.pushed += queued;
        if self.counts(now, since) {
            self.tally.push_requests += 1;
            self.tally.pushed += queued;
            self.tally.push.record_ns(now - since);
        }
    }

    /// The next request of a connection that sends bundles: one more, or new messages to hold.
    pub(super) fn send_bundle(&mut self, token: usize) {
        let now = self.now();
        let held = &mut self.held[token];
        let (bytes, waiting) = if held.is_empty() {
            let (bytes, messages) = self.bundle.fill(token, now);
            (bytes, Waiting::Fill(messages))
        } else {
            (self.bundle.next(token, held, now), Waiting::Bundle)
        };
        let connection = &mut self.connections[token];
        match transmit(connection, &self.poller, token, bytes) {
            Ok(()) => (connection.waiting, connection.since) = (waiting, now),
            Err(text) => self.lose(token, text),
        }
    }

    pub(super) fn bundle_answered(&mut self, token: usize, now: u64, since: u64, status: u16, body: &[u8]) {
        // One for the bundle, and one for each of its two operations.
        let done = answer::acked(body);
        if status != 200 || done != 3 {
            self.tally.fail(format!("bundle: {status}, {done} of 3 succeeded: {}", sample(body)));
        }
        self.pushed += 1;
        if self.counts(now, since) {
            self.tally.push_requests += 1;
            self.tally.pushed += 1;
            self.tally.push.record_ns(now - since);
        }
        if self.stage != Stage::Drain {
            self.send_bundle(token);
        }
    }

    pub(super) fn filled(&mut self, token: usize, now: u64, messages: usize, status: u16, body: &[u8]) {
        if status != 201 || answer::queued(body) != messages {
            return self.lose(token, format!("push: {status}: {}", sample(body)));
        }
        let pop = self.bundle.pop(token);
        self.send(token, Waiting::Hold(messages), now, &pop);
    }

    pub(super) fn holds(&mut self, token: usize, messages: usize, status: u16, body: &[u8]) {
        let (mut ids, mut partition) = (Vec::new(), Vec::new());
        let count = answer::messages(body, |message| {
            ids.push(message.transaction_id.to_vec());
            partition = message.partition_id.to_vec();
        });
        let lease = answer::lease_id(body).unwrap_or_default();
        if status != 200 || count != Some(messages) {
            return self.lose(token, format!("pop: {status}: {}", sample(body)));
        }
        self.held[token].take(lease, &partition, ids);
        self.send_bundle(token);
    }
}
