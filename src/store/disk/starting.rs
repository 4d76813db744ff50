//! Starts a store: locks the folder, opens the file, reads the sums, starts writer and file check.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::Connection;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::check::FileCheck;
use super::folder::{self, Ballast};
use super::health::StoreHealthMonitor;
use super::readers::ReaderPool;
use super::resident::{EarlierRows, ResidentRows, RowTotals, UnresolvedInserts, totals};
use super::settings::{DiskTuning, FaultHooks};
use super::writer::{self, CommitMetrics, DiskWriter, WriterRequest};
use super::{DiskSettings, DiskStore, OpenError, QUEUE_MAX, SharedFolderLock, examine, rows, schema};
use crate::store::clock_trust::{ClockTrust, DIFFERENCE_MAX, RESET};
use crate::store::record::UnreadableRows;
use crate::task::Timestamp;

fn warn_of(folder: &Path, unfit_medium: Option<&'static str>) {
    let shown = folder.display();
    if let Some(medium) = unfit_medium {
        tracing::warn!(folder = %shown, medium, "tasks may be lost: the folder is on no local disk");
    }
    if folder::is_open_to_all(folder) {
        tracing::warn!(folder = %shown, "every user of this machine can replace the store's files; remove that right (chmod o-w)");
    }
}

impl DiskStore {
    pub(super) async fn open_with(settings: DiskSettings, hooks: FaultHooks) -> Result<Arc<Self>, OpenError> {
        examine(&settings)?;
        let (folder, path) = (settings.folder.clone(), schema::file_in(&settings.folder));
        folder::prepare_for_gateway(&folder, &path)?;
        let medium = folder::unfit_medium(&folder);
        warn_of(&folder, medium);
        let lock = folder::lock(&folder, settings.lock_wait).await?;
        let ballast = medium.is_none().then(|| Ballast::new(&folder));
        let (at, spare, tuning, shown) = (path.clone(), ballast.clone(), settings.tuning, settings.clock);
        let opened = tokio::task::spawn_blocking(move || {
            open_for_clock(&at, spare.as_ref(), tuning, &hooks, shown).map(|found| (found, hooks))
        });
        let (found, hooks) =
            opened.await.map_err(|error| OpenError::Failed { path: path.clone(), what: error.to_string() })??;
        let OpenedDatabase { conn, sums, seen, longest } = found;
        let clock = ClockTrust::new(settings.clock, seen, longest, tuning.distrust);
        let (lock, check) = (Arc::new(Mutex::new(Some(lock))), Arc::<FileCheck>::default());
        let earlier = EarlierRows::new(sums.open().clone());
        let (resident, monitor) = (Arc::new(ResidentRows::new(sums)), StoreHealthMonitor::new());
        let (seen, commits) = (Arc::new(AtomicU64::new(seen.as_millis())), Arc::new(AtomicU64::new(0)));
        let (unresolved, readers) = (Arc::<UnresolvedInserts>::default(), ReaderPool::new(path.clone()));
        let writer = DiskWriter {
            ballast,
            folder,
            identity: writer::identity(&path),
            log: writer::identity(&schema::log_path(&path)),
            is_log_lost: false,
            readers: Arc::clone(&readers),
            path: path.clone(),
            tuning,
            hooks,
            stored_bytes_max: settings.stored_bytes_max,
            conn: Some(conn),
            is_memory_current: false,
            resident: Arc::clone(&resident),
            monitor: Arc::clone(&monitor),
            seen: Arc::clone(&seen),
            commits: Arc::clone(&commits),
            metrics: CommitMetrics::new(),
            failures: VecDeque::new(),
            unresolved: Arc::clone(&unresolved),
            check: Arc::clone(&check),
            owes_checkpoint: false,
            clock,
            seen_noted: Some(Instant::now()),
            is_careful: false,
            failed_at_commit: false,
        };
        let (queue, requests) = mpsc::channel(QUEUE_MAX);
        let thread = start(writer, requests, Arc::clone(&lock))
            .map_err(|error| OpenError::Failed { path: path.clone(), what: error.to_string() })?;
        let store = Self {
            queue,
            readers,
            resident,
            monitor,
            seen,
            commits,
            unresolved,
            earlier,
            bytes_max: settings.stored_bytes_max,
            writer: Mutex::new(Some(thread)),
            check,
            clock,
            _lock: lock,
            unreadable: UnreadableRows::default(),
        };
        store.check_in_background(tuning);
        Ok(Arc::new(store))
    }

    fn check_in_background(&self, tuning: DiskTuning) {
        let (check, monitor, readers) = (Arc::clone(&self.check), Arc::clone(&self.monitor), Arc::clone(&self.readers));
        let check = move || check.run(&readers, &monitor, tuning);
        if let Err(error) = std::thread::Builder::new().name("store-check".to_owned()).spawn(check) {
            tracing::warn!(%error, "the task store's file is not checked");
        }
    }
}

/// Opens the database. A clock that leapt by no more than the longest remaining lifetime is judged by the tasks that got
/// their expiry at a credible time. That lifetime is never zero, which would mean an empty store.
fn open_for_clock(
    path: &Path,
    ballast: Option<&Ballast>,
    tuning: DiskTuning,
    hooks: &FaultHooks,
    shown: Option<Timestamp>,
) -> Result<OpenedDatabase, OpenError> {
    let mut found = open_with_room(path, ballast, tuning, hooks)?;
    if shown.is_some_and(|shown| (DIFFERENCE_MAX..=found.longest).contains(&shown.since(found.seen)))
        && let Ok(latest) = rows::latest_expiry(&found.conn, found.seen.after(DIFFERENCE_MAX))
    {
        found.longest = latest.since(found.seen).max(Duration::from_millis(1));
    }
    Ok(found)
}

/// The thread releases the lock once all is closed. If a bug ends the thread, the lock stays: this process's calls continue.
fn start(
    writer: DiskWriter,
    requests: mpsc::Receiver<WriterRequest>,
    lock: SharedFolderLock,
) -> io::Result<JoinHandle<()>> {
    let monitor = Arc::clone(&writer.monitor);
    std::thread::Builder::new().name("store-writer".to_owned()).spawn(move || {
        let Ok(closing) = catch_unwind(AssertUnwindSafe(|| writer.run(requests))) else { return monitor.set_ended() };
        drop(lock.lock().take());
        if let Some(closing) = closing {
            let _ = closing.send(());
        }
    })
}

pub(super) struct OpenedDatabase {
    pub(super) conn: Connection,
    pub(super) sums: RowTotals,
    pub(super) seen: Timestamp,
    pub(super) longest: Duration,
}

/// Opens the file, and reads the state that must be known before requests are served. That takes disk space: if the disk
/// is full, the ballast is removed first (F53).
pub(super) fn open_with_room(
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
    reset_clock(&conn, &folder_of(path)).map_err(|source| OpenError::Folder { path: folder_of(path), source })?;
    let failed = |error| schema::open_error(path, error);
    let (sums, latest) = totals(&conn).map_err(failed)?;
    let seen = rows::seen(&conn).map_err(failed)?;
    let longest = latest.since(seen);
    tracing::info!(tasks = sums.all().tasks, unsettled = sums.all().unsettled, "the task store is open");
    Ok(OpenedDatabase { conn, sums, seen, longest })
}

/// Discards the time of the store's last use if the operator asks for it; returns whether it did.
fn reset_clock(conn: &Connection, folder: &Path) -> io::Result<bool> {
    let wish = folder.join(RESET);
    if !wish.try_exists()? {
        return Ok(false);
    }
    conn.execute("UPDATE marks SET value = 0 WHERE name = 'seen'", ()).map_err(io::Error::other)?;
    // In this order, a repetition is harmless.
    std::fs::remove_file(&wish)?;
    tracing::warn!("the time of the task store's last use is discarded, as `{RESET}` requests");
    Ok(true)
}
