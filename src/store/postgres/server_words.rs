//! Explains the server's errors to operators, and classifies them.

use tokio_postgres::Error;

use crate::cause::CauseChain;

const READ_ONLY: &str = "25006";

/// By the code of the error.
const REASONS: [(&str, &str); 8] = [
    (READ_ONLY, "the database's server is read-only"),
    ("28P01", "the database's server refuses the password"),
    ("53100", "the disk of the database's server is full"),
    ("53300", "the database's server has no connection left"),
    ("55P03", "another gateway changes the database's tables, or another program uses them"),
    ("57P01", "the database's server ended the connection"),
    ("57P02", "the database's server ended the connection, after a crash"),
    ("57P03", "the database's server takes no connections yet: it starts, stops, or is a standby"),
];
/// The library's text.
const NOT_WRITABLE: &str = "database does not allow writes";

/// With its causes.
pub(super) fn in_words(error: &Error) -> String {
    if let Some(said) = error.as_db_error() {
        let code = said.code().code();
        let reason = REASONS.iter().find(|(known, _)| *known == code);
        let message = reason.map_or_else(|| said.message(), |(_, reason)| reason);
        return format!("{message} ({code})");
    }
    let text = CauseChain(error).to_string();
    if text.contains(NOT_WRITABLE) { "the database's server is read-only".to_owned() } else { text }
}

/// `None` if the server did not send it.
pub(super) fn code_of(error: &Error) -> Option<&str> {
    error.code().map(|code| code.code())
}

pub(super) fn is_read_only(error: &Error) -> bool {
    code_of(error) == Some(READ_ONLY) || CauseChain(error).to_string().contains(NOT_WRITABLE)
}

/// Or this role's quota is.
pub(super) fn is_full(error: &Error) -> bool {
    code_of(error).is_some_and(|code| matches!(code, "53100" | "53400"))
}
