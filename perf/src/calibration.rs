//! A fixed piece of processor work: what a machine's microsecond is worth.
//!
//! CPU per message differs from machine to machine and from hour to hour of a shared one; its ratio to this loop,
//! measured in the same run, differs far less, so budgets are kept in it. The loop does what a broker's time goes
//! to: it renders 100 payloads, compresses them, sends them through the kernel and inflates them. Holds: the work
//! never changes, or every budget changes its meaning.

use crate::payload::{Payload, Rng};
use crate::poller::own_cpu;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const MESSAGES: usize = 100;
const PAYLOAD_BYTES: usize = 256;
/// CPU time of one round, and how many there are; the fastest counts, since noise only makes slower.
const ROUND: Duration = Duration::from_millis(5);
const ROUNDS: usize = 8;

/// CPU nanoseconds of one message of the loop. Takes about 40 ms. Err: no sockets or no memory.
pub fn message_ns() -> io::Result<f64> {
    let payload = Payload::new(PAYLOAD_BYTES);
    let mut rng = Rng::new(1);
    let mut raw = payload.template().repeat(MESSAGES);
    let mut back = vec![0; 2 * raw.len()];
    let (mut near, mut far) = UnixStream::pair()?;
    let mut compressor = zstd::bulk::Compressor::new(1)?;
    let mut inflater = zstd::bulk::Decompressor::new()?;
    let mut packed = Vec::with_capacity(zstd::zstd_safe::compress_bound(raw.len()));
    let mut batch = || -> io::Result<()> {
        for (n, at) in raw.chunks_exact_mut(PAYLOAD_BYTES).enumerate() {
            payload.write(&mut rng, n as u64, at);
        }
        packed.clear();
        compressor.compress_to_buffer(&raw, &mut packed)?;
        near.write_all(&packed)?;
        far.read_exact(&mut packed)?;
        inflater.decompress_to_buffer(&packed, &mut back[..])?;
        black_box(&back);
        Ok(())
    };
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begun = own_cpu();
        let mut messages = 0;
        while own_cpu() - begun < ROUND {
            batch()?;
            messages += MESSAGES;
        }
        best = best.min((own_cpu() - begun).as_nanos() as f64 / messages as f64);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_takes_time_and_says_how_much() {
        let ns = message_ns().unwrap();
        assert!((10.0..1e6).contains(&ns), "{ns} ns per message");
    }
}
