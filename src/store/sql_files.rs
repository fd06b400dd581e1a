//! The SQL that this binary brings, listed by `build.rs`, and how a file is cut into statements.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

/// A file of `migrations/`; `name` without directory and extension.
#[derive(Debug)]
pub struct SqlFile {
    pub name: &'static str,
    pub text: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/sql_files.rs"));

impl SqlFile {
    /// Number of a migration: the digits its name begins with.
    pub fn version(&self) -> i32 {
        self.name.split('_').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }

    /// Changes with the text.
    pub fn checksum(&self) -> String {
        let mut hasher = SipHasher13::new();
        hasher.write(self.text.as_bytes());
        format!("{:032x}", hasher.finish128().as_u128())
    }

    pub fn statements(&self) -> Vec<&'static str> {
        statements(self.text)
    }
}

/// The newest schema version that this binary knows.
pub fn newest() -> i32 {
    MIGRATIONS.iter().map(SqlFile::version).max().unwrap_or(0)
}

/// Cuts SQL at the semicolons that end statements: not those in quotes, dollar quotes and comments.
fn statements(sql: &str) -> Vec<&str> {
    let bytes = sql.as_bytes();
    let (mut found, mut from, mut at) = (Vec::new(), 0, 0);
    let mut says_something = false;
    let until = |at: usize, end: &str| sql[at..].find(end).map_or(sql.len(), |i| at + i + end.len());
    while at < bytes.len() {
        let rest = &sql[at..];
        at = match bytes[at] {
            b'-' if rest.starts_with("--") => until(at, "\n"),
            b'/' if rest.starts_with("/*") => until(at, "*/"),
            quote @ (b'\'' | b'"') => {
                says_something = true;
                until(at + 1, if quote == b'\'' { "'" } else { "\"" })
            }
            b'$' => {
                says_something = true;
                let tag = rest[1..].find('$').map(|i| &rest[..i + 2]);
                match tag.filter(|tag| tag[1..tag.len() - 1].bytes().all(|b| b == b'_' || b.is_ascii_alphabetic())) {
                    Some(tag) => until(at + tag.len(), tag),
                    None => at + 1,
                }
            }
            b';' => {
                if says_something {
                    found.push(sql[from..at].trim());
                }
                (from, says_something) = (at + 1, false);
                at + 1
            }
            byte => {
                says_something |= !byte.is_ascii_whitespace();
                at + 1
            }
        };
    }
    if says_something {
        found.push(sql[from..].trim());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_at_semicolons_outside_quotes_and_comments() {
        let sql = "-- a; b\ncreate table t (c text default 'x;''y'); /* ; */\n\
            create function f() as $$ begin; end; $$;\n select $q$;$$;$q$, \"a;b\", $1; -- end;\n";
        let cut = statements(sql);
        assert_eq!(cut.len(), 3, "{cut:?}");
        assert!(cut[0].ends_with("'x;''y')"));
        assert!(cut[1].ends_with("$$ begin; end; $$"));
        assert!(cut[2].ends_with("\"a;b\", $1"));
    }

    #[test]
    fn migrations_are_numbered_without_gaps() {
        let versions: Vec<i32> = MIGRATIONS.iter().map(SqlFile::version).collect();
        assert_eq!(versions, (1..=newest()).collect::<Vec<_>>());
    }

    #[test]
    fn a_function_file_holds_the_function_of_its_name() {
        for file in FUNCTIONS {
            let head = format!("create or replace function queen.{}(", file.name);
            assert!(file.text.contains(&head), "{}", file.name);
            assert!(file.text.starts_with(&format!("-- {}.sql: ", file.name)), "{} has no header", file.name);
        }
    }
}
