//! Text about the settings: the boot lines of the values in force, and the table of `docs/settings.md`.
//!
//! Source: operations 1.1, rules 7 and 8.

use super::read::{Reader, parse_bool};
use super::settings::{Force, GROUPS, Kind, OBSOLETE, Setting, TOLERATED, fits, rows};
use super::{BootLine, is_secret};
use crate::cipher::Key;
use crate::telemetry::log::Level;
use std::collections::BTreeMap;
use std::fmt::Write;

/// One line per subsystem with the values in force, then what was ignored and what that means.
pub fn boot_lines(
    reader: &Reader,
    vars: &BTreeMap<String, String>,
    embedded: bool,
    auth: bool,
    encryption: Key,
) -> Vec<BootLine> {
    let set = |name: &str| vars.get(name).is_some_and(|v| !v.trim().is_empty());
    let mut lines = Vec::new();
    let mut say = |level, target, message: String, fields| lines.push(BootLine { level, target, message, fields });

    for group in GROUPS.iter().filter(|g| g.name != "kv_timers") {
        let mut fields = Vec::new();
        if group.name == "postgres" {
            fields.push(("postgres".to_owned(), if embedded { "embedded" } else { "server" }.to_owned()));
            for name in ["ssl_trust", "ssl_verified"] {
                fields.push((name.to_owned(), reader.in_force.get(name).cloned().unwrap_or_default()));
            }
        }
        for row in group.rows.iter().filter(|row| shown(row, embedded)) {
            if let Some(value) = reader.in_force.get(row.name) {
                fields.push((row.name.to_ascii_lowercase(), value.clone()));
            }
        }
        say(Level::Info, "boot", format!("config: {}", group.name), fields);
    }

    let names = |pick: &dyn Fn(&str) -> bool| {
        vars.keys().filter(|name| set(name) && pick(name)).cloned().collect::<Vec<_>>().join(",")
    };
    let mut list = |level, message: &str, names: String| {
        if !names.is_empty() {
            say(level, "boot", message.to_owned(), vec![("names".to_owned(), names)]);
        }
    };
    let force = |name: &str| rows().find(|row| row.name == name).map(|row| row.force);
    list(Level::Warn, "settings of a part that this version does not have yet are ignored", {
        names(&|name| force(name) == Some(Force::Later) && !harmless(name, vars))
    });
    list(Level::Info, "settings without effect here", {
        names(&|name| match force(name) {
            Some(force) => force == Force::Inert,
            None => TOLERATED.iter().any(|p| fits(p, name)) && !obsolete(name),
        })
    });
    list(Level::Warn, "settings of the 0.x generation are ignored", names(&obsolete));
    list(Level::Info, "numbers that could not be read", reader.unread.join(","));

    let on = |name: &str| vars.get(name).and_then(|v| parse_bool(v)).unwrap_or(false);
    for name in vars.keys().filter(|n| n.ends_with("_EMBEDDED") && TOLERATED.iter().any(|p| fits(p, n))) {
        if on(name) {
            say(Level::Warn, "boot", format!("{name} is on, but that facade is not part of this broker"), vec![]);
        }
    }
    if set("QUEEN_MESH_PEERS") || set("QUEEN_UDP_PEERS") {
        let text = "peers need no configuration: brokers of one database hear of each other through PostgreSQL";
        say(Level::Info, "mesh", text.to_owned(), vec![]);
    }
    for (target, text) in &reader.warnings {
        say(Level::Warn, target, text.clone(), vec![]);
    }
    if matches!(encryption, Key::Usable(_)) {
        let text = "encryption service initialized (AES-256-GCM)";
        say(Level::Info, "encryption", text.to_owned(), vec![]);
    }
    if !auth && !set("QUEEN_BIND_ADDR") {
        let text =
            "authentication is off, so only this machine may connect; QUEEN_BIND_ADDR=0.0.0.0 opens the port to others";
        say(Level::Info, "boot", text.to_owned(), vec![]);
    }
    lines
}

/// Live rows always; later ones are noise until their part exists, except the switches an operator looks for.
fn shown(row: &Setting, embedded: bool) -> bool {
    let of_server = row.name.starts_with("PG_") || row.name == "DATABASE_URL";
    match row.force {
        Force::Live => !(embedded && of_server) && row.name != "PG_DB" && row.name != "POP_DEFAULT_TIMEOUT_MS",
        Force::Later => matches!(row.kind, Kind::Bool(_)) && !of_server || is_secret(row.kind),
        Force::Inert => false,
    }
}

/// A later setting whose text asks for nothing that is missing.
fn harmless(name: &str, vars: &BTreeMap<String, String>) -> bool {
    let text = vars.get(name).map_or("", |v| v.trim());
    match rows().find(|row| row.name == name).map(|row| row.kind) {
        Some(Kind::Bool(_)) => parse_bool(text) == Some(false),
        _ => matches!(name, "QUEEN_MESH_PEERS" | "QUEEN_UDP_PEERS"), // said in words
    }
}

fn obsolete(name: &str) -> bool {
    OBSOLETE.iter().any(|p| fits(p, name)) && !rows().any(|row| row.name == name)
}

/// The text of `docs/settings.md`.
pub fn settings_md() -> String {
    let mut out = String::from(
        "# Settings\n\n\
         Environment variables, read once at start; there is no file and no flag. This page is printed from the rows in\n\
         `src/config/settings.rs`: `QUEEN_REGENERATE=1 cargo test --lib config` writes it.\n\n\
         * **Booleans** take true/false, 1/0, yes/no, on/off; other text stops the start.\n\
         * **Numbers** that cannot be read mean the default; numbers outside the range move to its nearer end. Where a row\n  \
           says so, a bad one stops the start.\n\
         * **Text** that is present but empty stays empty. Secrets are printed by their length only.\n\
         * *later*: accepted, belongs to a part that is not built yet. *inert*: accepted, nothing needs it.\n",
    );
    for group in GROUPS {
        let _ = write!(out, "\n## {}\n\n| Name | Default | Range | | Effect |\n|---|---|---|---|---|\n", group.name);
        for row in group.rows {
            let state = match row.force {
                Force::Live => "",
                Force::Later => "later",
                Force::Inert => "inert",
            };
            let _ = writeln!(out, "| `{}` | {} | {} | {state} | {} |", row.name, default(row), range(row), row.reason);
        }
    }
    let _ = write!(
        out,
        "\n## Accepted, not read\n\nPayload surfaces that do not exist yet, and sidecars of other brokers: "
    );
    let _ = writeln!(out, "{}.", TOLERATED.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "));
    let _ =
        write!(out, "\n## Obsolete\n\nNames of the 0.x generation. They are ignored, and boot says which are set: ");
    let _ = writeln!(out, "{}.", OBSOLETE.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "));
    out
}

fn default(row: &Setting) -> String {
    let plain = match row.kind {
        Kind::Bool(v) => format!("`{v}`"),
        Kind::Int { default, .. } | Kind::StrictInt { default, .. } => format!("`{default}`"),
        Kind::Float { default, .. } => format!("`{default}`"),
        Kind::Text("") | Kind::Secret("") => "empty".to_owned(),
        Kind::Text(v) | Kind::Secret(v) => format!("`{v}`"),
    };
    if row.derived.is_empty() { plain } else { row.derived.to_owned() }
}

fn range(row: &Setting) -> String {
    match row.kind {
        Kind::Int { min, max, .. } | Kind::StrictInt { min, max, .. } => {
            let upper = if max == i64::MAX { "".to_owned() } else { max.to_string() };
            format!("{min}..{upper} {}", row.unit).trim_end().to_owned()
        }
        Kind::Float { min, max, .. } => format!("{min}..{max}"),
        Kind::Bool(_) => "boolean".to_owned(),
        Kind::Text(_) | Kind::Secret(_) => "text".to_owned(),
    }
}
