//! Opens the store, and reads the state that must be known before serving requests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use super::columns::{OUTLINE, id_of, outline};
use super::folder::Ballast;
use super::resident::RowTotals;
use super::settings::{DiskTuning, FaultHooks};
use super::{OpenError, clock, rows, schema};
use crate::store::tasks::Usage;
use crate::task::{Principal, TaskKey, Timestamp};

pub(super) struct OpenedDatabase {
    pub(super) conn: Connection,
    pub(super) sums: RowTotals,
    pub(super) seen: Timestamp,
    pub(super) longest: Duration,
}

/// Even reading takes some space; if the disk is full, the ballast is removed (F53).
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
        Err(error @ (OpenError::Failed { .. } | OpenError::Folder { .. })) => {
            let has_room = hooks.space(&folder_of(path)).is_ok_and(|space| !space.is_low());
            match ballast.filter(|_| !has_room).map(Ballast::drop_it) {
                Some(Ok(true)) => {
                    tracing::warn!(%error, "the disk is full: the ballast is released, so that the task store can be opened");
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
    let failed = |error| schema::open_error(path, error);
    let (sums, longest) = totals(&conn).map_err(failed)?;
    let seen = rows::seen(&conn).map_err(failed)?;
    tracing::info!(tasks = sums.all().tasks, unsettled = sums.all().unsettled, "the task store is open");
    Ok(OpenedDatabase { conn, sums, seen, longest })
}

/// From an index alone.
pub(super) fn totals(conn: &Connection) -> rusqlite::Result<(RowTotals, Duration)> {
    let (mut totals, mut longest) = (RowTotals::default(), Duration::ZERO);
    let sql = "SELECT owner, count(*), sum(max(bytes, 0)), max(expires_at - created_at) FROM tasks INDEXED BY tasks_age
               WHERE settled <> 0 AND unnotified = 0 GROUP BY owner";
    let mut statement = conn.prepare(sql)?;
    let mut owners = statement.query(())?;
    while let Some(row) = owners.next()? {
        let [tasks, bytes] = [row.get::<_, i64>(1)?, row.get(2)?].map(|sum| usize::try_from(sum).unwrap_or(0));
        totals.add_settled(&Principal::new(row.get_ref(0)?.as_str()?), Usage { tasks, unsettled: 0, bytes });
        longest = longest.max(Duration::from_millis(u64::try_from(row.get::<_, i64>(3)?).unwrap_or(0)));
    }
    let sql = format!(
        "SELECT owner, id, {OUTLINE} FROM tasks INDEXED BY tasks_age WHERE settled = 0 OR unnotified <> 0 ORDER BY owner"
    );
    let mut statement = conn.prepare(&sql)?;
    let mut rows = statement.query(())?;
    let mut owner = Principal::new("");
    while let Some(row) = rows.next()? {
        let name = row.get_ref(0)?.as_str()?;
        // One shared text for all rows of an owner.
        if name != owner.as_str() {
            owner = Principal::new(name);
        }
        let outline = outline(row, 2)?;
        longest = longest.max(outline.expires_at.since(outline.created_at));
        totals.add(&TaskKey { owner: owner.clone(), id: id_of(row.get(1)?) }, &outline);
    }
    Ok((totals, longest))
}
