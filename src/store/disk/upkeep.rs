//! Maintains the file between writes: checks the disk, probes a failed store, frees space.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use tokio::time::Instant;

use super::check::LOG_BYTES_MAX;
use super::health::StoreHealth;
use super::writer::{DiskWriter, is_full};
use super::{rows, schema};
use crate::failpoint;
use crate::metric;

/// Free pages that are returned to the system at a time.
const VACUUM_PAGES: i64 = 2_048;
const VACUUM_TIME_MAX: Duration = Duration::from_millis(100);
/// Interval between recordings of the time of last use, in case the process is killed.
const SEEN_NOTED: Duration = Duration::from_secs(60 * 60);

impl DiskWriter {
    pub(super) fn tick(&mut self) {
        if self.conn.is_some() && self.identity.is_some() && !self.is_same_file() {
            tracing::error!("the task store's file was moved or replaced");
            self.disconnect();
            self.monitor.set_failing(true);
        }
        if self.conn.is_some() && !self.has_its_log() {
            self.save_lost_log();
        }
        let has_lost_log = self.is_log_lost && self.conn.is_some();
        if self.monitor.now() == StoreHealth::Failing && self.identity.is_some() && !has_lost_log {
            self.probe();
        }
        self.settle();
        let is_low = self.look_for_room();
        let log = schema::log_bytes(&self.path);
        if log > self.tuning.check_log_bytes_max.unwrap_or(LOG_BYTES_MAX) || (is_low && log > 0) {
            // The check reads an old state of the file, which keeps the log from restarting.
            self.check.pause();
        }
        failpoint::hit("checkpointing");
        if let Some(conn) = &self.conn
            && let Err(error) = return_space(conn, &self.path, is_low, &mut self.owes_checkpoint)
        {
            tracing::warn!(%error, "free space of the task store's file was not returned");
            // A checkpoint is a commit, and a failed one makes the connection unusable.
            self.disconnect();
        }
        self.note_seen();
        metrics::gauge!(metric::STORE_FILE_BYTES).set(schema::file_bytes(&self.path) as f64);
    }

    /// Writes a removed log, which is still open, into the file (F57). Tries again next tick if readers hinder it.
    fn save_lost_log(&mut self) {
        let Some(conn) = &self.conn else { return };
        self.check.pause();
        let saved = schema::checkpoint_now(conn);
        if !std::mem::replace(&mut self.is_log_lost, true) {
            tracing::error!(
                "the task store's log, tasks.db-wal, was removed or replaced; its content is saved, and the file is reopened"
            );
            self.monitor.set_failing(true);
        }
        match saved {
            Ok(true) => self.disconnect(),
            Ok(false) => (),
            Err(error) => tracing::error!(%error, "the content of the task store's removed log could not be saved yet"),
        }
    }

    fn probe(&mut self) {
        if self.conn.is_none()
            && let Err(error) = self.reopen()
        {
            tracing::debug!(%error, "the task store cannot be opened yet");
            return;
        }
        let Some(conn) = &self.conn else { return };
        let probed = conn
            .execute_batch("BEGIN IMMEDIATE")
            .and_then(|()| rows::probe(conn))
            .and_then(|()| self.hooks.before_commit())
            .and_then(|()| conn.execute_batch("COMMIT"));
        match probed {
            Ok(()) => {
                self.failures.clear();
                self.monitor.set_failing(false);
            }
            Err(error) => {
                tracing::debug!(%error, "the task store cannot write yet");
                self.disconnect();
            }
        }
    }

    /// Checks the disk, and restores the ballast if there is space. Returns whether space is low.
    pub(super) fn look_for_room(&self) -> bool {
        let space = match self.hooks.space(&self.folder) {
            Ok(space) => space,
            Err(error) => {
                tracing::warn!(%error, "the free space of the disk is not known");
                return false;
            }
        };
        metrics::gauge!(metric::STORE_FREE_BYTES).set(space.free as f64);
        if let Some(ballast) = self.ballast.as_ref().filter(|ballast| !ballast.is_there())
            && space.has_room_for_ballast()
            && let Err(error) = ballast.lay_down()
        {
            tracing::warn!(%error, "the ballast file cannot be created");
        }
        self.monitor.set_space(space);
        space.is_low()
    }

    fn note_seen(&mut self) {
        let is_due = self.seen_noted.is_none_or(|at| at.elapsed() >= SEEN_NOTED);
        if !is_due || self.clock.is_distrusted() {
            return;
        }
        let Some(conn) = &self.conn else { return };
        self.seen_noted = Some(Instant::now());
        if let Err(error) = rows::note_seen(conn, self.seen()) {
            tracing::warn!(%error, "the time of last use was not recorded in the task store");
            self.disconnect();
        }
    }
}

/// Returns free pages to the system, and checkpoints the log: only a checkpoint shrinks the file, and on an almost full
/// disk the log itself takes space. A checkpoint that readers prevent is repeated the next time.
fn return_space(conn: &Connection, path: &Path, is_low: bool, owed: &mut bool) -> rusqlite::Result<()> {
    let began = Instant::now();
    while began.elapsed() < VACUUM_TIME_MAX && unless_full(vacuum(conn))? {
        *owed = true;
        if !unless_full(schema::checkpoint_now(conn))? {
            return Ok(());
        }
        *owed = false;
    }
    if (*owed || is_low) && schema::log_bytes(path) > 0 {
        *owed = !unless_full(schema::checkpoint_now(conn))?;
    }
    Ok(())
}

/// A full disk does not make earlier writes suspect.
fn unless_full(done: rusqlite::Result<bool>) -> rusqlite::Result<bool> {
    match done {
        Err(error) if is_full(&error) => Ok(false),
        done => done,
    }
}

/// Frees some pages if there are many; returns whether there were.
fn vacuum(conn: &Connection) -> rusqlite::Result<bool> {
    let free: i64 = conn.query_row("PRAGMA freelist_count", (), |row| row.get(0))?;
    let all: i64 = conn.query_row("PRAGMA page_count", (), |row| row.get(0))?;
    let are_many = free > VACUUM_PAGES && free > all / 4;
    if are_many {
        let mut statement = conn.prepare(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"))?;
        let mut freed = statement.query(())?;
        while freed.next()?.is_some() {}
    }
    Ok(are_many)
}
