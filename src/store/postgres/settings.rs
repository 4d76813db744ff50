//! Defines the store's settings, checks database URLs, and reads the files with secrets.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::open_error::PostgresOpenError;
pub use crate::replica::Durability;
use crate::replica::{Incarnation, LeaseTerms, StoreGeneration};
use crate::secret_file;
use crate::tls::read_roots;

#[derive(Clone, PartialEq, Eq)]
pub enum DatabaseUrl {
    Here(String),
    /// Read again at each connect.
    File(PathBuf),
}

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // The URL may contain a password.
            Self::Here(_) => f.write_str("Here(***)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

pub(super) const KEY_PRINT_LEN: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaDescription {
    pub name: String,
    pub address: String,
    pub version: String,
    pub config_digest: Vec<u8>,
    /// Fingerprints of the keys that open tokens; the first one seals.
    pub key_prints: Vec<[u8; KEY_PRINT_LEN]>,
}

/// The incarnation of this replica's process before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorIncarnation {
    pub generation: StoreGeneration,
    pub holder: Incarnation,
    /// Its last heartbeat that is known to be acknowledged.
    pub heartbeat: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseAccess {
    pub url: DatabaseUrl,
    /// Read again at each connect. Overrides a password in the URL.
    pub password_file: Option<PathBuf>,
    /// Certificate authorities for the server's certificate, instead of the system's.
    pub ca: Option<PathBuf>,
    pub schema: String,
    pub durability: Durability,
    /// Time limit of an operation: a write's outcome is unknown after it, and a read fails.
    pub write_max: Duration,
    /// The maximum age of a server's durability proof when a read is answered.
    pub read_trust: Duration,
    /// The store that the operator accepts although it may have lost acknowledged writes.
    pub accept_loss: Option<StoreGeneration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresSettings {
    pub access: DatabaseAccess,
    pub terms: LeaseTerms,
    pub stored_bytes_max: usize,
    pub replica: ReplicaDescription,
    /// An incarnation of this replica that has certainly ended.
    pub prior: Option<PriorIncarnation>,
    /// The gateway's folder, where the operator may request a clock reset.
    pub folder: Option<PathBuf>,
}

/// Longer names would exceed PostgreSQL's limit once a prefix and suffix are added.
const SCHEMA_LEN_MAX: usize = 40;

/// Whether a text is a valid schema name without quoting.
pub fn is_schema_name(text: &str) -> bool {
    let is_begin = |char: char| char.is_ascii_lowercase() || char == '_';
    text.len() <= SCHEMA_LEN_MAX
        && text.starts_with(is_begin)
        && !text.starts_with("pg_")
        && text.chars().all(|char| is_begin(char) || char.is_ascii_digit())
}

/// Checks a URL without connecting. Fails as [`super::PostgresStore::open`], for faults of the URL.
pub fn check_database_url(url: &str) -> Result<(), PostgresOpenError> {
    read_url(url).map(drop)
}

/// Parses a URL, and enforces the store's requirements: writable servers, and TLS unless the connection is local.
pub(super) fn read_url(url: &str) -> Result<Config, PostgresOpenError> {
    // The library's error may quote a password; and of one with an `@` that is not encoded, it takes the end for a host.
    let mut config: Config = url.trim().parse().map_err(|_| PostgresOpenError::Url)?;
    if config.get_hosts().iter().any(|host| matches!(host, Host::Tcp(name) if name.contains('@'))) {
        return Err(PostgresOpenError::Url);
    }
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

const SECRET_BYTES_MAX: usize = 4 << 10;
const PASSWORD: &str = "the database's password";

impl DatabaseAccess {
    /// Builds the connection settings from the files' current contents.
    pub(super) fn read(&self) -> Result<Config, PostgresOpenError> {
        let mut config = self.url.read()?;
        if let Some(path) = &self.password_file {
            config.password(secret(path, PASSWORD)?.trim_ascii_end());
        }
        Ok(config)
    }

    /// Returns each fault with the key in `[store]` that names the file. Connects to nothing.
    pub fn mistakes(&self) -> impl Iterator<Item = (&'static str, PostgresOpenError)> {
        // A url in the configuration is checked when that is read.
        let url = matches!(self.url, DatabaseUrl::File(_)).then(|| self.url.read().err()).flatten();
        let password = self.password_file.as_deref().and_then(|path| secret(path, PASSWORD).err());
        let ca = self.ca.as_deref().and_then(|path| read_roots(path).err());
        [("url_file", url), ("password_file", password), ("ca", ca.map(PostgresOpenError::from))]
            .into_iter()
            .filter_map(|(key, mistake)| Some((key, mistake?)))
    }
}

impl DatabaseUrl {
    fn read(&self) -> Result<Config, PostgresOpenError> {
        match self {
            Self::Here(url) => read_url(url),
            Self::File(path) => {
                let text = secret(path, "the database's url")?;
                read_url(std::str::from_utf8(&text).map_err(|_| PostgresOpenError::Url)?)
            }
        }
    }
}

fn secret(path: &Path, what: &'static str) -> Result<Vec<u8>, PostgresOpenError> {
    let read = secret_file::read(path, what, SECRET_BYTES_MAX);
    read.map_err(|source| PostgresOpenError::Secret { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked_for_the_needs_of_the_store() {
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
        // With an address, the host name only serves the certificate check.
        assert!(text("postgres://t@localhost/t?hostaddr=10.0.0.5&sslmode=disable").contains("10.0.0.5"));
        assert!(text("postgres://t@localhost,[::1]/t?hostaddr=::1,fd00::5&sslmode=disable").contains("fd00::5"));
        assert!(text("postgres://t@%2Frun/t?hostaddr=10.0.0.5").contains("10.0.0.5"));
        assert!(text("postgres://t@%2Frun/t?hostaddr=10.0.0.5&sslmode=disable").contains("10.0.0.5"));
        assert!(!text("postgres://t:secret@db1:port/t").contains("secret"));
        assert!(!text("mysql://t:secret@db1/t").contains("secret"));
        for url in
            ["postgres://t:se@secret@db1/t", "postgres://t:se@db1,secret%40db2/t", "postgres://t:se@secret@%2Frun/t"]
        {
            assert!(text(url).contains("an @ in a password as %40") && !text(url).contains("secret"), "{url}");
        }
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
