//! Names, text that is none, numbers, repeated keys. H7 to H10.

use super::targets;
use crate::harness::{encode, unique};
use serde_json::json;

/// Names that must stay apart and be reachable.
fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "../",
        "..",
        ".",
        "../../etc/passwd",
        "%2e%2e%2f",
        "%00",
        "%2f",
        "%252f",
        "%",
        "%zz",
        "a/b",
        "a%2Fb",
        "a+b",
        "a b",
        " a",
        "a ",
        "  ",
        "a?b",
        "a#b",
        "a&b=c",
        "\u{202e}rtl",
        "\u{200b}",
        "\u{feff}bom",
        "😀",
        "👨‍👩‍👧",
        "é",
        "e\u{301}",
        "\u{212b}",
        "Å",
        "ﬁ",
        "fi",
        "ß",
        "SS",
        "I",
        "ı",
        "İ",
        "i",
        "null",
        "true",
        "0",
        "-1",
        "'",
        "\"",
        "\\",
        "''; drop table queen.queues; --",
        "{}",
        "[]",
        "$1",
        "%s",
        "\u{7f}",
        "\u{80}",
        "\u{85}",
        "\u{2028}",
        "\u{fffd}",
        "\u{fffe}",
        "\u{10ffff}",
        "con",
        "nul",
        "COM1",
        "a.",
        ".a",
        "a\\b",
        "~",
        "`id`",
        "$(id)",
        "|",
        ";",
        "<script>",
        "a,b",
        "a=b",
        "@",
        ":",
        "*",
        "__QUEUE_MODE__x",
        "Default",
        "default",
    ]
    .iter()
    .map(|name| name.to_string())
    .collect();
    let stem = "n".repeat(63);
    names.extend(["a", "b", "ab"].map(|end| format!("{stem}{end}")));
    names.extend([1, 2, 100, 255, 256, 1000, 1023, 1024].map(|n| "x".repeat(n)));
    names.extend((0..20u32).filter_map(|n| char::from_u32(0x4e00 + n * 37)).map(|c| c.to_string().repeat(3)));
    names.dedup();
    names
}

#[test]
fn h07_names_stay_distinct_and_reachable_or_are_400() {
    let names = odd_names();
    for target in targets() {
        let run = unique("odd");
        let files = || std::fs::read_dir(target.broker.dir()).expect("a directory").count();
        let before = files();
        let is_control = |name: &str| name.chars().any(char::is_control);
        for (n, name) in names.iter().enumerate() {
            // As a queue of its own, as a partition, as a transactionId, as a group.
            let push = target.push(
                json!([{"queue": name, "partition": run, "payload": n}, {"queue": run, "partition": name, "payload": n},
                {"queue": format!("{run}-t"), "transactionId": name, "payload": n}]),
            );
            assert!(matches!(push.status, 201 | 400), "{name:?}: {}", push.text());
            if push.status == 400 {
                assert!(name.bytes().any(|b| b < 0x20), "{name:?}");
                continue;
            }
            if is_control(name) {
                continue;
            }
            let query = format!("consumerGroup={}&subscriptionMode=all&autoAck=true&batch=9", encode(name));
            let pop = |path: String| {
                let answer = target.send("GET", &path, None);
                assert_eq!(answer.status, 200, "{name:?} {path}: {}", answer.text());
                answer.json()
            };
            for path in [
                format!("/api/v1/pop/queue/{}/partition/{run}?{query}", encode(name)),
                format!("/api/v1/pop/queue/{run}/partition/{}?{query}", encode(name)),
            ] {
                let messages = pop(path)["messages"].clone();
                assert_eq!(messages.as_array().map(Vec::len), Some(1), "{name:?}: {messages}");
                assert_eq!(messages[0]["data"], n, "{name:?}");
            }
            let detail = target.send("GET", &format!("/api/v1/resources/queues/{}", encode(name)), None);
            assert_eq!(detail.json()["name"], **name);
        }
        let verdicts = target.payloads(&format!("{run}-t"));
        let distinct: std::collections::HashSet<_> = verdicts.iter().collect();
        assert_eq!(distinct.len(), verdicts.len());
        assert!(verdicts.len() >= names.len() - 2, "{} of {}", verdicts.len(), names.len());
        for byte in 1..0x20u8 {
            let name = format!("a{}b", byte as char);
            for field in ["queue", "partition", "transactionId"] {
                let mut item = json!({"queue": run, "payload": 1});
                item[field] = name.clone().into();
                assert_eq!(target.push(json!([item])).status, 400, "{byte:#x} in {field}");
            }
        }
        for size in [1025, 4096, 65_536] {
            let name = "y".repeat(size);
            assert_eq!(target.push(json!([{"queue": name, "payload": 1}])).json()[0]["status"], "error");
            assert_eq!(
                target.push(json!([{"queue": run, "partition": name, "payload": 1}])).json()[0]["status"],
                "error"
            );
        }
        assert_eq!(files(), before, "a name makes no file");
        target.serves();
    }
}

#[test]
fn h08_text_that_is_none_is_400_and_never_500() {
    let texts: &[&[u8]] = &[
        b"\\u0000",
        b"\x00",
        b"\\ud800",
        b"\\udc00",
        b"\\ud800\\u0041",
        b"\\udc00\\ud800",
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
        b"\xc0\x80",
        b"\xc1\xbf",
        b"\xe0\x80\xaf",
        b"\xf0\x80\x80\xaf",
        b"\xf4\x90\x80\x80",
        b"\xff",
        b"\xfe",
        b"\x80",
        b"\xc3",
        b"\xe2\x82",
        b"\xef\xbb\xbf",
        b"\xef\xbf\xbe",
        b"\xef\xbf\xbf",
        b"\\ufffe",
        b"\\uFFFF",
        b"\\u12",
        b"\\x41",
        b"\x1f",
        b"\x7f",
    ];
    for target in targets() {
        let q = unique("text");
        let mut asked = 0;
        for text in texts {
            let with = |before: &str, after: &str| [before.as_bytes(), text, after.as_bytes()].concat();
            for (path, body) in [
                ("/api/v1/push", with(&format!(r#"{{"items":[{{"queue":"{q}-p","payload":""#), r#""}]}"#)),
                ("/api/v1/push", with(&format!(r#"{{"items":[{{"queue":"{q}"#), r#"","payload":1}]}"#)),
                ("/api/v1/push", with(&format!(r#"{{"items":[{{"queue":"{q}","partition":""#), r#"","payload":1}]}"#)),
                (
                    "/api/v1/push",
                    with(&format!(r#"{{"items":[{{"queue":"{q}","transactionId":""#), r#"","payload":1}]}"#),
                ),
                ("/api/v1/push", with("", r#"{"items":[]}"#)),
                ("/api/v1/ack", with(r#"{"transactionId":"x","partitionId":"1","error":""#, r#""}"#)),
                ("/api/v1/ack", with(r#"{"transactionId":"x","partitionId":"1","consumerGroup":""#, r#""}"#)),
                ("/api/v1/configure", with(&format!(r#"{{"queue":"{q}-c","namespace":""#), r#""}"#)),
                (
                    "/api/v1/transaction",
                    with(
                        &format!(r#"{{"operations":[{{"type":"push","items":[{{"queue":"{q}-t","payload":""#),
                        r#""}]}]}"#,
                    ),
                ),
            ] {
                let answer = target.send("POST", path, Some(&body));
                assert!(answer.status < 500, "{path} {text:?}: {} {}", answer.status, answer.text());
                asked += 1;
            }
        }
        assert!(asked >= 120, "{asked}");
        // What was taken comes back as it was sent.
        for stored in target.payloads(&format!("{q}-p")) {
            let inner = stored.trim_matches('"').as_bytes();
            assert!(texts.contains(&inner), "{stored:?}");
        }
        // A nack whose reason holds such text counts.
        let dead = unique("reason");
        target.push(json!([{"queue": dead, "transactionId": "k", "payload": 1}]));
        let pop = target.send("GET", &format!("/api/v1/pop/queue/{dead}"), None).json();
        let message = &pop["messages"][0];
        let ack = json!({"transactionId": "k", "partitionId": message["partitionId"], "leaseId": message["leaseId"], "status": "dlq", "error": "a\u{0}b\u{fffe}"});
        let acked = target.send("POST", "/api/v1/ack", Some(ack.to_string().as_bytes()));
        assert_eq!(acked.json()[0]["success"], true, "{}", acked.text());
        target.serves();
    }
}

#[test]
fn h09_numbers_come_back_as_they_were_written() {
    let mut numbers: Vec<String> = [
        "9007199254740993",
        "18446744073709551616",
        "1e400",
        "-1e400",
        "-0",
        "-0.0",
        "1.0",
        "1.00",
        "1e5",
        "1E5",
        "1e+5",
        "1e-5",
        "0e0",
        "0.1",
        "1e308",
        "5e-324",
        "123456789012345678901234567890",
    ]
    .map(String::from)
    .to_vec();
    numbers.push("7".repeat(400));
    numbers.push(format!("0.{}", "3".repeat(400)));
    numbers.extend((0..45).map(|n| format!("{}.{}e{}", 2u64.pow(n), n * 7919, n as i64 - 20)));
    for target in targets() {
        let q = unique("numbers");
        for number in &numbers {
            let body = format!(r#"{{"items":[{{"queue":"{q}","payload":{number}}}]}}"#);
            assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201, "{number}");
        }
        assert_eq!(target.payloads(&q), numbers);
        assert!(numbers.len() >= 60);
        for bad in ["01", "+1", "1.", ".1", "1e", "0x1", "NaN", "Infinity", "1_0", "--1", "1e1.5"] {
            let body = format!(r#"{{"items":[{{"queue":"{q}","payload":{bad}}}]}}"#);
            assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 400, "{bad}");
        }
        for (name, value) in [
            ("batch", "99999999999999999999"),
            ("batch", "-1"),
            ("partitions", "1e9"),
            ("timeout", "-5"),
            ("leaseSeconds", "1e400"),
            ("batch", "0x10"),
        ] {
            let answer = target.send("GET", &format!("/api/v1/pop/queue/{q}?{name}={value}"), None);
            assert!(matches!(answer.status, 204 | 400), "{name}={value}: {}", answer.status);
        }
        target.serves();
    }
}

#[test]
fn h10_repeated_keys_have_one_winner() {
    for target in targets() {
        let (first, last) = (unique("first"), unique("last"));
        let body =
            format!(r#"{{"items":[{{"queue":"{first}","queue":"{last}","payload":1,"payload":2,"\u0070ayload":3}}]}}"#);
        assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201);
        assert!(!target.exists(&first), "the last one wins, escaped or not");
        assert_eq!(target.payloads(&last), ["3"]);
        let body =
            format!(r#"{{"items":[{{"queue":"{first}","payload":1}}],"items":[{{"queue":"{last}","payload":4}}]}}"#);
        assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201);
        assert!(!target.exists(&first));
        assert_eq!(target.payloads(&last), ["4"]);
        for key in ["Queue", "QUEUE", "queue ", "__proto__", "constructor", ""] {
            let body =
                format!(r#"{{"items":[{{"{key}":"{first}","queue":"{last}","payload":{{"{key}":1,"{key}":2}}}}]}}"#);
            assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201, "{key}");
            assert_eq!(target.payloads(&last), [format!(r#"{{"{key}":1,"{key}":2}}"#)], "a payload stays as it is");
        }
        let many: String = (0..100_000).map(|n| format!("\"k{n}\":{n},")).collect();
        let body = format!(r#"{{{many}"items":[{{{many}"queue":"{last}","payload":{{{many}"x":1}}}}]}}"#);
        assert_eq!(target.send("POST", "/api/v1/push", Some(body.as_bytes())).status, 201);
        assert_eq!(target.payloads(&last), [format!(r#"{{{many}"x":1}}"#)]);
        target.serves();
    }
}
