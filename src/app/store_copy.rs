//! Copies the tasks of a gateway on disk, which is stopped, into the database that a configuration names.
//!
//! For as long as it takes the copy is a life of its own beside the gateways that may use the database: they see that it
//! leaves, so none passes anything on to it; and the tasks that it holds are theirs to take over once it has ended, however that
//! was.

use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::sealing_key::{self, KeyFileError};
use super::shared_store::{self, SharedStoreError};
use super::task_store::{self, EXIT_IO, EXIT_LOCKED, StoreRefusal};
use super::{EXIT_CONFIG, EXIT_UNAVAILABLE};
use crate::config::{Config, StoreSettings};
use crate::face::sealed::{KeyPrint, SealingKeys};
use crate::random;
use crate::store::copy::{CopyCounts, CopyError, LeftRow, StoreCopy};
use crate::store::disk::{DiskSource, DiskSourceError};
use crate::store::postgres::{PostgresOpenError, PostgresStore, ReplicaDescription};
use crate::store::{StoreError, TaskStore as _, Usage};

/// With which code the program ends where a copy did not come to its end, and would if it were run again (`EX_TEMPFAIL`).
pub const EXIT_STOPPED: u8 = EXIT_LOCKED;

/// What came of a copy that was begun.
#[derive(Debug)]
pub struct StoreCopyReport {
    /// What the folder's store holds.
    pub source: Usage,
    /// What the database held before, and holds now. What gateways do meanwhile is in it.
    pub before: Usage,
    pub after: Usage,
    pub counts: CopyCounts,
    /// Why it did not come to its end.
    pub ended: Option<CopyEnd>,
    pub key: KeyAdvice,
}

/// Why a copy did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum CopyEnd {
    #[error("it was stopped")]
    Stopped,
    #[error(transparent)]
    Failed(#[from] CopyError),
}

/// What is to be done about the key in the folder, which sealed ids of sessions and open questions. Names files.
#[derive(Debug)]
pub enum KeyAdvice {
    /// There is none.
    Nothing,
    /// The gateways open what it sealed.
    Same { there: PathBuf },
    /// The gateways have none yet.
    Copy { here: PathBuf, there: PathBuf },
    /// They have another one.
    Add { here: PathBuf, there: PathBuf },
    /// It is of no use.
    Unfit(KeyFileError),
}

/// Why nothing was copied.
#[derive(Debug, thiserror::Error)]
pub enum StoreCopyError {
    #[error("key `store.kind`: is not \"postgres\", and tasks are copied into a database that gateways share")]
    Kind,
    #[error("key `store.path`: {0}")]
    Key(#[source] KeyFileError),
    #[error("key `{key}`: {0}", key = .0.key())]
    Target(#[source] StoreRefusal),
    /// The one that is not of the configuration.
    #[error(transparent)]
    Source(#[from] DiskSourceError),
}

impl StoreCopyError {
    /// With which code the program ends.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Target(StoreRefusal::Shared(SharedStoreError::Database(PostgresOpenError::Away(_)))) => {
                EXIT_UNAVAILABLE
            }
            Self::Target(refusal) => task_store::exit_code(refusal),
            Self::Source(DiskSourceError::InUse { .. }) => EXIT_LOCKED,
            Self::Source(DiskSourceError::Unreadable { .. }) => EXIT_IO,
            Self::Kind | Self::Key(_) | Self::Source(_) => EXIT_CONFIG,
        }
    }
}

impl StoreCopyReport {
    /// With which code the program ends: 0 if all tasks are there that can be asked for.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match &self.ended {
            Some(CopyEnd::Stopped) => EXIT_STOPPED,
            Some(CopyEnd::Failed(
                CopyError::Source(_) | CopyError::Target(StoreError::Full { .. } | StoreError::NoRoom),
            )) => EXIT_IO,
            Some(CopyEnd::Failed(CopyError::Target(_))) => EXIT_UNAVAILABLE,
            None if self.left() > 0 => EXIT_IO,
            None => 0,
        }
    }

    /// Tasks that can be asked for and are not there.
    #[must_use]
    pub const fn left(&self) -> usize {
        let CopyCounts { unreadable, refused, .. } = self.counts;
        unreadable + refused + self.source.tasks.saturating_sub(self.counts.seen())
    }
}

/// Copies the tasks of the store in `from`, until they are all there or `stop` says so. `tell` hears of those that cannot be.
///
/// # Errors
/// If there is nothing to be read, or nowhere to write to. Nothing was copied then.
pub async fn copy(
    (from, to): (&Path, &Config),
    stop: &CancellationToken,
    tell: &mut (dyn FnMut(LeftRow) + Send),
) -> Result<StoreCopyReport, StoreCopyError> {
    let StoreSettings::Postgres(database) = &to.store else { return Err(StoreCopyError::Kind) };
    let source = DiskSource::open(from.to_owned()).await?;
    let (here, there) = (sealing_key::read(from), sealing_key::read(&to.folder).map_err(StoreCopyError::Key)?);
    // Those that start meanwhile compare theirs with this one's.
    let keys = there.as_ref().or_else(|| here.as_ref().ok()?.as_ref());
    let prints = keys.map(SealingKeys::prints).unwrap_or_default();
    let name = format!("copy-{:08x}", u32::from_be_bytes(random::bytes()));
    let described = ReplicaDescription { name, ..shared_store::description(to, prints) };
    let store = PostgresStore::open(shared_store::settings(database, described)).await;
    let store = store.map_err(|error| StoreCopyError::Target(SharedStoreError::from(error).into()))?;
    store.leave();
    let before = store.usage();
    let now = store.clock().now();
    let mut copy = StoreCopy::new(&source, &*store, now, tell);
    let ended = match copy.run(stop).await {
        Ok(true) => None,
        Ok(false) => Some(CopyEnd::Stopped),
        Err(error) => Some(error.into()),
    };
    let counts = copy.counts();
    let after = store.usage();
    store.close().await;
    let key = advice(here, there.as_ref().map(SealingKeys::prints), (from, &to.folder));
    Ok(StoreCopyReport { source: source.usage(), before, after, counts, ended, key })
}

fn advice(
    here: Result<Option<SealingKeys>, KeyFileError>,
    known: Option<Vec<KeyPrint>>,
    (from, to): (&Path, &Path),
) -> KeyAdvice {
    let own = match here {
        Ok(Some(keys)) => keys.prints(),
        Ok(None) => return KeyAdvice::Nothing,
        Err(error) => return KeyAdvice::Unfit(error),
    };
    let (here, there) = (sealing_key::file_in(from), sealing_key::file_in(to));
    match known {
        None => KeyAdvice::Copy { here, there },
        Some(known) if own.iter().all(|print| known.contains(print)) => KeyAdvice::Same { there },
        Some(_) => KeyAdvice::Add { here, there },
    }
}
