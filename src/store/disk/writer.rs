//! Writes, on one thread: drains a bounded queue into transactions, and owns the connection.
//!
//! Whatever waits when a transaction begins, or comes while it is made, is part of it: many writes, one fsync. A
//! single write waits for nobody. A connection that failed is never used again: what the system says of an fsync
//! after a failed one is worth nothing (F54).

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::batch::{InsertRefusal, RowWrite, WriteBatch, WriteResult};
use super::check::FileCheck;
use super::columns::is_corrupt;
use super::doubtful_rows::DoubtfulRows;
use super::folder::{Ballast, DiskSpace};
use super::health::{StoreHealth, StoreHealthMonitor};
use super::resident::ResidentRows;
use super::{DiskTuning, FaultHooks, OpenError, failed, opening, rows, schema};
use crate::failpoint;
use crate::metric;
use crate::store::clock_trust::ClockTrust;
use crate::store::tasks::StoreError;
use crate::task::Timestamp;

/// The most that one transaction takes in; the time is for what came after its begin.
const BATCH_WRITES_MAX: usize = 512;
const BATCH_BYTES_MAX: usize = 8 << 20;
const BATCH_TIME_MAX: Duration = Duration::from_millis(2);

/// So many failures within so long, and no new tasks are taken.
const FAILURES_MAX: usize = 3;
const FAILURES_WITHIN: Duration = Duration::from_secs(60);
/// Damaged rows and records that one write may find.
const DAMAGED_MAX: usize = 64;

/// A write, since when it waits, and who waits for it.
#[derive(Debug)]
pub(super) enum WriterRequest {
    Write(RowWrite, Instant, oneshot::Sender<Result<WriteResult, StoreError>>),
    /// Ends the thread; answered when everything is closed.
    Close(oneshot::Sender<()>),
}

pub(super) struct DiskWriter {
    pub(super) folder: PathBuf,
    pub(super) path: PathBuf,
    pub(super) tuning: DiskTuning,
    pub(super) hooks: FaultHooks,
    pub(super) stored_bytes_max: usize,
    /// `None` after a failure, until it can be had again.
    pub(super) conn: Option<Connection>,
    /// Which file the connection has open.
    pub(super) place: Option<(u64, u64)>,
    pub(super) resident: Arc<ResidentRows>,
    pub(super) monitor: Arc<StoreHealthMonitor>,
    /// The latest time that anybody was served at, in milliseconds.
    pub(super) seen: Arc<AtomicU64>,
    pub(super) commits: Arc<AtomicU64>,
    /// `None` where a full disk cannot be told from full memory.
    pub(super) ballast: Option<Ballast>,
    pub(super) failures: VecDeque<Instant>,
    pub(super) doubt: Arc<DoubtfulRows>,
    pub(super) check: Arc<FileCheck>,
    /// What readers kept from being brought into the file.
    pub(super) owes_checkpoint: bool,
    pub(super) clock: ClockTrust,
    /// When the time was noted last.
    pub(super) seen_noted: Option<Instant>,
    /// Whether records are made anew instead of being written over, as some are damaged.
    pub(super) is_careful: bool,
    /// Whether the last transaction failed when it was to be made durable, and not before.
    pub(super) failed_at_commit: bool,
}

type PendingWrite = (RowWrite, oneshot::Sender<Result<WriteResult, StoreError>>);
type WriteResults = Vec<Result<WriteResult, StoreError>>;

impl DiskWriter {
    /// Works until it is told to close, or nobody can tell it anything any more. Returns who told it to, once everything
    /// is closed.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<WriterRequest>) -> Option<oneshot::Sender<()>> {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
            self.monitor.ended();
            return None;
        };
        self.look_for_room();
        let mut ticked = Instant::now();
        let closing = loop {
            match runtime.block_on(async { tokio::time::timeout(self.tuning.tick, queue.recv()).await }) {
                Ok(Some(WriterRequest::Write(write, asked, reply))) => {
                    // First come, first served: nobody who waits came before.
                    self.monitor.serves(Some(asked));
                    let closing = self.serve((write, reply), &mut queue);
                    self.monitor.serves(None);
                    if let Some(reply) = closing {
                        break Some(reply);
                    }
                }
                Ok(Some(WriterRequest::Close(reply))) => break Some(reply),
                Ok(None) => break None,
                Err(_) => (),
            }
            if ticked.elapsed() >= self.tuning.tick {
                self.tick();
                ticked = Instant::now();
            }
        };
        // Nothing of what still waits in the queue was written.
        queue.close();
        while let Ok(request) = queue.try_recv() {
            if let WriterRequest::Write(_, _, reply) = request {
                let _ = reply.send(Err(super::closed()));
            }
        }
        self.close();
        closing
    }

    fn close(mut self) {
        self.settle();
        if let Some(conn) = &self.conn {
            if !self.clock.is_distrusted() {
                let _ = rows::note_seen(conn, self.seen());
            }
            if let Err(error) = schema::checkpoint(conn) {
                tracing::warn!(%error, "the log stays beside the task store's file, and is read at the next start");
            }
        }
    }

    pub(super) fn seen(&self) -> Timestamp {
        Timestamp::from_millis(self.seen.load(Ordering::Relaxed))
    }

    /// Serves one write and whatever waits behind it. Returns who asked for the end, if anybody did.
    fn serve(&mut self, first: PendingWrite, queue: &mut mpsc::Receiver<WriterRequest>) -> Option<oneshot::Sender<()>> {
        let mut closing = None;
        let health = 1 + queue.len();
        let mut more = || match queue.try_recv() {
            Ok(WriterRequest::Write(write, _, reply)) => Some((write, reply)),
            Ok(WriterRequest::Close(reply)) => {
                closing = Some(reply);
                None
            }
            Err(_) => None,
        };
        let mut waiting = vec![first];
        let outcomes = match self.attempt(&mut waiting, health, &mut more) {
            Err(error) if is_full(&error) => self.attempt_with_less(&mut waiting),
            Err(error) if is_corrupt(&error) => Ok(self.attempt_with_care(&mut waiting)),
            other => other,
        };
        match outcomes {
            Ok(outcomes) => {
                for ((_, reply), outcome) in waiting.into_iter().zip(outcomes) {
                    // Who does not wait any more finds the row, or sees it swept.
                    let _ = reply.send(outcome);
                }
            }
            Err(error) => {
                let text = error.to_string();
                self.failed(&error);
                for (write, reply) in waiting {
                    let cause = std::io::Error::other(text.clone());
                    let is_unsure = self.is_in_doubt(&write);
                    let _ = reply.send(Err(if is_unsure { StoreError::Unsure(cause) } else { StoreError::Io(cause) }));
                }
            }
        }
        closing
    }

    /// Whether a write whose transaction failed may have been made all the same. A row that was to be made and has been
    /// removed since certainly is not there.
    fn is_in_doubt(&self, write: &RowWrite) -> bool {
        match write {
            RowWrite::Insert(task) => self.doubt.is_open(&task.key),
            RowWrite::Replace { .. } | RowWrite::Condemn { .. } | RowWrite::Remove(_) | RowWrite::SweepOne { .. } => {
                self.failed_at_commit
            }
            RowWrite::Sweep { .. } | RowWrite::Barrier => false,
        }
    }

    /// Makes one transaction of what waits, `standing` writes when it begins, and of what comes soon after. Where it fails
    /// at its commit, its new rows are in doubt; where it fails before, nothing has happened.
    fn attempt(
        &mut self,
        waiting: &mut Vec<PendingWrite>,
        health: usize,
        more: &mut dyn FnMut() -> Option<PendingWrite>,
    ) -> rusqlite::Result<WriteResults> {
        self.failed_at_commit = false;
        // Once it fails for good, probes alone open it.
        if self.conn.is_none() && self.monitor.now() != StoreHealth::Failing {
            self.reopen().map_err(|error| cannot_open(&error.to_string()))?;
        }
        let Some(conn) = &self.conn else { return Err(cannot_open("the file cannot be opened at the moment")) };
        let began = Instant::now();
        let bytes = (self.resident.usage().bytes, self.stored_bytes_max);
        let care = (self.resident.stuck(), self.is_careful);
        let mut batch = WriteBatch::new(conn, no_new(self.monitor.now()), bytes, self.seen(), care);
        let mut outcomes = Vec::with_capacity(waiting.len());
        let mut size = 0;
        conn.execute_batch("BEGIN IMMEDIATE")?;
        let mut at = 0;
        while at < waiting.len() {
            outcomes.push(batch.run(&waiting[at].0)?);
            size += waiting[at].0.bytes();
            at += 1;
            let is_early = at < health || began.elapsed() < BATCH_TIME_MAX;
            let is_open = at < BATCH_WRITES_MAX && size < BATCH_BYTES_MAX && is_early;
            if at == waiting.len() && is_open {
                waiting.extend(more());
            }
        }
        let WriteBatch { changes, has_barrier, .. } = batch;
        if changes.is_empty() && !has_barrier {
            conn.execute_batch("COMMIT")?;
            return Ok(outcomes);
        }
        self.resident.begin(&changes);
        let new = self.doubt.begin(&changes);
        failpoint::hit("intent-written");
        let committed = self.hooks.before_commit().and_then(|()| conn.execute_batch("COMMIT"));
        match committed.and_then(|()| self.hooks.after_commit()) {
            Ok(()) => {
                self.resident.follow(changes, self.seen());
                self.doubt.made(&new);
            }
            Err(error) => {
                self.resident.abandon(&changes);
                // What has no room is certainly not there.
                self.failed_at_commit = !is_full(&error);
                return Err(error);
            }
        }
        self.commits.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(metric::STORE_COMMITS).increment(1);
        metrics::histogram!(metric::STORE_BATCH).record(waiting.len() as f64);
        metrics::histogram!(metric::STORE_COMMIT_TIME).record(began.elapsed().as_secs_f64());
        Ok(outcomes)
    }

    /// The disk is full: gives up the ballast, takes no new tasks, and tries the rest once more.
    fn attempt_with_less(&mut self, waiting: &mut Vec<PendingWrite>) -> rusqlite::Result<WriteResults> {
        // Whatever the system says, there is none for this store.
        let all = self.hooks.space(&self.folder).map_or(0, |space| space.all);
        self.monitor.room(DiskSpace { free: 0, all });
        metrics::counter!(metric::STORE_FAILURES, "reason" => "full").increment(1);
        self.conn = None;
        if let Some(ballast) = &self.ballast {
            match ballast.drop_it() {
                Ok(true) => tracing::warn!("the disk is full: the ballast is given up, so that tasks can be finished"),
                Ok(false) => (),
                Err(error) => tracing::error!(%error, "the ballast cannot be given up"),
            }
        }
        match self.attempt(waiting, 0, &mut || None) {
            Err(error) if is_full(&error) => {
                self.conn = None;
                // Each for itself: one that grows must not keep the others from getting smaller.
                let mut outcomes = Vec::with_capacity(waiting.len());
                for one in std::mem::take(waiting) {
                    let mut single = vec![one];
                    outcomes.push(self.alone(&mut single));
                    waiting.append(&mut single);
                }
                Ok(outcomes)
            }
            other => other,
        }
    }

    /// One write met damage: each is tried for itself, with records made anew, and again where something else was found
    /// that is to be left alone.
    fn attempt_with_care(&mut self, waiting: &mut Vec<PendingWrite>) -> WriteResults {
        self.conn = None;
        self.is_careful = true;
        let mut outcomes = Vec::with_capacity(waiting.len());
        for one in std::mem::take(waiting) {
            let mut single = vec![one];
            for _ in 0..DAMAGED_MAX {
                let known = self.resident.stuck().lock().len();
                match self.attempt(&mut single, 0, &mut || None) {
                    Err(error) if is_corrupt(&error) && self.resident.stuck().lock().len() > known => self.conn = None,
                    Err(_) => {
                        // Its transaction may still be open.
                        self.conn = None;
                        break;
                    }
                    Ok(mut done) => {
                        outcomes.extend(done.pop());
                        break;
                    }
                }
            }
            if outcomes.len() == waiting.len() {
                outcomes.push(self.alone(&mut single));
            }
            waiting.append(&mut single);
        }
        self.is_careful = false;
        outcomes
    }

    fn alone(&mut self, single: &mut Vec<PendingWrite>) -> Result<WriteResult, StoreError> {
        match self.attempt(single, 0, &mut || None) {
            Ok(mut outcomes) => outcomes.pop().unwrap_or_else(|| Err(super::closed())),
            Err(error) => {
                let is_full = is_full(&error);
                if is_full {
                    self.conn = None;
                    self.settle();
                } else {
                    self.failed(&error);
                }
                let is_unsure = single.first().is_some_and(|(write, _)| self.is_in_doubt(write));
                Err(match (is_unsure, is_full) {
                    (true, _) => StoreError::Unsure(std::io::Error::other(error)),
                    (false, true) => InsertRefusal::Full.error(),
                    (false, false) => failed(error),
                })
            }
        }
    }

    /// Opens the file anew where rows are in doubt, so that they are not any more.
    pub(super) fn settle(&mut self) {
        if self.conn.is_none()
            && !self.doubt.is_over()
            && let Err(error) = self.reopen()
        {
            tracing::debug!(%error, "whether some tasks were stored is not known yet");
        }
    }

    /// Notes a failure and gives the connection up.
    fn failed(&mut self, error: &rusqlite::Error) {
        tracing::error!(%error, "writing to the task store failed; its file is opened anew");
        metrics::counter!(metric::STORE_FAILURES, "reason" => "io").increment(1);
        self.conn = None;
        if is_corrupt(error) {
            self.monitor.damaged();
        }
        let now = Instant::now();
        self.failures.push_back(now);
        self.failures.retain(|at| now.duration_since(*at) <= FAILURES_WITHIN);
        if self.failures.len() >= FAILURES_MAX {
            self.monitor.failing(true);
            self.settle();
        } else if self.reopen().is_err() {
            self.monitor.failing(true);
        }
    }

    /// Opens the file, removes what is in doubt, and begins memory anew with what the file has: a commit that was
    /// reported as failed may have happened. There is no connection as long as the removal fails.
    pub(super) fn reopen(&mut self) -> Result<(), OpenError> {
        self.check.hold();
        let opened = self.open_again();
        self.check.go_on();
        opened
    }

    fn open_again(&mut self) -> Result<(), OpenError> {
        // Readers have the old file open, and the lock lies beside it.
        if !self.is_in_place() {
            let what = "another file stands where the store was; put it back, or start again".to_owned();
            return Err(OpenError::Failed { path: self.path.clone(), what });
        }
        let wrong = |error| schema::open_error(&self.path, error);
        self.hooks.before_open().map_err(wrong)?;
        let conn = schema::reopen(&self.path, self.tuning)?;
        if let Err(error) = self.remove_doubtful(&conn) {
            // A commit that failed once more: it counts as such where somebody waits for it, and is tried again.
            tracing::warn!(%error, "rows whose insert was reported as failed are not removed yet");
            return Ok(());
        }
        let (sums, _) = opening::totals(&conn).map_err(wrong)?;
        self.resident.reset(sums);
        self.conn = Some(conn);
        Ok(())
    }

    /// Removes the rows whose insert was reported as failed. Something is written even where none of them is found: what
    /// an earlier log still has counts no more once a later one is durable.
    fn remove_doubtful(&self, conn: &Connection) -> rusqlite::Result<()> {
        let keys = self.doubt.open();
        if keys.is_empty() {
            return Ok(());
        }
        conn.execute_batch("BEGIN IMMEDIATE")?;
        rows::probe(conn)?;
        let mut found = 0_usize;
        for key in &keys {
            if let Some(row) = rows::find(conn, key)? {
                rows::delete(conn, &row, self.resident.stuck())?;
                found += 1;
            }
        }
        self.hooks.before_commit()?;
        conn.execute_batch("COMMIT")?;
        self.hooks.after_commit()?;
        self.doubt.removed();
        tracing::warn!(refused = keys.len(), found, "rows whose insert was reported as failed were removed");
        Ok(())
    }

    /// Whether the name still means the file that is open (F57): what is written to another one is lost.
    pub(super) fn is_in_place(&self) -> bool {
        self.place.is_some() && identity(&self.path) == self.place
    }
}

fn cannot_open(why: &str) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
    rusqlite::Error::SqliteFailure(code, Some(why.to_owned()))
}

/// Which file a name means.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

const fn no_new(health: StoreHealth) -> Option<InsertRefusal> {
    match health {
        StoreHealth::Good => None,
        StoreHealth::Full => Some(InsertRefusal::Full),
        StoreHealth::Failing | StoreHealth::Damaged | StoreHealth::Ended => Some(InsertRefusal::Failing),
    }
}

pub(super) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}
