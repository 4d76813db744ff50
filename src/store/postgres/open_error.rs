//! Defines why opening the store fails.

use std::path::PathBuf;

use super::health::PostgresHealth;
use crate::secret_file::SecretFileError;
use crate::tls::TlsFileError;

/// Why opening failed. The text is for operators, and never contains a password.
#[derive(Debug, thiserror::Error)]
pub enum PostgresOpenError {
    #[error("the database's url is not like postgres://USER@HOST1,HOST2/DATABASE; write an @ in a password as %40")]
    Url,
    #[error("the database's url names no host")]
    NoHost,
    #[error("sslmode=disable is for a database on this machine alone, and {host} is another")]
    NoTls { host: String },
    #[error("a url names sockets of this machine or other hosts, and not both: {host} is another")]
    MixedHosts { host: String },
    #[error(
        "{schema:?} is not a schema's name: it has at most 40 lower-case letters, digits and `_`, and does not begin with a digit"
    )]
    SchemaName { schema: String },
    #[error("{}: {source}", .path.display())]
    Secret { path: PathBuf, source: SecretFileError },
    #[error(transparent)]
    Ca(#[from] TlsFileError),
    #[error("TLS towards the database cannot be set up: {0}")]
    Tls(String),
    /// The server cannot be used: never `Good`.
    #[error("the database cannot be used yet: {0}")]
    Unavailable(PostgresHealth),
    #[error("the database runs PostgreSQL {found}; 14 or newer is needed")]
    OldServer { found: String },
    #[error("the database's server runs with {setting} = off: a crash may lose acknowledged writes; set it to on")]
    Unsafe { setting: &'static str },
    #[error(
        "durability is \"replicated\", and the database's server names no synchronous standby; set synchronous_standby_names \
         there, or set another `durability` in [store]"
    )]
    NoStandby,
    #[error(
        "a pooler between the gateway and the database lends out sessions by the transaction; have it pool by the session \
         (pgbouncer: pool_mode = session), or connect to the database directly"
    )]
    Pooled,
    #[error(
        "the schema has version {found}, which a newer program made; this one knows {known}. Run the newer one, or name another schema for this one"
    )]
    Newer { found: i32, known: i32 },
    #[error(
        "the schema has version {found}, which an older program made; this one reads {known} only. Let the older one finish \
         its tasks, and name another schema for this one"
    )]
    Older { found: i32, known: i32 },
    #[error("the schema {schema:?} has tables of another program; name another one as `store.schema`")]
    Foreign { schema: String },
    /// The other gateway may still end.
    #[error("another replica named {name:?} uses the database; give each replica a different `replica.name`")]
    NameTaken { name: String },
    #[error("the replica {name:?} that uses the database seals with another key; copy one seal.key to each replica")]
    SealKeys { name: String },
    #[error(
        "the database is another one than before, or was restored from a backup: writes that it acknowledged since are lost. \
         To continue with it, write `accept_loss = \"{generation}\"` in [store]"
    )]
    Lost { generation: String },
    #[error("the database refuses a statement that the store needs: {0}")]
    Refused(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// No caller: only a change to the program's setup helps.
    Never,
    /// Callers that already serve or had the store open: the faulty inputs are read at each try, and may change soon.
    OnceListening,
    /// Every caller: a later try may succeed without changes.
    Always,
}

impl PostgresOpenError {
    pub(super) fn unavailable(why: &str) -> Self {
        Self::Unavailable(PostgresHealth::Unavailable(why.to_owned()))
    }

    pub(super) fn behind(why: &str) -> Self {
        Self::Unavailable(PostgresHealth::Behind(why.to_owned()))
    }

    /// The configuration key that decides; its callers try again.
    const fn remedy(&self) -> (&'static str, Retry) {
        match self {
            Self::Unavailable(_) => ("store.url", Retry::Always),
            Self::NameTaken { .. } => ("replica.name", Retry::Always),
            Self::Url
            | Self::NoHost
            | Self::NoTls { .. }
            | Self::MixedHosts { .. }
            | Self::Secret { .. }
            | Self::Unsafe { .. }
            | Self::Pooled
            | Self::Refused(_) => ("store.url", Retry::OnceListening),
            Self::Ca(_) | Self::Tls(_) => ("store.ca", Retry::OnceListening),
            Self::NoStandby => ("store.durability", Retry::OnceListening),
            // A gateway with another key may have started while the others were cut off, and that one must be stopped.
            Self::SealKeys { .. } => ("store.path", Retry::OnceListening),
            Self::OldServer { .. } => ("store.url", Retry::Never),
            Self::SchemaName { .. } | Self::Newer { .. } | Self::Older { .. } | Self::Foreign { .. } => {
                ("store.schema", Retry::Never)
            }
            Self::Lost { .. } => ("store.accept_loss", Retry::Never),
        }
    }

    pub const fn key(&self) -> &'static str {
        self.remedy().0
    }

    pub const fn retry(&self) -> Retry {
        self.remedy().1
    }

    pub fn health(&self) -> PostgresHealth {
        if let Self::Unavailable(trouble) = self {
            return trouble.clone();
        }
        if matches!(self, Self::NoStandby) {
            PostgresHealth::NoStandby
        } else {
            PostgresHealth::Unavailable(self.to_string())
        }
    }
}

pub(super) fn unavailable(error: tokio_postgres::Error) -> PostgresOpenError {
    PostgresOpenError::Unavailable(PostgresHealth::of(&error))
}
