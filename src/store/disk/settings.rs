//! Defines where a store is and which files are accepted, and why one cannot be opened.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::folder::{self, DiskSpace};
use crate::failpoint;
use crate::store::clock_trust::DISTRUST;
use crate::task::Timestamp;

/// How long a predecessor that is about to end is waited for (B171).
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// How often the disk is looked at.
const TICK: Duration = Duration::from_secs(1);

/// Where the store is, and how much it may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSettings {
    /// Made if it is not there.
    pub folder: PathBuf,
    /// Each row counts as at least [`crate::task::model::ROW_BYTES_MIN`].
    pub stored_bytes_max: usize,
    /// Whether memory and other machines' disks will do (B171).
    pub is_ephemeral: bool,
    /// How long a process that has the store open is waited for.
    pub lock_wait: Duration,
    /// What the machine's clock shows at the start, to be held against the time that the store was last used at; `None`
    /// where the tasks' times have nothing to do with that clock.
    pub clock: Option<Timestamp>,
    pub(super) tuning: DiskTuning,
}

impl DiskSettings {
    #[must_use]
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

    /// Takes the promise away: nothing is waited for to reach the disk. For a test of the tests, which have to notice.
    #[cfg(debug_assertions)]
    #[must_use]
    pub const fn without_sync(mut self) -> Self {
        self.tuning.syncs = false;
        self
    }
}

/// What tests change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskTuning {
    pub(super) syncs: bool,
    /// The size at which the file is as good as a full disk.
    pub(super) pages_max: Option<u32>,
    /// How often the disk is looked at.
    pub(super) tick: Duration,
    /// What the check of the file begins with.
    pub(super) check_first: Option<&'static str>,
    /// How much log makes the check make way.
    pub(super) check_log_bytes_max: Option<u64>,
    /// How long a clock that leapt ahead frees nothing.
    pub(super) distrust: Duration,
}

pub(super) type FaultHook = Box<dyn Fn() -> rusqlite::Result<()> + Send>;

/// Where tests make things fail.
#[derive(Default)]
pub(super) struct FaultHooks {
    /// Before the file is opened again.
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
