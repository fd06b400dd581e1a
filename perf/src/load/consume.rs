//! Who pops and acks. Each message is counted, and its id added up, when it is delivered.

use super::sockets::transmit;
use super::{Load, Stage, Waiting, sample};
use crate::payload::id_sum;
use crate::scenario::AckMode;
use crate::{answer, framed};

/// A pop may answer so much before its time-out: the broker's timers need not be finer.
const EARLY: u64 = 5_000_000;

impl Load<'_> {
    pub(super) fn pop_answered(&mut self, token: usize, now: u64, since: u64, status: u16, body: &[u8]) {
        if status == 204 {
            self.tally.empty_pops += u64::from((self.window.0..self.window.1).contains(&now));
            if now - since + EARLY < self.connections[token].patience {
                self.tally.fail("pop: 204 before its time-out".into());
            }
            return self.pop_again(token, now);
        }
        let window = self.window;
        let (open_loop, mode) = (self.period > 0, self.plan.scenario.ack);
        let (auto, ack_all) = (mode == AckMode::Auto, mode == AckMode::All);
        let opened = if framed::is_framed(body) { framed::open(body) } else { None };
        let lease = match &opened {
            Some(opened) => &opened.lease,
            None => answer::lease_id(body).unwrap_or_default(),
        };
        let (tally, ack, sum) = (&mut self.tally, &mut self.ack, &mut self.popped_sum);
        ack.start();
        let (mut counted, mut last) = (0, None::<answer::Message>);
        let each = of_one_answer(|message| {
            *sum = sum.wrapping_add(id_sum(message.transaction_id));
            let stamp = message.stamp.filter(|stamp| *stamp <= now);
            let at = if open_loop { stamp.unwrap_or(now) } else { now };
            if (window.0..window.1).contains(&at) {
                counted += 1;
                stamp.into_iter().for_each(|stamp| tally.end_to_end.record_ns(now - stamp));
            }
            if let Some(last) =
                last.as_ref().filter(|last| !auto && (ack_all || last.partition_id != message.partition_id))
            {
                ack.add(last.transaction_id, last.partition_id, lease);
            }
            last = Some(message);
        });
        let count = match &opened {
            Some(opened) => opened.messages(each),
            None => answer::messages(body, each),
        };
        let (Some(last), Some(count), 200) = (last, count, status) else {
            self.tally.fail(format!("pop: {status}: {}", sample(body)));
            return self.pop_again(token, now);
        };
        if !auto {
            ack.add(last.transaction_id, last.partition_id, lease);
        }
        self.popped += count as u64;
        tally.popped += counted;
        if (window.0..window.1).contains(&now) {
            tally.pop_requests += 1;
            tally.pop.record_ns(now - since);
        }
        if auto {
            return self.pop_again(token, now);
        }
        let group = self.groups[self.group(token)].as_deref();
        let (bytes, items) = self.ack.finish(group);
        let connection = &mut self.connections[token];
        match transmit(connection, &self.poller, token, bytes) {
            Ok(()) => (connection.waiting, connection.since) = (Waiting::Ack(items), now),
            Err(text) => self.lose(token, text),
        }
        self.push_idle();
    }

    pub(super) fn ack_answered(&mut self, now: u64, since: u64, items: u32, status: u16, body: &[u8]) {
        let acked = answer::acked(body);
        if status != 200 || acked != items as usize {
            self.tally.fail(format!("ack: {status}, {acked} of {items} accepted: {}", sample(body)));
        }
        if (self.window.0..self.window.1).contains(&now) {
            self.tally.ack_requests += 1;
            self.tally.ack.record_ns(now - since);
        }
    }

    pub(super) fn pop_again(&mut self, token: usize, now: u64) {
        if self.stage == Stage::Drain && !self.plan.scenario.drain {
            return;
        }
        let group = self.group(token);
        let request = std::mem::take(&mut self.pop_requests[group]);
        self.connections[token].patience = self.plan.scenario.pop_wait_ms * 1_000_000;
        self.send(token, Waiting::Pop, now, &request);
        self.pop_requests[group] = request;
    }
}

/// A closure whose messages all borrow from the same answer.
fn of_one_answer<'a, F: FnMut(answer::Message<'a>)>(each: F) -> F {
    each
}
