use super::*;
use crate::auth::tests::{hs, rules};
use crate::rt::{Choice, run};

#[test]
fn a_proved_token_is_remembered_until_it_expires() {
    run(Choice::Epoll, async {
        let guard = Guard::new(Arc::new(rules(&[])), None);
        let token = hs(r#"{"sub":"a","role":"admin","exp":1000}"#);
        assert_eq!(guard.identity(&token, || 1030).await.unwrap().subject.as_deref(), Some("a"));
        assert_eq!(guard.proved.borrow().len(), 1);
        assert_eq!(guard.identity(&token, || 1030).await.unwrap().subject.as_deref(), Some("a"));
        assert_eq!(guard.identity(&token, || 1031).await, Err(Denied::Expired));
        assert!(guard.proved.borrow().is_empty(), "and then it is forgotten");
        assert_eq!(guard.identity(&hs(r#"{"nbf":5000}"#), || 1000).await, Err(Denied::NotYetValid));
        assert!(guard.proved.borrow().is_empty(), "only what was let in is remembered");
    })
    .unwrap();
}

#[test]
fn the_memory_is_bounded() {
    let guard = Guard::new(Arc::new(rules(&[])), None);
    for n in 0..2 * TOKENS_REMEMBERED_MAX {
        guard.remember(hash(&n.to_string()), Proved { identity: Identity::default(), until: None });
        assert!(guard.proved.borrow().len() <= TOKENS_REMEMBERED_MAX);
    }
}

#[test]
fn skipped_paths_are_whole_or_prefixes() {
    let guard = Guard::new(Arc::new(rules(&[("JWT_SKIP_PATHS", "/, /open/ ,/exact")])), None);
    for (path, skips) in [
        ("/", true),
        ("/x", false),
        ("/open/", true),
        ("/open/x/y", true),
        ("/open", false),
        ("/exact", true),
        ("/exact/", false),
        ("/health", false),
    ] {
        assert_eq!(guard.skips(path), skips, "{path}");
    }
}
