//! `/health`, `/health/live` and the front door. Source: operations 5.1.

use super::routes::Params;
use super::{Request, Response};
use crate::cipher::Key;
use crate::core_thread::Core;
use crate::spool::Numbers;
use std::fmt::Write;
use std::rc::Rc;

/// This broker's own version, baked in.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// `GET /health`: whether requests can be served in full. The probe of the store runs beside, so this never waits.
pub async fn health(core: &Rc<Core>, _: &Request, _: &Params) -> Response {
    let spool = core.spool();
    readiness(core.is_ready(spool.recovering), core.config.encryption, &spool)
}

fn readiness(up: bool, encryption: Key, spool: &Numbers) -> Response {
    let (status, health, database) =
        if up { (200, "healthy", "connected") } else { (503, "unhealthy", "disconnected") };
    let mut body =
        format!(r#"{{"status":"{health}","database":"{database}","engine":"segments-rust","version":"{VERSION}""#);
    // Only what there is to say, and `status` stays. Source: operations 5.1, 4.6; reliability 0, decisions 1 and 5.
    if matches!(encryption, Key::Malformed(_)) {
        body.push_str(r#","encryption":"disabled: malformed key""#);
    }
    if spool.pending > 0 {
        let _ = write!(body, r#","spoolPending":{}"#, spool.pending);
    }
    if spool.quarantined > 0 {
        let _ = write!(body, r#","spoolQuarantinedFiles":{}"#, spool.quarantined);
    }
    if spool.recovering {
        body.push_str(r#","spoolRecovering":true"#);
    }
    body.push('}');
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
        let calm = Numbers::default();
        let up = readiness(true, Key::Unset, &calm);
        let want =
            format!(r#"{{"status":"healthy","database":"connected","engine":"segments-rust","version":"{VERSION}"}}"#);
        assert_eq!((up.status, String::from_utf8(up.body).unwrap()), (200, want));
        let down = readiness(false, Key::Unset, &Numbers { pending: 7, quarantined: 1, recovering: true, ..calm });
        assert_eq!(down.status, 503);
        assert!(down.body.ends_with(br#"","spoolPending":7,"spoolQuarantinedFiles":1,"spoolRecovering":true}"#));
        assert!(down.body.starts_with(br#"{"status":"unhealthy","database":"disconnected""#));
        let plain = readiness(true, Key::Malformed("x"), &calm);
        assert_eq!(plain.status, 200);
        assert!(plain.body.ends_with(br#","encryption":"disabled: malformed key"}"#));
    }
}
