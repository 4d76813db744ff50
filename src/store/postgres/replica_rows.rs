//! Reads the rows of `tg_replica`, declares replicas dead in them, and publishes the view of all replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;
use tokio_postgres::{Error, Row};

use super::PostgresStore;
use super::columns::{at, holder, holder_column, time};
use super::session::Session;
use super::transaction::{CommitFailure, transact};
use crate::replica::{BootTime, Incarnation, LeaseTerms, OwnStanding, ReplicaLook, ReplicaRow, StoreGeneration};
use crate::store::clock_trust::ClockTrust;
use crate::store::tasks::StoreError;
use crate::task::Timestamp;

/// Reads all rows. A failover may roll the result back, which is harmless here.
pub(super) const LOOK: &str =
    "SELECT incarnation, name, address, version, record_reads, beat, now_ms, leaving, dead, config_digest, key_print
    FROM tg_replica ORDER BY incarnation";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReplica {
    pub row: ReplicaRow,
    /// Whether its time is distrusted, since its clock may have jumped ahead.
    pub(super) is_time_distrusted: bool,
    pub version: String,
    pub config_digest: Vec<u8>,
    pub key_print: Vec<u8>,
}

/// Encodes a time. A distrusted time is negative: it counts while its replica lives, and is ignored by later processes.
pub(super) fn row_time(now: Timestamp, trust: ClockTrust) -> i64 {
    if trust.is_distrusted() { -at(now) } else { at(now) }
}

impl StoredReplica {
    fn of(columns: &Row) -> Result<Self, Error> {
        let (address, now): (String, i64) = (columns.try_get(2)?, columns.try_get(6)?);
        let row = ReplicaRow {
            incarnation: holder(columns.try_get(0)?),
            name: columns.try_get(1)?,
            address: (!address.is_empty()).then_some(address),
            record_reads: u32::try_from(columns.try_get::<_, i32>(4)?).unwrap_or(0),
            heartbeat: u64::try_from(columns.try_get::<_, i64>(5)?).unwrap_or(0),
            now: time(now.saturating_abs()),
            is_leaving: columns.try_get(7)?,
            is_dead: columns.try_get(8)?,
        };
        Ok(Self {
            row,
            is_time_distrusted: now < 0,
            version: columns.try_get(3)?,
            config_digest: columns.try_get(9)?,
            key_print: columns.try_get(10)?,
        })
    }

    pub(super) fn all(rows: &[Row]) -> Result<Vec<Self>, Error> {
        rows.iter().map(Self::of).collect()
    }
}

#[derive(Clone, Debug)]
pub struct ReplicaView {
    /// Includes this replica's row.
    pub rows: Vec<StoredReplica>,
    /// When each other replica's current heartbeat was first seen.
    pub heartbeats: BTreeMap<Incarnation, BootTime>,
    pub(super) heartbeat: u64,
    /// When that heartbeat was sent, or this replica's row was inserted.
    pub heartbeat_sent: BootTime,
    pub standing: OwnStanding,
    /// Dead incarnations with rows that any replica may claim.
    pub(super) abandoned: Vec<Incarnation>,
}

impl ReplicaView {
    pub(super) fn of(rows: Vec<StoredReplica>, heartbeat_sent: BootTime) -> Self {
        let (heartbeats, abandoned) = (BTreeMap::new(), Vec::new());
        Self { rows, heartbeats, heartbeat: 0, heartbeat_sent, standing: OwnStanding::Member, abandoned }
    }

    /// Whether this replica may insert rows: not after seven eighths of the lease without an acknowledged heartbeat, as
    /// others then declare it dead and claim its rows while its writer works. It keeps its rows until it is fenced.
    pub(super) fn may_insert(&self, terms: LeaseTerms, now: BootTime) -> Result<(), StoreError> {
        if now.since(self.heartbeat_sent) < terms.insert_max() {
            return Ok(());
        }
        Err(StoreError::Io(io::Error::other("no heartbeat of this replica was acknowledged for too long")))
    }

    /// The number of other replicas that accept new requests, and therefore share the limits with this one.
    pub fn accepting_others(&self, own: Incarnation) -> usize {
        let accepts = |one: &&StoredReplica| {
            let ReplicaRow { incarnation, is_dead, is_leaving, .. } = one.row;
            incarnation != own && !is_dead && !is_leaving
        };
        self.rows.iter().filter(accepts).count()
    }

    pub(super) fn has_dead(&self) -> bool {
        self.rows.iter().any(|one| one.row.is_dead)
    }

    /// Applies a look. An incarnation declared dead stays dead, since the look may have been sent before.
    pub(super) fn apply_look(&mut self, rows: Vec<StoredReplica>) {
        let dead = self.rows.iter().filter(|one| one.row.is_dead).map(|one| one.row.incarnation);
        let dead: BTreeSet<Incarnation> = dead.collect();
        self.rows = rows;
        for one in &mut self.rows {
            one.row.is_dead |= dead.contains(&one.row.incarnation);
        }
    }

    pub(super) fn declared_dead(&mut self, incarnation: Incarnation) {
        for one in self.rows.iter_mut().filter(|one| one.row.incarnation == incarnation) {
            one.row.is_dead = true;
        }
    }
}

pub(super) fn look_of(rows: &[StoredReplica], sent: BootTime, received: BootTime) -> ReplicaLook {
    ReplicaLook { sent, received, rows: rows.iter().map(|one| one.row.clone()).collect() }
}

pub(super) async fn read_replicas(session: &Session) -> Result<Vec<StoredReplica>, Error> {
    StoredReplica::all(&session.client.query(LOOK, &[]).await?)
}

pub(super) fn generation_of(text: &str) -> Option<StoreGeneration> {
    uuid::Uuid::parse_str(text).ok().map(|read| StoreGeneration(read.as_u128()))
}

/// The form of a generation that operators see and enter.
pub(super) fn generation_text(generation: StoreGeneration) -> String {
    uuid::Uuid::from_u128(generation.0).to_string()
}

/// Declares an incarnation dead: only if its heartbeat is still `heartbeat`, or unconditionally without one. The row
/// overrides that replica's own view. Returns whether this call declared it: not if it was dead or sends heartbeats.
pub(super) async fn declare_dead(
    session: &Session,
    incarnation: Incarnation,
    heartbeat: Option<u64>,
) -> Result<bool, CommitFailure> {
    let sql = "UPDATE tg_replica SET dead = true, died = now() WHERE incarnation = $1 AND (beat = $2 OR $2 IS NULL) AND NOT dead RETURNING 1";
    let statement = session.client.prepare(sql).await.map_err(CommitFailure::NotMade)?;
    let (incarnation_column, heartbeat) =
        (holder_column(incarnation), heartbeat.map(|heartbeat| i64::try_from(heartbeat).unwrap_or(i64::MAX)));
    let made = transact(session, &[(&statement, vec![&incarnation_column, &heartbeat])]).await;
    if made.as_ref().is_err_and(CommitFailure::wrote_nothing) {
        return Ok(false);
    }
    made?;
    Ok(true)
}

pub(super) fn log_declared_dead(row: &ReplicaRow) {
    tracing::warn!(
        replica = row.name, incarnation = %row.incarnation,
        "a replica is silent, and was declared dead; its tasks are taken over"
    );
}

/// The latest view. Readers hold no lock: tokio's watch queues readers behind a writer, so nested reads could deadlock.
#[derive(Clone, Debug)]
pub(super) struct SharedReplicaView(watch::Sender<Arc<ReplicaView>>);

impl SharedReplicaView {
    pub(super) fn new(view: ReplicaView) -> Self {
        Self(watch::Sender::new(Arc::new(view)))
    }

    pub(super) fn now(&self) -> Arc<ReplicaView> {
        Arc::clone(&self.0.borrow())
    }

    pub(super) fn watch(&self) -> ReplicaWatch {
        ReplicaWatch(self.0.subscribe())
    }

    /// Changes the view, and notifies its followers. `change` must not read the view itself.
    pub(super) fn change(&self, change: impl FnOnce(&mut ReplicaView)) {
        self.0.send_modify(|view| change(Arc::make_mut(view)));
    }

    pub(super) fn set_standing(&self, standing: OwnStanding) {
        self.0.send_if_modified(|view| {
            let is_new = view.standing != standing;
            if is_new {
                Arc::make_mut(view).standing = standing;
            }
            is_new
        });
    }
}

impl PostgresStore {
    pub fn replicas(&self) -> Arc<ReplicaView> {
        self.view.now()
    }

    pub fn watch_replicas(&self) -> ReplicaWatch {
        self.view.watch()
    }
}

#[derive(Debug)]
pub struct ReplicaWatch(watch::Receiver<Arc<ReplicaView>>);

impl ReplicaWatch {
    /// Returns the latest view, and marks it as seen.
    pub fn newest(&mut self) -> Arc<ReplicaView> {
        Arc::clone(&self.0.borrow_and_update())
    }

    /// Waits for a view that [`ReplicaWatch::newest`] has not returned. Cancel-safe. Fails if the store is gone.
    pub async fn changed(&mut self) -> Result<(), RecvError> {
        self.0.changed().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(incarnation: u64, is_dead: bool) -> StoredReplica {
        let row = ReplicaRow {
            incarnation: Incarnation(incarnation),
            name: String::new(),
            address: None,
            record_reads: 1,
            heartbeat: 1,
            now: Timestamp::from_millis(0),
            is_leaving: false,
            is_dead,
        };
        StoredReplica {
            row,
            is_time_distrusted: false,
            version: String::new(),
            config_digest: Vec::new(),
            key_print: Vec::new(),
        }
    }

    #[test]
    fn an_incarnation_adds_no_rows_once_its_heartbeats_are_unanswered() {
        let after = |millis| BootTime(Duration::from_millis(millis));
        let view = ReplicaView::of(Vec::new(), after(2_000));
        assert!(view.may_insert(LeaseTerms::default(), after(8_999)).is_ok());
        assert!(view.may_insert(LeaseTerms::default(), after(9_000)).is_err());
    }

    #[test]
    fn a_look_that_was_sent_before_a_death_does_not_take_it_back() {
        let mut view = ReplicaView::of(vec![row(1, false), row(2, false), row(3, false)], BootTime::default());
        view.declared_dead(Incarnation(1));
        view.apply_look(vec![row(1, false), row(2, false), row(3, true)]);
        let dead = |view: &ReplicaView| view.rows.iter().map(|one| one.row.is_dead).collect::<Vec<_>>();
        assert_eq!(dead(&view), [true, false, true]);
        view.apply_look(vec![row(2, false), row(3, true)]);
        assert_eq!(dead(&view), [false, true], "a row that is gone is gone");
    }
}
