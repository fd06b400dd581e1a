//! The one table from a refusal to its status and body. Elsewhere are only the bodies that say more than `error`, or less: an
//! empty answer's and the plain text of a refused query (`pop`), a dead letter's, a redrive's conflict, a refused option's, a
//! batch's whose items are refused each.
//!
//! All interpolated text is JSON-escaped. The envelope is flat: `{"error":"<text>"}`. Source: data plane 1.3,
//! operations 2.5 and 5.0.

use super::Response;
use super::json::error_body;
use crate::auth::Denied;
use crate::state::NOT_ALLOWED;
use queen_shards::effect::StoreError;

/// Why a request got no regular answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    // ---- bytes: refused by the connection, which closes after most of them
    /// Not HTTP, or HTTP that two readers could understand differently. The words go to the client.
    BadRequest(&'static str),
    /// The target is longer than 16 KiB.
    TargetTooLong,
    /// Head over 64 KiB, or more than 100 header lines.
    HeadTooLarge,
    /// Over QUEEN_MAX_BODY_BYTES; plain text.
    BodyTooLarge,
    /// An `Expect` other than `100-continue`.
    Expectation,
    /// A `Content-Encoding` other than identity.
    Encoding,
    /// Head or body came too slowly.
    TooSlow,

    // ---- routing
    NoSuchRoute,
    /// A known path with another method. `Allow` lists what it takes.
    MethodNotAllowed {
        allow: String,
    },
    /// A path segment that is not UTF-8 or has control characters.
    BadPath,
    /// A queue, partition or group name above 1024 bytes; `what` is one of these words.
    NameTooLong {
        what: &'static str,
    },
    /// Tenancy is on and the header is no UUID.
    BadTenant,
    /// The token does not let this request in. Source: operations 2.5.
    Denied(Denied),

    // ---- input of a handler
    /// `{"error":"bad body: <message>"}`
    BadBody(String),
    /// A binary body that would inflate to more than QUEEN_MAX_INFLATED_BYTES.
    InflatedTooLarge {
        limit: u64,
    },
    /// 400 with this text.
    Invalid(String),
    /// 404 with this text.
    NotFound(String),

    /// The client closed its side of the connection while its request waited for room.
    Left,

    // ---- store
    /// The store cannot be reached.
    Pool,
    /// A pop got nothing for a reason that is the broker's or the store's.
    PopFailed,
    /// `{"error":"<route> failed: <detail>"}`
    StoreFailed {
        route: &'static str,
        detail: String,
    },
}

impl Refusal {
    /// What a failed store call of `route` answers. Source: data plane 1.3.
    pub fn store(route: &'static str, error: &StoreError) -> Refusal {
        match error {
            StoreError::Unavailable(_) => Refusal::Pool,
            StoreError::Refused(why) if why.starts_with(NOT_ALLOWED) => Refusal::Invalid(why.clone()),
            StoreError::Refused(detail) | StoreError::Unknown(detail) => {
                Refusal::StoreFailed { route, detail: detail.clone() }
            }
        }
    }

    /// Status, and the text of the body (`None`: no body).
    fn parts(&self) -> (u16, Option<String>) {
        let text = |text: &str| Some(text.to_string());
        match self {
            Refusal::BadRequest(why) => (400, Some(format!("bad request: {why}"))),
            Refusal::TargetTooLong => (414, text("request target too long")),
            Refusal::HeadTooLarge => (431, text("request head too large")),
            Refusal::BodyTooLarge => (413, text("length limit exceeded")),
            Refusal::Expectation => (417, text("only 100-continue can be expected")),
            Refusal::Encoding => (415, text("content encodings are not supported")),
            Refusal::Left => (503, text("the client left before there was room for its request")),
            Refusal::TooSlow => (408, text("request timed out")),
            Refusal::NoSuchRoute => (404, text("Not Found")),
            Refusal::MethodNotAllowed { .. } => (405, None),
            Refusal::BadPath => (400, text("bad path: not UTF-8 or with control characters")),
            Refusal::NameTooLong { what } => {
                (400, Some(format!("{what} name is longer than {} bytes", crate::limits::NAME_BYTES_MAX)))
            }
            Refusal::BadTenant => (400, text("invalid x-queen-tenant header (must be a UUID)")),
            Refusal::Denied(why) => denied(*why),
            Refusal::BadBody(why) => (400, Some(format!("bad body: {why}"))),
            Refusal::InflatedTooLarge { limit } => (413, Some(format!("inflates to more than {limit} bytes"))),
            Refusal::Invalid(why) => (400, Some(why.clone())),
            Refusal::NotFound(why) => (404, Some(why.clone())),
            Refusal::Pool => (500, text("pool")),
            Refusal::PopFailed => (500, text("pop failed")),
            Refusal::StoreFailed { route, detail } => (500, Some(format!("{route} failed: {detail}"))),
        }
    }

    /// The answer as it goes out.
    pub fn response(&self) -> Response {
        let (status, text) = self.parts();
        let Some(text) = text else {
            let mut response = Response::empty(status);
            if let Refusal::MethodNotAllowed { allow } = self {
                response.headers.push(("allow", allow.clone()));
            }
            return response;
        };
        match self {
            Refusal::BodyTooLarge => Response::text(status, text),
            Refusal::NoSuchRoute => {
                Response::json(status, r#"{"error":"Not Found","code":"no_such_route"}"#.as_bytes().to_vec())
            }
            _ => error(status, &text),
        }
    }
}

/// Exact texts, which clients show. Source: operations 2.5.
fn denied(why: Denied) -> (u16, Option<String>) {
    let (status, text) = match why {
        Denied::NoToken => (401, "Authentication required"),
        Denied::BadHeader => (401, "Bad token header"),
        Denied::Algorithm => (401, "Unsupported token algorithm"),
        Denied::Signature => (401, "Invalid token signature"),
        Denied::Expired => (401, "Token has expired"),
        Denied::NoExpiry => (401, "Token has no expiry"),
        Denied::NotYetValid => (401, "Token not yet valid"),
        Denied::FromTheFuture => (401, "Token issued in the future"),
        Denied::Issuer => (401, "Invalid token issuer"),
        Denied::Audience => (401, "Invalid token audience"),
        Denied::UnknownKey => (401, "Unknown key ID"),
        Denied::Role => (403, "Insufficient permissions"),
        Denied::NoSecret => (500, "HS secret not configured"),
        Denied::BadRsaPem => (500, "invalid RSA public key PEM"),
        Denied::BadEdPem => (500, "invalid Ed public key PEM"),
    };
    (status, Some(text.to_string()))
}

impl From<crate::wire::Refused> for Refusal {
    fn from(refused: crate::wire::Refused) -> Refusal {
        match refused {
            crate::wire::Refused::Malformed(why) => Refusal::BadBody(why),
            crate::wire::Refused::Control => Refusal::Invalid(super::push::parse::CONTROL_CHARACTERS.into()),
            crate::wire::Refused::TooLarge { limit } => Refusal::InflatedTooLarge { limit },
        }
    }
}

impl From<Refusal> for Response {
    fn from(refusal: Refusal) -> Response {
        refusal.response()
    }
}

/// `{"error":"<text>"}` with a status of the caller's.
pub fn error(status: u16, text: &str) -> Response {
    Response::json(status, error_body(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(refusal: Refusal, status: u16, content_type: Option<&str>, body: &str) {
        let response = refusal.response();
        assert_eq!((response.status, response.content_type), (status, content_type));
        assert_eq!(String::from_utf8(response.body).unwrap(), body);
    }

    #[test]
    fn the_envelope_is_flat_and_escaped() {
        let json = Some("application/json");
        let left = r#"{"error":"the client left before there was room for its request"}"#;
        check(Refusal::Left, 503, json, left);
        check(Refusal::Pool, 500, json, r#"{"error":"pool"}"#);
        check(Refusal::PopFailed, 500, json, r#"{"error":"pop failed"}"#);
        check(Refusal::NoSuchRoute, 404, json, r#"{"error":"Not Found","code":"no_such_route"}"#);
        let detail = "\"a\\b\"\n\r\t\u{1}é".to_string();
        let failed = Refusal::StoreFailed { route: "configure", detail };
        check(failed, 500, json, r#"{"error":"configure failed: \"a\\b\"\n\r\t\u0001é"}"#);
        check(Refusal::BadBody("x".into()), 400, json, r#"{"error":"bad body: x"}"#);
    }

    #[test]
    fn a_body_that_is_too_large_is_refused_in_plain_text() {
        let text = Some("text/plain; charset=utf-8");
        check(Refusal::BodyTooLarge, 413, text, "length limit exceeded");
    }

    #[test]
    fn a_wrong_method_is_empty_with_allow() {
        let response = Refusal::MethodNotAllowed { allow: "GET, HEAD, OPTIONS".into() }.response();
        assert_eq!((response.status, response.content_type, response.body.len()), (405, None, 0));
        assert_eq!(response.headers, [("allow", "GET, HEAD, OPTIONS".to_string())]);
    }
}
