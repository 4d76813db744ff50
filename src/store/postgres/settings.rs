//! Defines what the store is opened with, and which addresses of a database are accepted.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::open_error::PostgresOpenError;
pub use crate::replica::Durability;
use crate::replica::{Incarnation, LeaseTerms, StoreGeneration};

/// Where the database is.
#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    /// This URL.
    Here(String),
    /// The one in this file, which is read again at each connect.
    File(PathBuf),
}

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // It may hold a password.
            Self::Here(_) => f.write_str("Here(***)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// Bytes that tell one sealing key from others.
pub(super) const KEY_PRINT_LEN: usize = 8;

/// What a gateway says of itself to the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaDescription {
    pub name: String,
    /// Of its internal listener.
    pub address: String,
    /// Of the program.
    pub version: String,
    pub config_digest: Vec<u8>,
    /// Of the keys that tokens are opened with; the first one seals.
    pub key_prints: Vec<[u8; KEY_PRINT_LEN]>,
}

/// The life that a gateway had before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorLife {
    /// Of the store that it was in.
    pub generation: StoreGeneration,
    pub holder: Incarnation,
    /// The last of its beats that is known to have been acknowledged.
    pub beat: u64,
}

/// Where the database is that gateways share, what it promises, and what is expected of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseAccess {
    pub url: DatabaseUrl,
    /// Read again at each connect. Counts more than a password in the URL.
    pub password_file: Option<PathBuf>,
    /// Authorities that the server's certificate may be from, instead of the system's.
    pub ca: Option<PathBuf>,
    /// What gateways that share tasks have in common.
    pub schema: String,
    pub durability: Durability,
    /// Beyond it the outcome of a write is not known, and a read has failed.
    pub write_max: Duration,
    /// How old the proof may be that what a server shows is durable, when a read is answered.
    pub read_trust: Duration,
    /// The store that may be one that lost what it promised.
    pub accept_loss: Option<StoreGeneration>,
}

/// What [`super::PostgresStore::open`] is given, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresSettings {
    pub access: DatabaseAccess,
    /// How long gateways wait for each other.
    pub terms: LeaseTerms,
    pub stored_bytes_max: usize,
    pub replica: ReplicaDescription,
    /// A life of this gateway that has certainly ended.
    pub prior: Option<PriorLife>,
    /// The gateway's folder, where the operator may want a wrong time forgotten.
    pub folder: Option<PathBuf>,
}

/// Longer names, with what is put in front and behind, are no names for PostgreSQL.
const SCHEMA_LEN_MAX: usize = 40;

/// Whether a text can be the name of the schema as it is: nothing in it has to be quoted.
#[must_use]
pub fn is_schema_name(text: &str) -> bool {
    let is_begin = |char: char| char.is_ascii_lowercase() || char == '_';
    text.len() <= SCHEMA_LEN_MAX
        && text.starts_with(is_begin)
        && !text.starts_with("pg_")
        && text.chars().all(|char| is_begin(char) || char.is_ascii_digit())
}

/// Looks at a URL without connecting to anything.
///
/// # Errors
/// What [`super::PostgresStore::open`] would say of it.
pub fn check_database_url(url: &str) -> Result<(), PostgresOpenError> {
    read_url(url).map(drop)
}

/// Reads a URL, and holds it to what connections to the store need: servers that can be written to, and TLS wherever others
/// could listen.
///
/// # Errors
/// `Url`, `NoHost`, `NoTls`, `MixedHosts`.
pub(super) fn read_url(url: &str) -> Result<Config, PostgresOpenError> {
    // What the library says may quote the URL, with a password in it.
    let mut config: Config = url.trim().parse().map_err(|_| PostgresOpenError::Url)?;
    if config.get_hosts().is_empty() {
        return Err(PostgresOpenError::NoHost);
    }
    if config.get_ssl_mode() == SslMode::Disable {
        if let Some(host) = foreign_host(&config) {
            return Err(PostgresOpenError::NoTls { host });
        }
    } else if config.get_hosts().iter().any(|host| matches!(host, Host::Unix(_))) {
        if let Some(host) = foreign_host(&config) {
            return Err(PostgresOpenError::MixedHosts { host });
        }
        config.ssl_mode(SslMode::Disable);
    } else {
        config.ssl_mode(SslMode::Require);
    }
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    Ok(config)
}

/// A host, or an address that is connected to in place of one, on the way to which others could listen.
fn foreign_host(config: &Config) -> Option<String> {
    let is_local =
        |name: &str| name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let named = config.get_hosts().iter().find_map(|host| match host {
        Host::Tcp(name) if !is_local(name) => Some(name.clone()),
        Host::Tcp(_) | Host::Unix(_) => None,
    });
    let address = config.get_hostaddrs().iter().find(|address| !address.is_loopback());
    named.or_else(|| address.map(IpAddr::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_held_to_what_the_store_needs() {
        let tls = |url| read_url(url).map(|config| config.get_ssl_mode()).map_err(|error| error.to_string());
        assert_eq!(tls("postgres://t@db1,db2,db3/taskgate"), Ok(SslMode::Require));
        assert_eq!(tls("postgres://t@db1/taskgate?sslmode=prefer"), Ok(SslMode::Require));
        assert_eq!(tls("postgres://t@127.0.0.1,[::1],localhost/t?sslmode=disable"), Ok(SslMode::Disable));
        assert_eq!(tls("postgres://t@%2Frun%2Fpostgresql/t"), Ok(SslMode::Disable));
        let text = |url| tls(url).unwrap_err();
        assert!(text("postgres://t@db1/t?sslmode=disable").contains("db1"));
        assert!(text("postgres://t@%2Frun,db2/t").contains("db2"));
        assert_eq!(tls("postgres://t@localhost/t?hostaddr=127.0.0.1&sslmode=disable"), Ok(SslMode::Disable));
        assert_eq!(tls("postgres://t@localhost/t?hostaddr=10.0.0.5"), Ok(SslMode::Require));
        // Where there is an address, a host is only what the certificate says.
        assert!(text("postgres://t@localhost/t?hostaddr=10.0.0.5&sslmode=disable").contains("10.0.0.5"));
        assert!(text("postgres://t@localhost,[::1]/t?hostaddr=::1,fd00::5&sslmode=disable").contains("fd00::5"));
        assert!(text("postgres://t@%2Frun/t?hostaddr=10.0.0.5").contains("10.0.0.5"));
        assert!(text("postgres://t@%2Frun/t?hostaddr=10.0.0.5&sslmode=disable").contains("10.0.0.5"));
        assert!(!text("postgres://t:secret@db1:port/t").contains("secret"));
        assert!(!text("mysql://t:secret@db1/t").contains("secret"));
        assert!(matches!(read_url("postgres:///t"), Err(PostgresOpenError::NoHost)));
        let config = read_url("postgres://t@db1,db2/t?target_session_attrs=any").unwrap();
        assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    }

    #[test]
    fn schema_names_need_no_quotes() {
        for good in ["taskgate", "_a1", "a_b"] {
            assert!(is_schema_name(good), "{good}");
        }
        for bad in ["", "1a", "A", "a-b", "a\"", "pg_a", "ä", &"a".repeat(41)] {
            assert!(!is_schema_name(bad), "{bad}");
        }
    }
}
