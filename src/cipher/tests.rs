use super::*;
use std::collections::HashSet;

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const PLAIN: &[u8] = br#"{"card":"4111","n":7}"#;
/// Source: operations 3.3.
const VECTOR: &[u8] = br#"{"encrypted":"nTofTDevIIVAUbbiNljs/B6OYyfv","iv":"oKGio6SlpqeoqaqrrK2urw==","authTag":"JB0jsw9DnK+/XgG4nbS9xA=="}"#;

fn cipher(key: &str) -> Cipher {
    Cipher::of(Key::of(key)).expect("a usable key")
}

fn sealed(cipher: &Cipher, payload: &[u8]) -> Vec<u8> {
    let mut out = b"old".to_vec();
    cipher.seal(payload, &mut out).expect("sealed");
    assert_eq!(out.len(), envelope_len(payload.len()));
    out
}

#[test]
fn the_published_vector_goes_both_ways() {
    let cipher = cipher(KEY);
    let mut out = Vec::new();
    cipher.seal_with(std::array::from_fn(|n| 0xa0 + n as u8), PLAIN, &mut out).expect("sealed");
    assert_eq!(String::from_utf8(out).unwrap(), String::from_utf8(VECTOR.to_vec()).unwrap());
    assert_eq!(cipher.open(VECTOR).as_deref(), Some(PLAIN));
}

#[test]
fn payloads_come_back_byte_for_byte() {
    let cipher = cipher(KEY);
    let long = vec![b'7'; 1 << 20];
    for payload in
        [&b""[..], b"null", b"1", b" { \"a\" : 1.00e+400 } ", "\"é\u{1F600}\"".as_bytes(), b"\xff\x00", &long, VECTOR]
    {
        assert_eq!(cipher.open(&sealed(&cipher, payload)).as_deref(), Some(payload));
    }
}

#[test]
fn what_is_no_envelope_of_this_key_is_left_alone() {
    let ours = cipher(KEY);
    let other = cipher(&KEY.replace('0', "f"));
    assert_eq!(other.open(VECTOR), None, "another key");
    let text = |text: &str| text.as_bytes().to_vec();
    let vector = String::from_utf8(VECTOR.to_vec()).unwrap();
    for stored in [
        text(""),
        text("null"),
        text(r#"{"a":1}"#),
        text(r#"{"encrypted":"x","iv":"y","authTag":"z"}"#),
        text(r#"{"encrypted":"","iv":"","authTag":""}"#),
        text(r#"{"encrypted":1,"iv":"oKGio6SlpqeoqaqrrK2urw==","authTag":"JB0jsw9DnK+/XgG4nbS9xA=="}"#),
        text(&vector.replace("oKGio6SlpqeoqaqrrK2urw==", "oKGio6SlpqeoqaqrrK2u")),
        text(&vector.replace("JB0jsw9DnK+/XgG4nbS9xA==", "JB0jsw9DnK+/XgG4nbS9")),
        text(&format!("[{vector}]")),
        text(&format!("\"{}\"", vector.replace('"', "\\\""))),
    ] {
        assert_eq!(ours.open(&stored), None, "{}", String::from_utf8_lossy(&stored));
        assert_eq!(&*delivered(Some(&ours), &stored, false), &stored[..]);
    }
    // Order, spaces and further keys do not matter.
    let spaced = vector.replace(",", " , ").replace("{", "{ \"more\":[1], ");
    assert_eq!(ours.open(spaced.as_bytes()).as_deref(), Some(PLAIN));
}

#[test]
fn a_thousand_flipped_bits_are_all_noticed() {
    let cipher = cipher(KEY);
    let payload =
        br#"{"canary":"the bits of this text are flipped one after the other, and those of its nonce and tag"}"#;
    let envelope = sealed(&cipher, payload);
    let parts: Envelope = serde_json::from_slice(&envelope).unwrap();
    let (text, iv, tag) = (
        STANDARD.decode(&*parts.encrypted).unwrap(),
        STANDARD.decode(&*parts.iv).unwrap(),
        STANDARD.decode(&*parts.auth_tag).unwrap(),
    );
    let mut flipped = 0;
    // The last four bytes of the IV are stored and not used. Source: operations 3.3.
    for (part, bytes) in [(0, text.len()), (1, NONCE_BYTES), (2, TAG_BYTES)] {
        for bit in 0..bytes * 8 {
            let mut all = [text.clone(), iv.clone(), tag.clone()];
            all[part][bit / 8] ^= 1 << (bit % 8);
            let [text, iv, tag] = all.map(|bytes| STANDARD.encode(bytes));
            let damaged = format!(r#"{{"encrypted":"{text}","iv":"{iv}","authTag":"{tag}"}}"#);
            assert_eq!(cipher.open(damaged.as_bytes()), None);
            assert_eq!(&*delivered(Some(&cipher), damaged.as_bytes(), true), damaged.as_bytes());
            flipped += 1;
        }
    }
    assert!(flipped >= 1000, "{flipped}");
    // Bits of the envelope's own text: never another payload, always JSON.
    for bit in 0..envelope.len() * 8 {
        let mut damaged = envelope.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let out = delivered(Some(&cipher), &damaged, true);
        let unused_iv = &*out == payload;
        assert!(unused_iv || cipher.open(&damaged).is_none());
        assert!(serde_json::from_slice::<serde_json::Value>(&out).is_ok(), "{}", String::from_utf8_lossy(&out));
    }
}

#[test]
fn no_nonce_comes_twice() {
    let cipher = cipher(KEY);
    let mut seen = HashSet::with_capacity(1_000_000);
    for _ in 0..1_000_000 {
        let iv = cipher.draw().unwrap();
        let nonce: [u8; NONCE_BYTES] = iv[..NONCE_BYTES].try_into().unwrap();
        assert!(seen.insert(nonce));
    }
}

#[test]
fn keys_are_64_hex_digits_and_nothing_else() {
    assert!(Key::of("") == Key::Unset);
    assert!(Key::of(KEY) == Key::of(&KEY.to_ascii_uppercase()));
    assert!(matches!(Key::of(KEY), Key::Usable(key) if key[31] == 0x1f));
    let (length, hex) = ("QUEEN_ENCRYPTION_KEY must be 64 hex chars", "QUEEN_ENCRYPTION_KEY is not valid hex");
    for (text, want) in [
        ("short", length),
        (&*format!("{KEY}\n"), length),
        (&format!(" {KEY}"), length),
        (&KEY[1..], length),
        (&KEY.replace('f', "g"), hex),
        (&"é".repeat(64), hex),
        (&KEY.replace("00", "0x"), hex),
    ] {
        assert!(Key::of(text) == Key::Malformed(want), "{text}");
    }
}

#[test]
fn a_replay_is_encrypted_as_its_destination_wants() {
    let cipher = cipher(KEY);
    assert_eq!(cipher.replayed(VECTOR, true, false), (PLAIN.to_vec(), false));
    let (again, flag) = cipher.replayed(VECTOR, true, true);
    assert!(flag && again != VECTOR && cipher.open(&again).as_deref() == Some(PLAIN));
    assert_eq!(cipher.replayed(PLAIN, false, false), (PLAIN.to_vec(), false));
    let (sealed, flag) = cipher.replayed(PLAIN, false, true);
    assert!(flag && cipher.open(&sealed).as_deref() == Some(PLAIN));
    // Of another key: stays what it is.
    let foreign = self::sealed(&self::cipher(&KEY.replace('0', "f")), PLAIN);
    for encrypts in [false, true] {
        assert_eq!(cipher.replayed(&foreign, true, encrypts), (foreign.clone(), true));
    }
}
