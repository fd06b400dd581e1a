//! `/health`, `/health/live` and the front door. Source: operations 5.1.

use super::routes::Params;
use super::{Request, Response};
use crate::cipher::Key;
use crate::core_thread::Core;
use std::rc::Rc;

/// This broker's own version, baked in.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `GET /health`: whether requests can be served in full. The probe of the store runs beside, so this never waits.
pub async fn health(core: &Rc<Core>, _: &Request, _: &Params) -> Response {
    readiness(core.store_is_up(), core.config.encryption)
}

fn readiness(up: bool, encryption: Key) -> Response {
    let (status, health, database) =
        if up { (200, "healthy", "connected") } else { (503, "unhealthy", "disconnected") };
    // A further key, and `status` stays. Source: reliability 0, decision 1.
    let malformed =
        if matches!(encryption, Key::Malformed(_)) { r#","encryption":"disabled: malformed key""# } else { "" };
    let body = format!(
        r#"{{"status":"{health}","database":"{database}","engine":"segments-rust","version":"{VERSION}"{malformed}}}"#
    );
    Response::json(status, body)
}

/// `GET /health/live`: the process turns, whatever the database does.
pub async fn live(_: &Rc<Core>, _: &Request, _: &Params) -> Response {
    Response::json(200, r#"{"status":"alive"}"#)
}

/// `GET /`: for somebody who opens the port in a browser.
pub async fn front(_: &Rc<Core>, _: &Request, _: &Params) -> Response {
    let text = "queen is running: POST /api/v1/push stores messages, GET /api/v1/pop/queue/<name> delivers them, /health tells how it is.\n";
    Response::text(200, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_says_the_two_words_that_tools_look_for() {
        let up = readiness(true, Key::Unset);
        let want =
            format!(r#"{{"status":"healthy","database":"connected","engine":"segments-rust","version":"{VERSION}"}}"#);
        assert_eq!((up.status, String::from_utf8(up.body).unwrap()), (200, want));
        let down = readiness(false, Key::Unset);
        assert_eq!(down.status, 503);
        assert!(down.body.starts_with(br#"{"status":"unhealthy","database":"disconnected""#));
        let plain = readiness(true, Key::Malformed("x"));
        assert_eq!(plain.status, 200);
        assert!(plain.body.ends_with(br#","encryption":"disabled: malformed key"}"#));
    }
}
