//! What the hot calls cost PostgreSQL, in CPU time of the backend: for comparing two versions of a function on one
//! machine. Run alone: cargo test --test store cost -- --ignored --nocapture

use crate::support::*;
use bytes::Bytes;
use queen::store::{self, Client};
use queen_shards::command::Start;
use queen_shards::effect::{Append, Contact, CursorMove, CursorOutcome, LaneOutcome, LeaseMust};
use queen_shards::ids::{Offset, PartitionId};

const LANES: usize = 64;
const ROUNDS: usize = 120;

/// User and system microseconds of a process.
fn cpu_us(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    (ticks(11) + ticks(12)) * 10_000 // utime and stime, in ticks of 10 ms.
}

async fn pid_of(client: &Client) -> i32 {
    client.query_typed("select pg_backend_pid()", &[]).await.unwrap()[0].get(0)
}

async fn lanes_of(db: &Db) -> Vec<PartitionId> {
    let names: Vec<String> = (0..LANES).map(|i| format!("p{i}")).collect();
    let rows = db.provision("q", &names.iter().map(|n| &**n).collect::<Vec<_>>()).await;
    let mut ids: Vec<PartitionId> = rows.iter().map(|row| row.partition).collect();
    ids.sort();
    ids
}

#[test]
#[ignore = "a measurement"]
fn of_an_append_of_100_messages_per_lane() {
    on_store(async |db| {
        let ids = lanes_of(&db).await;
        let pid = pid_of(&db.client).await;
        let mut state = 1u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .take(8000)
        .collect();
        let body = Bytes::from(noise);
        let mut last = -1i64;
        let mut spent = Vec::new();
        for _ in 0..4 {
            let before = cpu_us(pid);
            for _ in 0..ROUNDS {
                let lanes: Vec<_> = ids.iter().map(|p| (*p, last)).collect();
                let mut ask: Append = one_each(&lanes, 100);
                ask.segments.iter_mut().for_each(|s| s.packed = Some(body.clone()));
                let outcome = append(&db.client, &ask).await.unwrap();
                assert!(outcome.lanes.iter().all(|l| matches!(l, LaneOutcome::Appended { .. })));
                last += 100;
            }
            spent.push((cpu_us(pid) - before) as f64 / (LANES * ROUNDS) as f64);
        }
        println!("append: us per segment of 100: {spent:.1?}");
    });
}

/// Commits of one message, with and without a line in the commit log: what a line costs where it shows most.
#[test]
#[ignore = "a measurement"]
fn of_a_line_in_the_commit_log() {
    on_store(async |db| {
        let id = lanes_of(&db).await[0];
        let pid = pid_of(&db.client).await;
        let writer = store::log::add_writer(&db.client, 1, 0, &db.incarnation().await).await.unwrap();
        let (mut last, mut seq) = (-1i64, 0);
        let mut spent = [Vec::new(), Vec::new()];
        for round in 0..8 {
            let logged = round % 2 == 1;
            let before = cpu_us(pid);
            for _ in 0..20 * ROUNDS {
                seq += logged as i64;
                let line = if logged { Line { writer, seq } } else { Line::NONE };
                let outcome = store::append(&db.client, &one_segment(id, last, 1), 1, line).await.unwrap();
                assert!(matches!(outcome.lanes[0], LaneOutcome::Appended { .. }));
                last += 1;
            }
            spent[logged as usize].push((cpu_us(pid) - before) as f64 / (20 * ROUNDS) as f64);
        }
        println!("append of 1: us without a line {:.1?}, with one {:.1?}", spent[0], spent[1]);
    });
}

#[test]
#[ignore = "a measurement"]
fn of_ack_and_claim_in_one_move() {
    on_store(async |db| {
        let ids = lanes_of(&db).await;
        let pid = pid_of(&db.client).await;
        let g = db.open("q", "g", Contact::Pinned).await.unwrap().group;
        let rows = db.seed(g, Start::All, &ids).await;
        let mut versions: Vec<i64> = rows.iter().map(|row| row.unwrap().row.version).collect();
        let mut spent = Vec::new();
        for round in 0..4 {
            let before = cpu_us(pid);
            for i in 0..5 * ROUNDS {
                let at = (round * 5 * ROUNDS + i) as i64;
                let moves: Vec<CursorMove> = ids
                    .iter()
                    .zip(&versions)
                    .map(|(p, v)| cursor_move(*p, g, *v, LeaseMust::Any, lease_to(at, 1, 60, at + 1)))
                    .collect();
                let done = store::move_cursors(&db.client, &moves, Line::NONE).await.unwrap();
                for (version, outcome) in versions.iter_mut().zip(done.moves) {
                    let CursorOutcome::Moved { version: now, last_offset: Offset(-1), .. } = outcome else { panic!() };
                    *version = now;
                }
            }
            spent.push((cpu_us(pid) - before) as f64 / (5 * LANES * ROUNDS) as f64);
        }
        println!("move: us per lane: {spent:.1?}");
    });
}
