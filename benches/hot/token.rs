//! A token at the guard: proved, and remembered (what every request but a client's first costs).

use criterion::Criterion;
use jsonwebtoken::{Algorithm, EncodingKey, encode};
use queen::auth::guard::Guard;
use queen::config::auth::Jwt;
use queen::http::Method;
use queen::http::head::{BodyLength, Head};
use queen::http::routes::Access;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const SECRET: &str = "a secret of some length for the HS family";

fn rules() -> Jwt {
    Jwt {
        algorithms: &[Algorithm::HS256],
        secret: SECRET.into(),
        public_key: String::new(),
        jwks_url: String::new(),
        jwks_refresh: Duration::from_secs(3600),
        jwks_timeout: Duration::from_secs(5),
        issuer: String::new(),
        audience: String::new(),
        clock_skew: 30,
        skip_paths: vec!["/health".into(), "/metrics/prometheus".into(), "/metrics".into(), "/".into()],
        roles_claim: "role".into(),
        roles_array_claim: "roles".into(),
        role_admin: "admin".into(),
        role_read_write: "read-write".into(),
        role_read_only: "read-only".into(),
        role_write_only: "write-only".into(),
        require_exp: false,
    }
}

/// A push with a token of its own for each `n`.
fn head(n: u64) -> Head {
    let claims = serde_json::json!({ "sub": format!("producer-{n}"), "role": "read-write", "exp": 4_000_000_000u64 });
    let token = encode(&jsonwebtoken::Header::default(), &claims, &EncodingKey::from_secret(SECRET.as_bytes()));
    Head {
        method: Method::Post,
        path: "/api/v1/push".into(),
        segments: vec!["api".into(), "v1".into(), "push".into()],
        query: String::new(),
        length: BodyLength::Fixed(100),
        keep_alive: true,
        http_1_0: false,
        expects_continue: false,
        content_type: Some("application/json".into()),
        authorization: Some(format!("Bearer {}", token.expect("a token"))),
        authorization_repeated: false,
        tenant: None,
        encoded: false,
    }
}

/// Asks a guard that has nothing to wait for.
fn admit(guard: &Guard, head: &Head) {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(guard.admit(head, Access::WriteOnly)).poll(&mut context) {
        Poll::Ready(Ok(_)) => {}
        Poll::Ready(Err(denied)) => panic!("{denied:?}"),
        Poll::Pending => panic!("no published keys, yet it waits"),
    }
}

pub fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("token");
    let guard = Guard::new(Arc::new(rules()), None);
    let known = head(0);
    group.bench_function("remembered", |b| b.iter(|| admit(&guard, &known)));
    group.bench_function("proved, HS256", |b| {
        b.iter_batched_ref(
            || Guard::new(Arc::new(rules()), None),
            |guard| admit(guard, &known),
            criterion::BatchSize::SmallInput,
        );
    });
}
