//! Defines the store's health, and classifies the server's errors.

use tokio_postgres::Error;

use crate::cause::CauseChain;

/// A running server refuses for now: too many connections, role or password, database, starting or stopping, standby.
const REFUSALS: [&str; 5] = ["53300", "28000", "28P01", "3D000", "57P03"];

/// Worse states stand further down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostgresHealth {
    Good,
    /// No trustworthy connection is open.
    Unavailable(String),
    /// The server can be reached, but refuses connections for now.
    Refusing(String),
    /// The server is not the primary and refuses writes.
    ReadOnly(String),
    /// The server answers, but commits wait, for example for an unavailable standby.
    Behind(String),
    /// The server names no synchronous standby, where one is required.
    NoStandby,
    Full,
    /// Declared dead, or without the store for too long: the replica has to restart as a new incarnation.
    Fenced,
    /// The store lost acknowledged writes: it is older than they are, or another one.
    Lost,
}

impl PostgresHealth {
    pub(super) fn of(error: &Error) -> Self {
        let why = in_words(error);
        if is_full(error) {
            Self::Full
        } else if code_of(error) == Some(READ_ONLY) || CauseChain(error).to_string().contains(NOT_WRITABLE) {
            Self::ReadOnly(why)
        } else if code_of(error).is_some_and(|code| REFUSALS.contains(&code)) {
            Self::Refusing(why)
        } else {
            Self::Unavailable(why)
        }
    }

    /// The remedy, for operators. Each fault passes by itself once its cause is gone, but for a loss.
    pub(super) const fn remedy(&self) -> &'static str {
        match self {
            Self::Good | Self::Fenced => "the replica joins the others again by itself",
            Self::Unavailable(_) => "check that the database's server runs, and that this host reaches it",
            Self::Refusing(_) => "check user, password and limit of connections, and whether the server starts",
            Self::ReadOnly(_) => "name each server of the database in `store.url`, so that the primary is found",
            Self::Behind(_) => "check the server's synchronous standbys, and other sessions' locks (`pg_locks`)",
            Self::NoStandby => "set synchronous_standby_names at the server",
            Self::Full => "free space on that disk",
            Self::Lost => "the next start says how to accept the loss",
        }
    }

    pub(super) fn with_reason(mut self, reason: String) -> Self {
        if let Self::Unavailable(why) | Self::Refusing(why) | Self::ReadOnly(why) | Self::Behind(why) = &mut self {
            *why = reason;
        }
        self
    }

    pub(super) fn silent() -> Self {
        Self::Unavailable("the database does not respond".to_owned())
    }

    pub(super) fn slow() -> Self {
        Self::Unavailable("the database takes too long".to_owned())
    }
}

impl std::fmt::Display for PostgresHealth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Good => "it can be used",
            Self::Unavailable(why) | Self::Refusing(why) | Self::ReadOnly(why) | Self::Behind(why) => why,
            Self::NoStandby => "the database's server names no synchronous standby",
            Self::Full => "the disk of the database's server is full",
            Self::Fenced => "others declared this replica dead, or it was without the database for too long",
            Self::Lost => "the database lost acknowledged writes",
        })
    }
}

const READ_ONLY: &str = "25006";

/// The text for operators, by the code of the error.
const REASONS: [(&str, &str); 8] = [
    (READ_ONLY, "the database's server is read-only"),
    ("28P01", "the database's server refuses the password"),
    ("53100", "the disk of the database's server is full"),
    ("53300", "the database's server has no connection left"),
    ("55P03", "another replica changes the database's tables, or another program uses them"),
    ("57P01", "the database's server ended the connection"),
    ("57P02", "the database's server ended the connection, after a crash"),
    ("57P03", "the database's server takes no connections yet: it starts, stops, or is a standby"),
];
/// The library's text for a server that answers but refuses writes.
const NOT_WRITABLE: &str = "database does not allow writes";

/// An error's text for operators, with its causes.
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
fn code_of(error: &Error) -> Option<&str> {
    error.code().map(|code| code.code())
}

/// Whether the server's disk, or this role's quota, is full.
pub(super) fn is_full(error: &Error) -> bool {
    code_of(error).is_some_and(|code| matches!(code, "53100" | "53400"))
}
