//! Turns the command line of `taskgate wrap` into a configuration: one upstream, and defaults for the rest.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::error::{ConfigLocation, MistakeCollector};
use super::raw::{RawConfig, RawStore, RawUpstream, StoreKind};
use super::section::LocatedValue;
use super::value::{UPSTREAM_URL, ValueError};
use super::{Config, ConfigError, ServerSettings, resolve};
use crate::task::FallbackPolicy;

/// The upstream's name, in logs and in a store.
const NAME: &str = "wrapped";

/// The server that is wrapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WrappedServer {
    /// A program with its arguments. It gets the whole environment, as if the host had started it.
    Program(Vec<String>),
    Url(Url),
}

impl WrappedServer {
    /// Reads the address of a server, as a file's `url` is read.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn url(text: &str) -> Result<Self, String> {
        match (UPSTREAM_URL.read)(text) {
            Ok(url) => Ok(Self::Url(url)),
            Err(ValueError::Form) => Err(format!("write {}", UPSTREAM_URL.wanted)),
            Err(ValueError::Because(why)) => Err(why.to_owned()),
        }
    }
}

impl Config {
    /// The configuration for one server that is wrapped. Its listeners are not to be started. Without a folder for a
    /// store, tasks are kept in memory.
    ///
    /// # Errors
    /// If the values do not fit together; the mistakes name the keys that a file would have.
    pub fn wrapping(
        wrapped: WrappedServer,
        grace: Duration,
        fallback: FallbackPolicy,
        store: Option<PathBuf>,
    ) -> Result<Self, ConfigError> {
        let mut upstream = RawUpstream::unreached(NAME, place("COMMAND"));
        match wrapped {
            WrappedServer::Url(url) => upstream.url = Some(placed("--url", url)),
            WrappedServer::Program(words) => upstream.command.command = Some(placed("COMMAND", words)),
        }
        upstream.tasks.grace = Some(placed("--grace", grace));
        upstream.tasks.fallback = Some(placed("--fallback", fallback));
        let kind = if store.is_some() { StoreKind::Disk } else { StoreKind::Memory };
        let store = RawStore {
            kind: Some(placed("store.kind", kind)),
            path: store.map(|folder| placed("--store", folder)),
            // On a desktop the folder is where its owner says, whatever it is on.
            ephemeral: Some(placed("store.ephemeral", true)),
        };
        let raw = RawConfig { upstreams: vec![upstream], store, ..RawConfig::default() };
        let mut report = MistakeCollector::new("the command line");
        let mut config = resolve::resolve(&raw, &mut report);
        report.into_result()?;
        for upstream in &mut config.upstreams {
            if let ServerSettings::Stdio(program) = &mut upstream.server {
                // What is no text cannot be meant for a program of today.
                program.env = std::env::vars_os()
                    .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                    .collect();
            }
        }
        Ok(config)
    }
}

fn place(key: &str) -> ConfigLocation {
    ConfigLocation { line: 1, key: key.to_owned() }
}

fn placed<T>(key: &str, value: T) -> LocatedValue<T> {
    LocatedValue { value, place: place(key) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{GRACE_MAX, StoreSettings};

    const GRACE: Duration = Duration::from_millis(300);

    #[test]
    fn a_program_gets_the_environment_and_everything_else_its_default() {
        let words = ["server", "--flag", ""].map(str::to_owned).to_vec();
        let config = Config::wrapping(WrappedServer::Program(words), GRACE, FallbackPolicy::Tools, None).unwrap();
        assert!(matches!(config.store, StoreSettings::Memory(_)));
        let [upstream] = config.upstreams.as_slice() else { panic!("there is one") };
        let default = &upstream.service.rules.default;
        assert_eq!((default.grace, default.fallback), (GRACE, FallbackPolicy::Tools));
        let program = upstream.server.stdio().unwrap();
        assert_eq!(
            (program.program.as_str(), program.arguments.as_slice()),
            ("server", &["--flag".to_owned(), String::new()][..])
        );
        let path = std::env::var("PATH").unwrap();
        assert!(program.env.contains(&("PATH".to_owned(), path)));
    }

    #[test]
    fn a_folder_makes_the_store_last() {
        let url = || WrappedServer::url("https://example.org/mcp").unwrap();
        let config = Config::wrapping(url(), GRACE, FallbackPolicy::Hold, Some("tasks".into())).unwrap();
        assert!(matches!(config.store, StoreSettings::Disk { .. }));
        assert_eq!(config.folder, PathBuf::from("tasks"));
        assert!(config.upstreams[0].server.http().is_some());
        let late = GRACE_MAX + Duration::from_secs(1);
        let refused = Config::wrapping(url(), late, FallbackPolicy::Hold, None).unwrap_err();
        assert!(refused.to_string().contains("--grace"), "{refused}");
    }
}
