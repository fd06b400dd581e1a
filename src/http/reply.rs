//! What a state call returned, as an answer: the function wrote the body, the status is ours.

use super::Response;
use super::refusals::Refusal;
use crate::state::StateReply;

/// The answer of a state call. `route`: prefix of the error text.
///
/// A body whose first key is `error` is a refusal that the function made: 404 when it says "not found", else 500.
/// Source: data plane 1.3; operations 5.0.
pub fn answer(route: &'static str, reply: StateReply) -> Response {
    match reply {
        Ok(Some(text)) => {
            let body = compact(&text);
            let status = match body.starts_with(b"{\"error\":\"") {
                true if text.to_ascii_lowercase().contains("not found") => 404,
                true => 500,
                false => 200,
            };
            Response::json(status, body)
        }
        Ok(None) => Refusal::StoreFailed { route, detail: "no answer".into() }.response(),
        Err(error) => Refusal::store(route, &error).response(),
    }
}

/// JSON without the white space between its tokens. PostgreSQL writes `{"a" : 1, "b" : 2}`.
pub fn compact(json: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len());
    let (mut inside, mut escaped) = (false, false);
    for byte in json.bytes() {
        if inside {
            out.push(byte);
            (inside, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
        } else if !byte.is_ascii_whitespace() {
            out.push(byte);
            inside = byte == b'"';
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use queen_shards::effect::StoreError;

    fn body(response: Response) -> (u16, String) {
        (response.status, String::from_utf8(response.body).unwrap())
    }

    #[test]
    fn white_space_goes_except_inside_texts() {
        let text = r#"{"a" : 1.00, "b\" :" : " x \\", "c" : [ ], "d":null}"#;
        assert_eq!(String::from_utf8(compact(text)).unwrap(), r#"{"a":1.00,"b\" :":" x \\","c":[],"d":null}"#);
    }

    #[test]
    fn not_found_is_404_and_other_errors_are_500() {
        let of = |text: &str| body(answer("list", Ok(Some(text.into()))));
        assert_eq!(of(r#"{"error" : "Queue not found"}"#), (404, r#"{"error":"Queue not found"}"#.into()));
        assert_eq!(of(r#"{"error" : "broken"}"#).0, 500);
        assert_eq!(of(r#"{"error" : null}"#).0, 200);
        assert_eq!(body(answer("list", Err(StoreError::Unavailable("x".into())))), (500, r#"{"error":"pool"}"#.into()));
        let refused = answer("list", Err(StoreError::Refused("no \"table\"".into())));
        assert_eq!(body(refused), (500, r#"{"error":"list failed: no \"table\""}"#.into()));
    }
}
