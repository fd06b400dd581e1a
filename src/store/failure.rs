//! What a failed statement says about the rows: `tokio_postgres::Error` to `StoreError`.

use queen_shards::effect::StoreError;
use std::error::Error as _;
use std::fmt::Write as _;
use tokio_postgres::Error;

/// What it means when an answer never came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// Nothing is written, or writing twice does no harm: a lost answer is a call to repeat.
    Repeatable,
    /// Rows may have been written.
    Writes,
}

/// Judges a failure of a statement that was sent.
///
/// An SQLSTATE of a passing kind means rolled back; another one, refused. Without one, or with one of class 08 (which a
/// pooler makes up when it lost the server under a running statement), the outcome of a write is unknown.
///
/// Source: operations 4.5.
pub fn judge(error: &Error, nature: Nature) -> StoreError {
    let text = wording(error);
    match error.as_db_error().map(|e| e.code().code()) {
        Some(code) if code.starts_with("08") && nature == Nature::Writes => StoreError::Unknown(text),
        Some(code) if is_transient(code) => StoreError::Unavailable(text),
        Some(_) => StoreError::Refused(text),
        None => match nature {
            Nature::Repeatable => StoreError::Unavailable(text),
            Nature::Writes => StoreError::Unknown(text),
        },
    }
}

/// Whether an SQLSTATE names a state of the server that passes. Source: operations 4.5.
pub fn is_transient(code: &str) -> bool {
    matches!(code, "40001" | "40P01" | "25006" | "55P03")
        || ["08", "53", "57", "58"].iter().any(|class| code.starts_with(class))
}

/// One line with the whole chain of causes.
pub fn wording(error: &Error) -> String {
    if let Some(db) = error.as_db_error() {
        return format!("{} ({})", db.message(), db.code().code());
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let _ = write!(text, ": {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::is_transient;

    #[test]
    fn passing_states_of_the_server_are_transient_and_others_are_not() {
        for code in ["40001", "40P01", "25006", "55P03", "08006", "53300", "57P03", "57014", "58030"] {
            assert!(is_transient(code), "{code}");
        }
        for code in ["22021", "23505", "42883", "25P02", "55000", "XX000"] {
            assert!(!is_transient(code), "{code}");
        }
    }
}
