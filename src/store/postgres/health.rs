//! Defines the store's health.

use tokio_postgres::Error;

use super::server_words::{code_of, in_words, is_full, is_read_only};

/// A running server refuses connections for now: too many connections, a wrong role or password, a missing database, a
/// start or stop, a standby that accepts no queries.
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
        } else if is_read_only(error) {
            Self::ReadOnly(why)
        } else if code_of(error).is_some_and(|code| REFUSALS.contains(&code)) {
            Self::Refusing(why)
        } else {
            Self::Unavailable(why)
        }
    }

    pub(super) fn silent() -> Self {
        Self::Unavailable("it does not answer".to_owned())
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
            Self::Fenced => "others declared this gateway dead, or it was without the database for too long",
            Self::Lost => "the database lost what it acknowledged",
        })
    }
}
