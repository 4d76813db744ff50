//! Opens the store, and reads what must be known of it before any request is served.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use super::folder::Ballast;
use super::resident::RowTotals;
use super::settings::{DiskTuning, FaultHooks};
use super::{OpenError, clock, rows, schema};
use crate::task::Timestamp;

/// What has to be known before anybody is served.
pub(super) struct OpenedDatabase {
    pub(super) conn: Connection,
    pub(super) sums: RowTotals,
    pub(super) seen: Timestamp,
    /// The longest time to live.
    pub(super) longest: Duration,
}

/// Opens the store. Even to look at it takes some room; where there is none, the ballast is given up (F53).
pub(super) fn read_in_at_last(
    path: &Path,
    ballast: Option<&Ballast>,
    tuning: DiskTuning,
    hooks: &FaultHooks,
) -> Result<OpenedDatabase, OpenError> {
    let open = || {
        hooks.before_open().map_err(|error| schema::open_error(path, error))?;
        read_in(path, tuning)
    };
    match open() {
        Err(error @ (OpenError::Failed { .. } | OpenError::Folder { .. } | OpenError::NoRoom { .. })) => {
            let has_room = hooks.space(&folder_of(path)).is_ok_and(|space| !space.is_low());
            match ballast.filter(|_| !has_room).map(Ballast::drop_it) {
                Some(Ok(true)) => {
                    tracing::warn!(%error, "the disk is full: the ballast is given up, so that the task store can be opened");
                    open()
                }
                Some(Ok(false) | Err(_)) | None => Err(error),
            }
        }
        opened => opened,
    }
}

fn folder_of(path: &Path) -> PathBuf {
    path.parent().map_or_else(PathBuf::new, Path::to_owned)
}

fn read_in(path: &Path, tuning: DiskTuning) -> Result<OpenedDatabase, OpenError> {
    let conn = schema::open(path, tuning)?;
    clock::reset(&conn, &folder_of(path)).map_err(|source| OpenError::Folder { path: folder_of(path), source })?;
    let (mut sums, mut longest) = (RowTotals::default(), Duration::ZERO);
    let counted = rows::outlines(&conn, |key, row| {
        longest = longest.max(row.expires_at.since(row.created_at));
        sums.add(&key, &row);
    });
    let seen = counted.and_then(|()| rows::seen(&conn)).map_err(|error| schema::open_error(path, error))?;
    tracing::info!(tasks = sums.all().tasks, unsettled = sums.all().unsettled, "the task store is open");
    Ok(OpenedDatabase { conn, sums, seen, longest })
}
