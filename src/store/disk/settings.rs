//! Defines a disk store's settings, and hooks for tests.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::folder::{self, DiskSpace};
use crate::failpoint;
use crate::store::clock_trust::DISTRUST;
use crate::task::Timestamp;

/// How long to wait for an earlier process to end (B171).
const LOCK_WAIT: Duration = Duration::from_secs(10);

const TICK: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSettings {
    /// Created if it is missing.
    pub folder: PathBuf,
    /// Each row counts as at least [`crate::task::model::ROW_BYTES_MIN`].
    pub stored_bytes_max: usize,
    /// Whether memory and network disks are acceptable (B171).
    pub is_ephemeral: bool,
    pub lock_wait: Duration,
    /// The machine's time at startup, to compare with the store's last use; `None` if tasks' times do not follow it.
    pub clock: Option<Timestamp>,
    pub(super) tuning: DiskTuning,
}

impl DiskSettings {
    pub const fn new(folder: PathBuf, stored_bytes_max: usize) -> Self {
        let tuning = DiskTuning {
            syncs: true,
            pages_max: None,
            tick: TICK,
            check_first: None,
            check_log_bytes_max: None,
            distrust: DISTRUST,
        };
        Self { folder, stored_bytes_max, is_ephemeral: false, lock_wait: LOCK_WAIT, clock: None, tuning }
    }

    /// Disables fsync, and with it durability: for a test that durability tests notice this.
    #[cfg(debug_assertions)]
    #[must_use]
    pub const fn without_sync(mut self) -> Self {
        self.tuning.syncs = false;
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskTuning {
    pub(super) syncs: bool,
    /// The file size at which the disk counts as full.
    pub(super) pages_max: Option<u32>,
    pub(super) tick: Duration,
    pub(super) check_first: Option<&'static str>,
    pub(super) check_log_bytes_max: Option<u64>,
    pub(super) distrust: Duration,
}

pub(super) type FaultHook = Box<dyn Fn() -> rusqlite::Result<()> + Send>;

#[derive(Default)]
pub(super) struct FaultHooks {
    pub(super) before_open: Option<FaultHook>,
    pub(super) before_commit: Option<FaultHook>,
    pub(super) after_commit: Option<FaultHook>,
    pub(super) space: Option<Box<dyn Fn() -> DiskSpace + Send>>,
}

impl FaultHooks {
    pub(super) fn before_open(&self) -> rusqlite::Result<()> {
        self.before_open.as_ref().map_or(Ok(()), |hook| hook())
    }

    pub(super) fn before_commit(&self) -> rusqlite::Result<()> {
        self.before_commit.as_ref().map_or(Ok(()), |hook| hook())
    }

    pub(super) fn after_commit(&self) -> rusqlite::Result<()> {
        if failpoint::strikes("commit-made") {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
            return Err(rusqlite::Error::SqliteFailure(code, Some("on purpose".to_owned())));
        }
        self.after_commit.as_ref().map_or(Ok(()), |hook| hook())
    }

    pub(super) fn space(&self, folder: &Path) -> io::Result<DiskSpace> {
        self.space.as_ref().map_or_else(|| folder::space(folder), |space| Ok(space()))
    }
}
