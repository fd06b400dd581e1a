//! Writing JSON by hand: strings, ids, numbers appended to one buffer.

use super::scan::next_special;
use crate::limits::NAME_BYTES_MAX;

/// Appends `text` as a JSON string.
pub fn push_quoted(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    push_escaped(out, text);
    out.push(b'"');
}

/// Appends `text` escaped, without quotes. Runs that need no escape are copied whole.
pub fn push_escaped(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let mut start = 0;
    loop {
        let at = next_special(bytes, start);
        out.extend_from_slice(&bytes[start..at]);
        let Some(&byte) = bytes.get(at) else { return };
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                let digits = [HEX[(control >> 4) as usize], HEX[(control & 15) as usize]];
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&digits);
            }
        }
        start = at + 1;
    }
}

/// Whether a name or an id has a character below U+0020: the one rule of which characters cannot be in one, wherever it is
/// read, so that what was pushed can be named in a path. Source: data plane 1.6, 3.1.
pub fn has_control(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut at = next_special(bytes, 0);
    while let Some(byte) = bytes.get(at) {
        if *byte < 0x20 {
            return true;
        }
        at = next_special(bytes, at + 1);
    }
    false
}

/// Refuses a name that cannot be stored, `what` it is: too long, or with a control character. The words go to the client.
/// Source: data plane 1.6.
pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("{what} exceeds the {NAME_BYTES_MAX}-byte limit"));
    }
    check_controls(what, name)
}

/// The half of [`check_name`] that holds for ids, which have another limit.
pub fn check_controls(what: &str, text: &str) -> Result<(), String> {
    match has_control(text) {
        true => Err(format!("control characters are not allowed in {what}")),
        false => Ok(()),
    }
}

/// Appends a number in decimal.
pub fn push_int(out: &mut Vec<u8>, n: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
}

/// Appends a UUID, lower case and hyphenated, without quotes.
pub fn push_uuid(out: &mut Vec<u8>, id: u128) {
    out.extend_from_slice(uuid_text(id, &mut [0; 36]).as_bytes());
}

/// The lower-case hyphenated spelling of a UUID.
pub fn uuid_text(id: u128, buffer: &mut [u8; 36]) -> &str {
    uuid::Uuid::from_u128(id).hyphenated().encode_lower(buffer)
}

/// `{"error":"<text>"}`, the envelope of every refusal. Source: data plane 1.3.
pub fn error_body(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 16);
    out.extend_from_slice(b"{\"error\":");
    push_quoted(&mut out, text);
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_read_back_as_it_was() {
        let mut nasty: Vec<String> = (0..0x300u32).filter_map(char::from_u32).map(String::from).collect();
        nasty.extend(
            ["", "R&D \"north\" \\ 1", "12345678\"", "1234567\\90\u{0}", "café/A", "\u{fffe}\u{10ffff}"]
                .map(Into::into),
        );
        nasty.push((0..0x80u8).map(char::from).collect());
        for text in &nasty {
            let mut out = Vec::new();
            push_quoted(&mut out, text);
            assert_eq!(&serde_json::from_slice::<String>(&out).unwrap(), text);
        }
    }

    #[test]
    fn an_error_body_is_json_whatever_it_says() {
        assert_eq!(error_body("a \"b\"\n\u{1}"), br#"{"error":"a \"b\"\n\u0001"}"#);
    }
}
