//! The files that a configuration names: all of them looked at before anything starts, every mistake at once.

use std::fmt;

use super::keys::{self, KeyFileError};
use crate::config::Config;
use crate::task::Timestamp;
use crate::tls::{TlsFileError, read_roots};

/// One file that is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    #[error(transparent)]
    Key(#[from] KeyFileError),
}

/// All files that are not what they should be, each with the key of the configuration that names it. Never
/// empty. Printed one on a line.
#[derive(Debug)]
pub struct FileMistakes(Vec<(String, FileError)>);

impl fmt::Display for FileMistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, error)) in self.0.iter().enumerate() {
            let line_end = if index > 0 { "\n" } else { "" };
            write!(f, "{line_end}key `{key}`: {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileMistakes {}

impl From<KeyFileError> for FileMistakes {
    fn from(error: KeyFileError) -> Self {
        Self(vec![("store.path".to_owned(), error.into())])
    }
}

/// Reads every file that is there to be read. Makes none.
///
/// # Errors
/// Every file that is of no use.
pub fn check(config: &Config, now: Timestamp) -> Result<(), FileMistakes> {
    let mut wrong = Vec::new();
    let mut note = |key: String, outcome: Result<(), FileError>| wrong.extend(outcome.err().map(|error| (key, error)));
    if let Some(identity) = &config.listen.tls {
        note("listen.tls".to_owned(), identity.read(now).map(drop).map_err(FileError::from));
    }
    note("store.path".to_owned(), keys::read(&config.folder).map(drop).map_err(FileError::from));
    for upstream in &config.upstreams {
        let tls = &upstream.http.tls;
        let table = format!("upstreams.{}.tls", upstream.name);
        if let Some(ca) = &tls.ca {
            note(format!("{table}.ca"), read_roots(ca).map(drop).map_err(FileError::from));
        }
        if let Some(identity) = &tls.identity {
            note(table, identity.read(now).map(drop).map_err(FileError::from));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(FileMistakes(wrong)) }
}
