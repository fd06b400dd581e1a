//! A connection breaks, is given up, and comes back.

use crate::support::*;
use queen::store::{Conn, Target};
use queen_shards::effect::StoreError;
use std::rc::Rc;
use std::time::{Duration, Instant};

#[test]
fn a_broken_connection_is_made_again_at_the_next_call() {
    on_store(async |db| {
        let conn = Conn::new(db.target.clone(), "test");
        let client = conn.get().await.unwrap();
        assert!(Rc::ptr_eq(&client, &conn.get().await.unwrap()), "one connection serves all callers");
        let pid: i32 = client.query_typed("select pg_backend_pid()", &[]).await.unwrap()[0].get(0);
        db.sql(&format!("select pg_terminate_backend({pid})")).await;
        until("the connection is known to be closed", async || client.is_closed()).await;
        let again = conn.get().await.unwrap();
        assert!(!Rc::ptr_eq(&client, &again));
        ping(&again).await.unwrap();
    });
}

#[test]
fn callers_at_once_share_one_attempt() {
    on_store(async |db| {
        let conn = Conn::new(db.target.clone(), "shared attempt");
        let (a, b, c) = futures_util::future::join3(conn.get(), conn.get(), conn.get()).await;
        let (a, b, c) = (a.unwrap(), b.unwrap(), c.unwrap());
        assert!(Rc::ptr_eq(&a, &b) && Rc::ptr_eq(&b, &c));
        let count = "select count(*) from pg_stat_activity where application_name = 'shared attempt'";
        assert_eq!(db.number(count).await, 1);
    });
}

#[test]
fn an_attempt_that_was_dropped_holds_nobody_up() {
    on_store(async |db| {
        let conn = Conn::new(db.target.clone(), "test");
        drop(futures_util::poll!(std::pin::pin!(conn.get())));
        queen::rt::timeout(PATIENCE, conn.get()).await.expect("the next attempt is not held up").unwrap();
    });
}

#[test]
fn a_store_that_is_away_is_told_at_once_until_the_pause_is_over() {
    run(async {
        let conn = Conn::new(Target::socket("/nonexistent".as_ref(), 5432, "queen", "postgres"), "test");
        let Err(StoreError::Unavailable(why)) = conn.get().await else { panic!("nobody is there") };
        assert!(why.contains("/nonexistent/.s.PGSQL.5432"), "{why}");
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = conn.retry_in();
            assert!(pause <= Duration::from_secs(2));
            pauses.push(pause);
            let begun = Instant::now();
            assert!(conn.get().await.is_err());
            assert!(begun.elapsed() < pause.max(Duration::from_millis(20)), "refused without an attempt");
            queen::rt::sleep(conn.retry_in() + Duration::from_millis(1)).await;
            assert!(conn.get().await.is_err());
            if Duration::from_millis(500) < pause {
                break;
            }
        }
        assert!(pauses[0] <= Duration::from_millis(50), "{pauses:?}");
        assert!(pauses[0] < *pauses.last().unwrap(), "{pauses:?}");
    });
}

#[test]
fn a_discarded_connection_cancels_its_statement_and_leaves_its_outcome_unknown() {
    on_store(async |db| {
        let p = db.provision("q", &["a"]).await[0].partition;
        db.sql(
            "create function hang() returns trigger language plpgsql as
            $$ begin perform pg_sleep(3600); return new; end $$;
            create trigger hang before insert on queen.segments for each row execute function hang()",
        )
        .await;
        let conn = Conn::new(db.target.clone(), "discarded");
        let client = conn.get().await.unwrap();
        let hangs = "select count(*) from pg_stat_activity where application_name = 'discarded' and state = 'active'";
        let commit = one_segment(p, -1, 1);
        let give_up = async {
            until("the commit runs", async || db.number(hangs).await == 1).await;
            conn.discard(&client);
        };
        let (outcome, ()) = futures_util::future::join(append(&client, &commit), give_up).await;
        assert!(matches!(outcome, Err(StoreError::Unknown(_))), "{outcome:?}");
        until("the server is rid of it", async || db.number(hangs).await == 0).await;
        assert!(!Rc::ptr_eq(&client, &conn.get().await.unwrap()));
        conn.discard(&client);
        assert!(conn.live().is_some(), "the new connection is not the old one's to discard");
    });
}

#[test]
fn a_password_is_never_shown() {
    let mut config = "postgresql://me:s3cret@db.example:6543/jobs".parse::<tokio_postgres::Config>().unwrap();
    config.host_path("/run/postgresql");
    let shown = format!("{0} {0:?}", Target::server(config, None).expect("no CA"));
    assert!(shown.contains("me@db.example:6543,/run/postgresql/.s.PGSQL.6543/jobs"), "{shown}");
    assert!(!shown.contains("s3cret"));
}
