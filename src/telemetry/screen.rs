//! What a person at a terminal sees at the start: at most twelve lines, the last ones ready to paste.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

/// Facts of one start.
pub struct Boot<'a> {
    pub version: &'a str,
    /// `host:port` of the listener.
    pub address: &'a str,
    /// `io_uring` or `epoll`, with the reason when it is not the first choice.
    pub driver: &'a str,
    pub shards: usize,
    /// `embedded PostgreSQL 15 in /var/lib/queen`, `PostgreSQL at db.example:5432`.
    pub postgres: &'a str,
    /// From the start of the process until it could serve.
    pub ready: Duration,
    /// Authentication is off.
    pub open: bool,
}

/// Whether stdout is a terminal: then the screen, else log lines only.
pub fn wanted() -> bool {
    std::io::stdout().is_terminal()
}

/// The screen, with a final newline.
pub fn text(boot: &Boot) -> String {
    let mut out = String::new();
    let url = format!("http://{}", reachable(boot.address));
    let shards = if boot.shards == 1 { "1 shard".to_owned() } else { format!("{} shards", boot.shards) };
    let _ = writeln!(out, "queen {} is ready after {:.1} s", boot.version, boot.ready.as_secs_f64());
    let _ = writeln!(out, "  listens   {url}{}", if boot.open { "  (no authentication)" } else { "" });
    let _ = writeln!(out, "  runs      {shards} on {}", boot.driver);
    let _ = writeln!(out, "  stores    {}", boot.postgres);
    let _ = writeln!(out, "  stop      Ctrl-C; metrics: {url}/metrics/prometheus");
    let _ = writeln!(out, "\nPush a message, pop it, acknowledging on delivery:\n");
    let _ =
        writeln!(out, "curl -s {url}/api/v1/push -d '{{\"items\":[{{\"queue\":\"hello\",\"payload\":{{\"n\":1}}}}]}}'");
    let _ = writeln!(out, "curl -s '{url}/api/v1/pop/queue/hello?autoAck=true'");
    out
}

/// An address a client of this machine can use: the unspecified ones stand for all.
fn reachable(address: &str) -> String {
    match address.rsplit_once(':') {
        Some(("0.0.0.0" | "[::]" | "::", port)) => format!("localhost:{port}"),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_screen_has_at_most_twelve_lines_and_ends_pasteable() {
        let boot = Boot {
            version: "0.1.0",
            address: "0.0.0.0:6632",
            driver: "io_uring",
            shards: 2,
            postgres: "embedded PostgreSQL 15 in /var/lib/queen",
            ready: Duration::from_millis(1234),
            open: true,
        };
        let text = text(&boot);
        assert!(text.lines().count() <= 12, "{text}");
        let last: Vec<_> = text.lines().rev().take(2).collect();
        assert_eq!(last[0], "curl -s 'http://localhost:6632/api/v1/pop/queue/hello?autoAck=true'");
        assert_eq!(
            last[1],
            "curl -s http://localhost:6632/api/v1/push -d '{\"items\":[{\"queue\":\"hello\",\"payload\":{\"n\":1}}]}'"
        );
        assert!(text.starts_with("queen 0.1.0 is ready after 1.2 s\n"));
        assert!(text.contains("  (no authentication)\n"));
        let closed = super::text(&Boot { open: false, ..boot });
        assert!(!closed.contains("authentication"), "{closed}");
    }
}
