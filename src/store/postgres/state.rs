//! Holds what the parts of the store share: sums, rows in doubt, how the store is, and who listens to changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use super::health::PostgresHealth;
use super::settings::PostgresSettings;
use super::settled_rows::SettledRows;
use super::sums::StoreSums;
use super::task_write::TaskWrite;
use crate::replica::Incarnation;
use crate::store::tasks::StoreHint;
use crate::task::TaskKey;

/// Hints that a listener may be behind; beyond that it is told that it missed some.
const HINTS_MAX: usize = 4_096;

#[derive(Debug)]
pub(super) struct StoreState {
    pub(super) settings: Arc<PostgresSettings>,
    pub(super) holder: Incarnation,
    pub(super) sums: StoreSums,
    pub(super) settled: SettledRows,
    pub(super) doubt: StoreDoubts,
    pub(super) hints: broadcast::Sender<StoreHint>,
    /// Told apart by who finds it out: the writer, the one who beats, and those who read.
    writer: watch::Sender<PostgresHealth>,
    control: watch::Sender<PostgresHealth>,
    readers: watch::Sender<PostgresHealth>,
    /// Of each reader in trouble, by its duty.
    reader_troubles: Mutex<BTreeMap<String, PostgresHealth>>,
}

impl StoreState {
    pub(super) fn new(settings: Arc<PostgresSettings>, holder: Incarnation) -> Self {
        Self {
            settings,
            holder,
            sums: StoreSums::default(),
            settled: SettledRows::new(),
            doubt: StoreDoubts::default(),
            hints: broadcast::Sender::new(HINTS_MAX),
            writer: watch::Sender::new(PostgresHealth::Good),
            control: watch::Sender::new(PostgresHealth::Good),
            readers: watch::Sender::new(PostgresHealth::Good),
            reader_troubles: Mutex::default(),
        }
    }

    pub(super) fn writer_is(&self, health: PostgresHealth) {
        note(&self.writer, health);
    }

    pub(super) fn control_is(&self, health: PostgresHealth) {
        note(&self.control, health);
    }

    /// How the connection of one reader is; the first in trouble speaks for all.
    pub(super) fn reader_is(&self, duty: &str, health: PostgresHealth) {
        let mut troubles = self.reader_troubles.lock();
        if health == PostgresHealth::Good {
            troubles.remove(duty);
        } else {
            troubles.insert(duty.to_owned(), health);
        }
        note(&self.readers, troubles.values().next().cloned().unwrap_or(PostgresHealth::Good));
    }

    pub(super) fn is_reader_in_trouble(&self, duty: &str) -> bool {
        self.reader_troubles.lock().contains_key(duty)
    }

    /// How the store is: whatever is not good counts, the life itself first.
    pub(super) fn health(&self) -> PostgresHealth {
        let parts = [&self.control, &self.writer, &self.readers].map(|part| part.borrow().clone());
        parts.into_iter().find(|health| *health != PostgresHealth::Good).unwrap_or(PostgresHealth::Good)
    }

    pub(super) fn watch(&self) -> [watch::Receiver<PostgresHealth>; 3] {
        [&self.control, &self.writer, &self.readers].map(watch::Sender::subscribe)
    }

    /// What is free.
    pub(super) fn room(&self) -> usize {
        self.settings.stored_bytes_max.saturating_sub(self.sums.usage().bytes)
    }

    /// Another life wrote something.
    pub(super) fn heard(&self, hint: StoreHint) {
        match &hint {
            StoreHint::Changed(key) => self.settled.forget(key),
            StoreHint::Missed => self.settled.forget_all(),
        }
        let _ = self.hints.send(hint);
    }
}

fn note(health: &watch::Sender<PostgresHealth>, new: PostgresHealth) {
    health.send_if_modified(|old| {
        let is_new = *old != new;
        if is_new {
            if new == PostgresHealth::Good {
                tracing::info!("the database is used again");
            } else {
                tracing::warn!(trouble = ?new, "the database is in trouble");
            }
            *old = new;
        }
        is_new
    });
}

/// What writes in doubt left behind, other than rows whose writers ask for them by their keys.
#[derive(Debug, Default)]
pub(super) struct StoreDoubts(Mutex<OpenDoubts>);

#[derive(Debug, Default)]
struct OpenDoubts {
    /// Rows of which nobody knows whether they were inserted. Their callers were refused, so they are shown to nobody here, and
    /// removed by the first transaction of the next connection, unless another life has shown them meanwhile. At most those of
    /// one batch at a time.
    inserts: BTreeSet<TaskKey>,
    /// Whether rows may have been claimed of which nobody here knows.
    is_claim: bool,
    /// Rows that this life holds, of which some may be such; handed out by the next claims.
    held: BTreeSet<TaskKey>,
}

impl StoreDoubts {
    /// Takes note of writes of which nobody knows whether they were made.
    pub(super) fn add(&self, writes: &[TaskWrite]) {
        let mut open = self.0.lock();
        open.inserts.extend(writes.iter().filter_map(TaskWrite::new_row).map(|row| row.key.clone()));
        open.is_claim |= writes.iter().any(|write| matches!(write, TaskWrite::Claim { .. }));
    }

    pub(super) fn inserts(&self) -> Vec<TaskKey> {
        self.0.lock().inserts.iter().cloned().collect()
    }

    /// Those inserts are in doubt no longer.
    pub(super) fn decided(&self, inserts: &[TaskKey]) {
        let mut open = self.0.lock();
        for key in inserts {
            open.inserts.remove(key);
        }
    }

    pub(super) fn is_claim(&self) -> bool {
        self.0.lock().is_claim
    }

    /// All that this life holds, claims in doubt included: none is in doubt any more.
    pub(super) fn holds(&self, rows: impl IntoIterator<Item = TaskKey>) {
        let mut open = self.0.lock();
        open.is_claim = false;
        open.held.extend(rows);
    }

    /// Rows that may have been claimed without anybody's knowing.
    pub(super) fn take_held(&self, limit: usize) -> Vec<TaskKey> {
        let mut open = self.0.lock();
        std::iter::from_fn(|| open.held.pop_first()).take(limit).collect()
    }

    pub(super) fn hides(&self, key: &TaskKey) -> bool {
        self.0.lock().inserts.contains(key)
    }
}
