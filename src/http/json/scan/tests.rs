use super::*;
use crate::http::json::nasty::{Nasty, SEEDS};
use serde_json::value::RawValue;

/// One value of any kind and nothing else, verbatim.
fn scan(body: &[u8]) -> Result<&str> {
    let mut scan = Scanner::new(body)?;
    let value = scan.value()?;
    scan.end()?;
    Ok(value)
}

#[track_caller]
fn same_as_serde_json(body: &[u8]) -> bool {
    let ours = scan(body);
    // serde_json looks at UTF-8 only where it hands text out; ours wants all of it.
    let theirs = if std::str::from_utf8(body).is_ok() { serde_json::from_slice::<&RawValue>(body).ok() } else { None };
    assert_eq!(ours.ok(), theirs.map(RawValue::get), "{}", String::from_utf8_lossy(body));
    theirs.is_some()
}

#[test]
fn the_scanner_accepts_what_serde_json_accepts() {
    for seed in SEEDS {
        let mut nasty = Nasty::new(seed);
        let (mut accepted, mut refused) = (0, 0);
        for _ in 0..30_000 {
            let mut body = nasty.value();
            for _ in 0..nasty.below(4) {
                nasty.damage(&mut body);
            }
            if same_as_serde_json(&body) { accepted += 1 } else { refused += 1 }
        }
        assert!(accepted > 5_000 && refused > 5_000, "the cases are one-sided: {accepted} {refused}");
    }
}

#[test]
fn every_short_body_is_judged_as_by_serde_json() {
    const ALPHABET: &[u8] = b"{}[]:,\"\\u0d1-.eE+ tn\x01";
    let mut body = Vec::new();
    for length in 0..=4 {
        for mut n in 0..ALPHABET.len().pow(length) {
            body.clear();
            for _ in 0..length {
                body.push(ALPHABET[n % ALPHABET.len()]);
                n /= ALPHABET.len();
            }
            same_as_serde_json(&body);
        }
    }
}

#[test]
fn texts_are_decoded_as_by_serde_json() {
    let mut nasty = Nasty::new(7);
    for _ in 0..30_000 {
        let mut body = Vec::new();
        nasty.text(&mut body);
        let mut scan = Scanner::new(&body).unwrap();
        let text = scan.text("text").unwrap();
        let theirs = serde_json::from_slice::<String>(&body).ok();
        assert_eq!(text.decode().ok().as_deref(), theirs.as_deref(), "{}", String::from_utf8_lossy(&body));
        if let Some(theirs) = theirs {
            assert_eq!(text.decode_lossy(), theirs);
            assert!(text.is(&theirs));
        }
    }
}

#[test]
fn a_lone_surrogate_spells_no_text_and_is_replaced_on_demand() {
    for (raw, lossy) in [
        (r#""half \ud800 pair""#, "half \u{fffd} pair"),
        (r#""\udc00""#, "\u{fffd}"),
        (r#""\ud800\ud800\udc00""#, "\u{fffd}\u{10000}"),
        (r#""\ud83dx\ude00""#, "\u{fffd}x\u{fffd}"),
        (r#""\ud83d\n""#, "\u{fffd}\n"),
        (r#""\ud83d\u0041""#, "\u{fffd}A"),
    ] {
        let text = Scanner::new(raw.as_bytes()).unwrap().text("text").unwrap();
        assert!(text.decode().is_err(), "{raw}");
        assert_eq!(text.decode_lossy(), lossy);
        assert!(!text.is(lossy));
    }
}

#[test]
fn depth_is_bounded_and_costs_no_stack() {
    let nested = |open: &str, close: &str, levels: usize| open.repeat(levels) + "1" + &close.repeat(levels);
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]")] {
        let per = open.matches(['[', '{']).count();
        let fits = nested(open, close, JSON_DEPTH_MAX / per);
        assert_eq!(scan(fits.as_bytes()), Ok(&*fits));
        for levels in [JSON_DEPTH_MAX / per + 1, 100_000] {
            let error = scan(nested(open, close, levels).as_bytes()).unwrap_err();
            assert_eq!(error.what, "nested too deep (1024 levels at most)");
        }
        let unclosed = open.repeat(1_000_000);
        assert!(scan(unclosed.as_bytes()).is_err());
    }
}

#[test]
fn an_error_says_where_it_is() {
    let describe = |body: &[u8]| scan(body).unwrap_err().describe(body);
    assert_eq!(describe(b"{\n \"a\": tru}"), "expected value at line 2 column 7");
    assert_eq!(describe(b""), "unexpected end of JSON at line 1 column 1");
    assert_eq!(describe(b"[1,]"), "trailing comma at line 1 column 4");
    assert_eq!(describe(b"[1] x"), "trailing characters at line 1 column 5");
    assert_eq!(describe(b"\xef\xbb\xbf1"), "expected value at line 1 column 1");
    assert_eq!(describe(b"\"a\xff\""), "invalid unicode code point at line 1 column 3");
}

#[test]
fn the_word_at_a_time_search_finds_what_a_simple_one_finds() {
    let mut nasty = Nasty::new(3);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..nasty.below(40)).map(|_| nasty.byte()).collect();
        let from = nasty.below(bytes.len() + 1);
        let simple = bytes[from..].iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
        assert_eq!(next_special(&bytes, from), simple.map_or(bytes.len(), |at| from + at));
    }
}
