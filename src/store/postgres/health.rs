//! Defines how the store is.

use tokio_postgres::Error;

use super::server_words::{code_of, in_words, is_full, is_read_only};

/// What a server says that answers and lets nobody in for now, by its code: a connection too many, a password or a role that is
/// wrong, no such database, and that it starts, stops, or is a standby that is not to be asked.
const REFUSALS: [&str; 5] = ["53300", "28000", "28P01", "3D000", "57P03"];

/// How the store is, for readiness. What is worse stands further down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostgresHealth {
    Good,
    /// There is no connection that may be believed; says why.
    Away(String),
    /// The server can be reached, and lets nobody in for now; says why.
    Refusing(String),
    /// The server is not to be written to: it is not the primary; says why.
    ReadOnly(String),
    /// The server answers, and commits wait, as they do for a standby that is away; says what was seen of it.
    Behind(String),
    /// The server names no synchronous standby, where one is needed.
    NoStandby,
    /// There is no room on the database's disk.
    Full,
    /// Others have declared this life dead, or it was without the store for too long; it is to begin anew.
    Fenced,
    /// The store is older than what it acknowledged, or another one: it lost what it promised.
    Lost,
}

impl PostgresHealth {
    /// What an error of a connection says of the store.
    pub(super) fn of(error: &Error) -> Self {
        let why = in_words(error);
        if is_full(error) {
            Self::Full
        } else if is_read_only(error) {
            Self::ReadOnly(why)
        } else if code_of(error).is_some_and(|code| REFUSALS.contains(&code)) {
            Self::Refusing(why)
        } else {
            Self::Away(why)
        }
    }

    /// Nobody answers in time.
    pub(super) fn silent() -> Self {
        Self::Away("it does not answer".to_owned())
    }

    /// What is asked is answered too late.
    pub(super) fn slow() -> Self {
        Self::Away("the database takes too long".to_owned())
    }
}

impl std::fmt::Display for PostgresHealth {
    /// Why the store cannot be used.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Good => "it can be used",
            Self::Away(why) | Self::Refusing(why) | Self::ReadOnly(why) | Self::Behind(why) => why,
            Self::NoStandby => "the database's server names no synchronous standby",
            Self::Full => "the disk of the database's server is full",
            Self::Fenced => "others declared this gateway dead, or it was without the database for too long",
            Self::Lost => "the database lost what it acknowledged",
        })
    }
}
