//! Times as text: out as `2026-09-12T08:15:30.123456Z`, in as ISO-8601 / RFC 3339. Source: data plane 1.6.

use queen_shards::ids::Stamp;

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;

/// Appends a stamp in UTC with microseconds, without quotes. Years beyond 9999 get the digits they need.
pub fn push_stamp(out: &mut Vec<u8>, stamp: Stamp) {
    let (days, micros) = (stamp.0.div_euclid(DAY), stamp.0.rem_euclid(DAY));
    let (year, month, day) = civil(days);
    let (seconds, fraction) = (micros / SECOND, micros % SECOND);
    push_digits(out, year, 4);
    for (mark, n) in
        [(b'-', month), (b'-', day), (b'T', seconds / 3600), (b':', seconds / 60 % 60), (b':', seconds % 60)]
    {
        out.push(mark);
        push_digits(out, n, 2);
    }
    out.push(b'.');
    push_digits(out, fraction, 6);
    out.push(b'Z');
}

/// Reads an instant: a date, or a date and a time with any number of fraction digits (cut to microseconds), `Z`,
/// `+HH:MM`, `-HH:MM` or nothing (UTC). `None` for everything else.
pub fn parse_stamp(text: &str) -> Option<Stamp> {
    let mut rest = text.trim().as_bytes();
    let year = digits(&mut rest, 4)?;
    mark(&mut rest, b"-")?;
    let month = digits(&mut rest, 2)?;
    mark(&mut rest, b"-")?;
    let day = digits(&mut rest, 2)?;
    let days = days_of(year, month, day)?;
    if rest.is_empty() {
        return Some(Stamp(days * DAY));
    }
    mark(&mut rest, b"Tt ")?;
    let hour = digits(&mut rest, 2).filter(|n| *n < 24)?;
    mark(&mut rest, b":")?;
    let minute = digits(&mut rest, 2).filter(|n| *n < 60)?;
    let second = if mark(&mut rest, b":").is_some() { digits(&mut rest, 2).filter(|n| *n <= 60)? } else { 0 };
    let mut micros = 0;
    if mark(&mut rest, b".,").is_some() {
        let n = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (fraction, after) = rest.split_at(n);
        if fraction.is_empty() {
            return None;
        }
        let at = |i: usize| fraction.get(i).map_or(0, |digit| (digit - b'0') as i64);
        micros = (0..6).fold(0, |micros, i| micros * 10 + at(i));
        rest = after;
    }
    let local = days * DAY + ((hour * 60 + minute) * 60 + second) * SECOND + micros;
    // A plus sign that a sender forgot to percent-encode arrives as a space.
    let (sign, offset) = match rest {
        [] | b"Z" | b"z" => (0, rest),
        [b'+' | b' ', offset @ ..] => (1, offset),
        [b'-', offset @ ..] => (-1, offset),
        _ => return None,
    };
    let mut rest = offset;
    let mut ahead = 0;
    if sign != 0 {
        let hours = digits(&mut rest, 2).filter(|n| *n < 24)?;
        let _ = mark(&mut rest, b":");
        let minutes = if rest.is_empty() { 0 } else { digits(&mut rest, 2).filter(|n| *n < 60)? };
        if !rest.is_empty() {
            return None;
        }
        ahead = sign * (hours * 60 + minutes) * 60 * SECOND;
    }
    Some(Stamp(local - ahead))
}

fn push_digits(out: &mut Vec<u8>, n: i64, width: usize) {
    let mut buffer = itoa::Buffer::new();
    let text = buffer.format(n);
    for _ in text.len()..width {
        out.push(b'0');
    }
    out.extend_from_slice(text.as_bytes());
}

fn digits(rest: &mut &[u8], n: usize) -> Option<i64> {
    let (head, tail) = rest.split_at_checked(n)?;
    let n = head.iter().try_fold(0, |n, byte| byte.is_ascii_digit().then(|| n * 10 + (byte - b'0') as i64))?;
    *rest = tail;
    Some(n)
}

fn mark(rest: &mut &[u8], any_of: &[u8]) -> Option<()> {
    let (first, tail) = rest.split_first()?;
    if !any_of.contains(first) {
        return None;
    }
    *rest = tail;
    Some(())
}

/// Days since 1970-01-01 of a date; `None` if there is no such day.
fn days_of(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years start in March here, so that the leap day is the last of its year.
    let y = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (y.div_euclid(400), y.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    (civil(days) == (year, month, day)).then_some(days)
}

/// Year, month and day of a number of days since 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let (era, of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let mp = (5 * of_year + 2) / 153;
    let day = of_year - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (era * 400 + year_of_era + (month <= 2) as i64, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(stamp: i64) -> String {
        let mut out = Vec::new();
        push_stamp(&mut out, Stamp(stamp));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn stamps_are_written_in_utc_with_microseconds() {
        assert_eq!(text(1_789_200_930_123_456), "2026-09-12T08:15:30.123456Z");
        assert_eq!(text(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(text(-1), "1969-12-31T23:59:59.999999Z");
        assert_eq!(text(951_782_400_000_001), "2000-02-29T00:00:00.000001Z");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut stamp = -62_000_000_000_000_000i64;
        while stamp < 250_000_000_000_000_000 {
            assert_eq!(parse_stamp(&text(stamp)), Some(Stamp(stamp)), "{}", text(stamp));
            stamp += 86_399_999_877_001 * 3;
        }
    }

    #[test]
    fn instants_are_read_in_every_usual_form() {
        let base = 1_789_200_930_000_000;
        for (form, micros) in [
            ("2026-09-12T08:15:30Z", 0),
            ("2026-09-12T08:15:30", 0),
            ("2026-09-12t08:15:30z", 0),
            ("2026-09-12 08:15:30", 0),
            ("2026-09-12T08:15:30.5Z", 500_000),
            ("2026-09-12T08:15:30.123456789Z", 123_456),
            ("2026-09-12T10:15:30+02:00", 0),
            ("2026-09-12T10:15:30 02:00", 0),
            ("2026-09-12T02:45:30.000001-05:30", 1),
            ("2026-09-12T10:15:30+0200", 0),
        ] {
            assert_eq!(parse_stamp(form), Some(Stamp(base + micros)), "{form}");
        }
        assert_eq!(parse_stamp("2026-09-12"), Some(Stamp(1_789_171_200_000_000)));
    }

    #[test]
    fn no_instant_no_stamp() {
        for form in [
            "",
            "now",
            "yesterday",
            "2026",
            "2026-9-12",
            "2026-13-01",
            "2026-02-29",
            "2026-09-12T",
            "2026-09-12T24:00:00Z",
            "2026-09-12T08:15:30.Z",
            "2026-09-12T08:15:30X",
            "2026-09-12T08:15:30+2",
            "2026-09-12T08:15:30Zjunk",
            "1789200930",
            "２026-09-12",
        ] {
            assert_eq!(parse_stamp(form), None, "{form}");
        }
    }
}
