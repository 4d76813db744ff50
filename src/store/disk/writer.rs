//! The writer's thread: commits a bounded queue of writes in batches, and owns the connection. Waiting writes share a
//! transaction. A failed connection is not reused: after a failed fsync the next is void (F54).

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Histogram};
use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::batch::{InsertRefusal, RowWrite, WriteBatch};
use super::check::FileCheck;
use super::columns::is_corrupt;
use super::folder::{Ballast, DiskSpace};
use super::health::{StoreHealth, StoreHealthMonitor};
use super::readers::ReaderPool;
use super::resident::{ResidentRows, UnresolvedInserts, totals};
use super::rows::RowStatements;
use super::{DiskTuning, FaultHooks, OpenError, failed, rows, schema};
use crate::failpoint;
use crate::metric;
use crate::store::clock_trust::ClockTrust;
use crate::store::tasks::{StoreError, WriteOutcome};
use crate::system;
use crate::task::Timestamp;

/// The time applies to writes that arrive after its start.
const BATCH_WRITES_MAX: usize = 512;
const BATCH_BYTES_MAX: usize = 8 << 20;
const BATCH_TIME_MAX: Duration = Duration::from_millis(2);

/// This many failures within this time stop new tasks.
const FAILURES_MAX: usize = 3;
const FAILURES_WITHIN: Duration = Duration::from_secs(60);
/// Damaged rows and records that one write may find.
const DAMAGED_MAX: usize = 64;

#[derive(Debug)]
pub(super) enum WriterRequest {
    Write(RowWrite, Instant, oneshot::Sender<Result<WriteOutcome, StoreError>>),
    /// Answered once everything is closed.
    Close(oneshot::Sender<()>),
}

pub(super) struct DiskWriter {
    pub(super) folder: PathBuf,
    pub(super) path: PathBuf,
    pub(super) tuning: DiskTuning,
    pub(super) hooks: FaultHooks,
    pub(super) stored_bytes_max: usize,
    /// `None` from a failure until the file is reopened.
    pub(super) conn: Option<Connection>,
    /// Whether the connection was dropped for lack of room alone, so that memory still equals the file.
    pub(super) is_memory_current: bool,
    pub(super) identity: Option<(u64, u64)>,
    /// The identity of the file's log, once there is one.
    pub(super) log: Option<(u64, u64)>,
    pub(super) is_log_lost: bool,
    pub(super) readers: Arc<ReaderPool>,
    pub(super) resident: Arc<ResidentRows>,
    pub(super) monitor: Arc<StoreHealthMonitor>,
    /// The latest time used, in milliseconds.
    pub(super) seen: Arc<AtomicU64>,
    pub(super) commits: Arc<AtomicU64>,
    pub(super) metrics: CommitMetrics,
    /// `None` if the folder is in memory, where a full disk is full memory.
    pub(super) ballast: Option<Ballast>,
    pub(super) failures: VecDeque<Instant>,
    pub(super) unresolved: Arc<UnresolvedInserts>,
    pub(super) check: Arc<FileCheck>,
    /// A checkpoint that readers prevented.
    pub(super) owes_checkpoint: bool,
    pub(super) clock: ClockTrust,
    pub(super) seen_noted: Option<Instant>,
    /// Whether records are inserted as new rows instead of overwritten, since some are damaged.
    pub(super) is_careful: bool,
    /// Whether the last transaction failed at its commit, not earlier.
    pub(super) failed_at_commit: bool,
}

/// Looked up once: each commit counts in all of them. The metrics recorder must be installed before.
pub(super) struct CommitMetrics {
    commits: Counter,
    batch: Histogram,
    time: Histogram,
}

impl CommitMetrics {
    pub(super) fn new() -> Self {
        Self {
            commits: metrics::counter!(metric::STORE_COMMITS),
            batch: metrics::histogram!(metric::STORE_BATCH),
            time: metrics::histogram!(metric::STORE_COMMIT_TIME),
        }
    }
}

type PendingWrite = (RowWrite, oneshot::Sender<Result<WriteOutcome, StoreError>>);
type WriteOutcomes = Vec<Result<WriteOutcome, StoreError>>;

impl DiskWriter {
    /// Runs until a request to close or its queue's end. Returns the request's channel, once everything is closed.
    pub(super) fn run(mut self, mut queue: mpsc::Receiver<WriterRequest>) -> Option<oneshot::Sender<()>> {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
            self.monitor.set_ended();
            return None;
        };
        self.look_for_room();
        let mut ticked = Instant::now();
        let closing = loop {
            match runtime.block_on(async { tokio::time::timeout(self.tuning.tick, queue.recv()).await }) {
                Ok(Some(WriterRequest::Write(write, queued_at, reply))) => {
                    self.monitor.set_writing(Some(queued_at));
                    let closing = self.serve((write, reply), &mut queue);
                    self.monitor.set_writing(None);
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
        // No remaining write in the queue was made.
        queue.close();
        while let Ok(request) = queue.try_recv() {
            if let WriterRequest::Write(_, _, reply) = request {
                let _ = reply.send(Err(StoreError::closed()));
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

    /// Commits one write together with waiting ones. Returns the channel of a close request, if there was one.
    fn serve(&mut self, first: PendingWrite, queue: &mut mpsc::Receiver<WriterRequest>) -> Option<oneshot::Sender<()>> {
        let mut closing = None;
        let queued_count = 1 + queue.len();
        let mut more = || match queue.try_recv() {
            Ok(WriterRequest::Write(write, _, reply)) => Some((write, reply)),
            Ok(WriterRequest::Close(reply)) => {
                closing = Some(reply);
                None
            }
            Err(_) => None,
        };
        let mut waiting = vec![first];
        let outcomes = match self.attempt(&mut waiting, queued_count, &mut more) {
            Err(error) if is_full(&error) => self.attempt_with_less(&mut waiting),
            Err(error) if is_corrupt(&error) => Ok(self.attempt_with_care(&mut waiting)),
            other => other,
        };
        match outcomes {
            Ok(outcomes) => {
                for ((_, reply), outcome) in waiting.into_iter().zip(outcomes) {
                    // If the caller is gone, a later read or sweep finds the row.
                    let _ = reply.send(outcome);
                }
            }
            Err(error) => {
                let text = error.to_string();
                self.failed(&error);
                for (write, reply) in waiting {
                    let cause = std::io::Error::other(text.clone());
                    let is_unknown = self.has_unknown_commit(&write);
                    let _ = reply.send(Err(if is_unknown {
                        StoreError::UnknownCommit(cause)
                    } else {
                        StoreError::Io(cause)
                    }));
                }
            }
        }
        closing
    }

    /// Whether a write may have been made although its transaction failed. A row inserted and then removed is absent.
    fn has_unknown_commit(&self, write: &RowWrite) -> bool {
        match write {
            RowWrite::Insert(task) => self.unresolved.is_open(&task.key),
            RowWrite::Replace { .. } | RowWrite::Condemn { .. } | RowWrite::Remove(_) | RowWrite::SweepOne { .. } => {
                self.failed_at_commit
            }
            RowWrite::Sweep { .. } | RowWrite::Barrier => false,
        }
    }

    /// Commits the first `queued_count` waiting writes, and later ones that arrive soon. After a failed commit its new rows
    /// are unresolved; after an earlier failure nothing was written.
    fn attempt(
        &mut self,
        waiting: &mut Vec<PendingWrite>,
        queued_count: usize,
        more: &mut dyn FnMut() -> Option<PendingWrite>,
    ) -> rusqlite::Result<WriteOutcomes> {
        self.failed_at_commit = false;
        // After repeated failures only probes reopen the file.
        if self.conn.is_none() && self.monitor.now() != StoreHealth::Failing {
            self.reopen().map_err(|error| cannot_open(&error.to_string()))?;
        }
        let Some(conn) = &self.conn else { return Err(cannot_open("the file cannot be opened at the moment")) };
        let began = Instant::now();
        let mut batch = WriteBatch {
            statements: RowStatements::new(conn),
            no_new: no_new(self.monitor.now()),
            bytes: self.resident.usage().bytes,
            bytes_max: self.stored_bytes_max,
            seen: self.seen(),
            clock: self.clock,
            stuck: &self.resident.stuck,
            is_careful: self.is_careful,
            changes: Vec::new(),
            has_barrier: false,
        };
        let mut outcomes = Vec::with_capacity(waiting.len());
        let mut size = 0;
        execute(conn, BEGIN)?;
        let mut at = 0;
        while at < waiting.len() {
            outcomes.push(batch.run(&waiting[at].0)?);
            size += waiting[at].0.bytes();
            at += 1;
            let is_early = at < queued_count || began.elapsed() < BATCH_TIME_MAX;
            let is_open = at < BATCH_WRITES_MAX && size < BATCH_BYTES_MAX && is_early;
            if at == waiting.len() && is_open {
                waiting.extend(more());
            }
        }
        let WriteBatch { changes, has_barrier, .. } = batch;
        if changes.is_empty() && !has_barrier {
            execute(conn, COMMIT)?;
            return Ok(outcomes);
        }
        self.resident.begin(&changes);
        let new = self.unresolved.begin(&changes);
        failpoint::hit("intent-written");
        let committed = self.hooks.before_commit().and_then(|()| execute(conn, COMMIT));
        match committed.and_then(|()| self.hooks.after_commit()) {
            Ok(()) => {
                self.resident.follow(changes, self.seen());
                self.unresolved.made(&new);
            }
            Err(error) => {
                self.resident.abandon(&changes);
                // A write without space was certainly not made.
                self.failed_at_commit = !is_full(&error);
                return Err(error);
            }
        }
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.metrics.commits.increment(1);
        self.metrics.batch.record(waiting.len() as f64);
        self.metrics.time.record(began.elapsed().as_secs_f64());
        Ok(outcomes)
    }

    /// Handles a full disk: removes the ballast, refuses new tasks, and retries the rest once.
    fn attempt_with_less(&mut self, waiting: &mut Vec<PendingWrite>) -> rusqlite::Result<WriteOutcomes> {
        // Regardless of the reported free space, this store has none.
        let all = self.hooks.space(&self.folder).map_or(0, |space| space.all);
        self.monitor.set_space(DiskSpace { free: 0, all });
        metrics::counter!(metric::STORE_FAILURES, "reason" => "full").increment(1);
        self.drop_without_room();
        if let Some(ballast) = &self.ballast {
            match ballast.drop_it() {
                Ok(true) => tracing::warn!("the disk is full: the ballast is released, so that tasks can be finished"),
                Ok(false) => (),
                Err(error) => tracing::error!(%error, "the ballast cannot be released"),
            }
        }
        match self.attempt(waiting, 0, &mut || None) {
            Err(error) if is_full(&error) => {
                self.drop_without_room();
                // One by one: a growing row must not keep others from shrinking.
                let mut outcomes = Vec::with_capacity(waiting.len());
                for one in std::mem::take(waiting) {
                    let mut single = vec![one];
                    let done = self.attempt(&mut single, 0, &mut || None);
                    outcomes.push(self.outcome_alone(&single, done));
                    waiting.append(&mut single);
                }
                Ok(outcomes)
            }
            other => other,
        }
    }

    /// Handles damage: retries each write alone, with new records, and again if it finds further damage.
    fn attempt_with_care(&mut self, waiting: &mut Vec<PendingWrite>) -> WriteOutcomes {
        self.disconnect();
        self.is_careful = true;
        let mut outcomes = Vec::with_capacity(waiting.len());
        for one in std::mem::take(waiting) {
            let (mut single, mut tries, mut was_full) = (vec![one], 1, false);
            let done = loop {
                let known = self.resident.stuck.lock().len();
                let done = self.attempt(&mut single, 0, &mut || None);
                let is_found = done.as_ref().is_err_and(is_corrupt) && self.resident.stuck.lock().len() > known;
                // Nothing was written; the reopened file may have room.
                let is_retried = done.as_ref().is_err_and(is_full) && !std::mem::replace(&mut was_full, true);
                if !(is_found || is_retried) || tries > DAMAGED_MAX {
                    break done;
                }
                self.disconnect();
                tries += 1;
            };
            outcomes.push(self.outcome_alone(&single, done));
            waiting.append(&mut single);
        }
        self.is_careful = false;
        outcomes
    }

    /// The outcome of an attempt with one write. Not tried again: after a failed commit the write may have been made.
    fn outcome_alone(
        &mut self,
        single: &[PendingWrite],
        done: rusqlite::Result<WriteOutcomes>,
    ) -> Result<WriteOutcome, StoreError> {
        match done {
            Ok(mut outcomes) => outcomes.pop().unwrap_or_else(|| Err(StoreError::closed())),
            Err(error) => {
                let is_full = is_full(&error);
                if is_full {
                    self.drop_without_room();
                    self.settle();
                } else {
                    self.failed(&error);
                }
                let is_unknown = single.first().is_some_and(|(write, _)| self.has_unknown_commit(write));
                Err(match (is_unknown, is_full) {
                    (true, _) => StoreError::UnknownCommit(std::io::Error::other(error)),
                    (false, true) => InsertRefusal::Full.error(),
                    (false, false) => failed(error),
                })
            }
        }
    }

    /// Drops a connection that found no room. It wrote nothing, so memory is not read again, a cost of all rows.
    fn drop_without_room(&mut self) {
        self.is_memory_current |= self.conn.is_some();
        self.disconnect();
    }

    /// Closes the connection. Whether its log was removed must be known before: the last connection removes it, too.
    pub(super) fn disconnect(&mut self) {
        if self.conn.is_some() && !self.has_its_log() && !std::mem::replace(&mut self.is_log_lost, true) {
            tracing::error!("the task store's log, tasks.db-wal, was removed or replaced; the file is reopened");
        }
        self.conn = None;
    }

    pub(super) fn settle(&mut self) {
        if self.conn.is_none()
            && !self.unresolved.is_over()
            && let Err(error) = self.reopen()
        {
            tracing::debug!(%error, "the result of some writes is still unknown");
        }
    }

    fn failed(&mut self, error: &rusqlite::Error) {
        // While it fails, probes try again each second.
        if self.monitor.now() == StoreHealth::Failing {
            tracing::debug!(%error, "writing to the task store failed again");
        } else {
            tracing::error!(%error, "writing to the task store failed; its file is reopened");
        }
        metrics::counter!(metric::STORE_FAILURES, "reason" => "io").increment(1);
        self.disconnect();
        self.is_memory_current = false;
        if is_corrupt(error) {
            self.monitor.set_damaged();
        }
        let now = Instant::now();
        self.failures.push_back(now);
        self.failures.retain(|at| now.duration_since(*at) <= FAILURES_WITHIN);
        if self.failures.len() >= FAILURES_MAX {
            self.monitor.set_failing(true);
            self.settle();
        } else if self.reopen().is_err() {
            self.monitor.set_failing(true);
        }
    }

    /// Removes unresolved rows, and reloads memory: a commit that was reported as failed may have happened, unless it
    /// found no room. There is no connection until the removal succeeds.
    pub(super) fn reopen(&mut self) -> Result<(), OpenError> {
        self.check.hold();
        // Without a connection here, readers alone keep the log.
        let is_other = self.log.is_some() && self.log != identity(&schema::log_path(&self.path));
        self.is_log_lost |= is_other && self.readers.have_it_open();
        let opened = if self.is_log_lost && self.is_same_file() { self.open_alone() } else { self.open_again() };
        // A reader that begins without the log would find damage.
        if !self.is_log_lost {
            self.check.go_on();
        }
        opened
    }

    /// Reopens the file without its lost log. Other connections would not see the new log, as they have the lost one open.
    fn open_alone(&mut self) -> Result<(), OpenError> {
        self.check.start_again();
        self.is_memory_current = false;
        let readers = Arc::clone(&self.readers);
        let opened = readers.without_readers(|| self.open_again()).unwrap_or_else(|| {
            Err(OpenError::Failed { path: self.path.clone(), what: "its removed log is still read".to_owned() })
        });
        self.is_log_lost &= opened.is_err();
        opened
    }

    fn open_again(&mut self) -> Result<(), OpenError> {
        // Readers have the old file open, and the lock is next to it.
        if !self.is_same_file() {
            let what = "another file stands where the store was; put it back, or start again".to_owned();
            return Err(OpenError::Failed { path: self.path.clone(), what });
        }
        let wrong = |error| schema::open_error(&self.path, error);
        self.hooks.before_open().map_err(wrong)?;
        let conn = schema::reopen(&self.path, self.tuning)?;
        if let Err(error) = self.remove_unresolved(&conn) {
            // Another failed commit: it is reported to the waiting caller, and retried later.
            tracing::warn!(%error, "rows whose insert was reported as failed are not removed yet");
            return Ok(());
        }
        if !std::mem::take(&mut self.is_memory_current) {
            let (sums, _) = totals(&conn).map_err(wrong)?;
            self.resident.reset(sums);
        }
        self.conn = Some(conn);
        // The last connection that closes removes the log, so this one may be new.
        self.log = identity(&schema::log_path(&self.path));
        Ok(())
    }

    /// Writes a value even without such rows, because a later durable commit supersedes the rest of an earlier log.
    fn remove_unresolved(&self, conn: &Connection) -> rusqlite::Result<()> {
        let keys = self.unresolved.open();
        if keys.is_empty() {
            return Ok(());
        }
        execute(conn, BEGIN)?;
        rows::probe(conn)?;
        let (mut found, mut statements) = (0_usize, RowStatements::new(conn));
        for key in &keys {
            if let Some(row) = rows::find(&mut statements, key)? {
                rows::delete(conn, &row, &self.resident.stuck)?;
                found += 1;
            }
        }
        self.hooks.before_commit()?;
        execute(conn, COMMIT)?;
        self.hooks.after_commit()?;
        self.unresolved.removed();
        tracing::warn!(refused = keys.len(), found, "rows whose insert was reported as failed were removed");
        Ok(())
    }

    /// Whether the path still names the open file (F57): writes to another file would be lost.
    pub(super) fn is_same_file(&self) -> bool {
        self.identity.is_some() && identity(&self.path) == self.identity
    }

    /// Whether the path still names the log that is open. SQLite neither removes nor replaces it while it is open.
    pub(super) fn has_its_log(&mut self) -> bool {
        let now = identity(&schema::log_path(&self.path));
        self.log = self.log.or(now);
        self.log == now
    }
}

const BEGIN: &str = "BEGIN IMMEDIATE";
const COMMIT: &str = "COMMIT";

fn execute(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute(()).map(drop)
}

fn cannot_open(why: &str) -> rusqlite::Error {
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
    rusqlite::Error::SqliteFailure(code, Some(why.to_owned()))
}

pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|found| system::identity(&found))
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
