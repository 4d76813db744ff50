//! Defines an operator's view of replicas, and the outcome of forgetting one.

use http::StatusCode;
use serde::Serialize;

use crate::boot_clock::since_boot;
use crate::replica::{BootTime, Incarnation};
use crate::store::TaskStore as _;
use crate::store::postgres::{PostgresStore, ReplicaForgetting, ReplicaView, StoredReplica};

/// An incarnation, as this replica sees it.
#[derive(Clone, Debug, Serialize)]
pub struct OperatorReplica {
    pub name: String,
    /// The incarnation's number, which is never reused.
    pub life: u64,
    /// `this one`, `living`, `leaving` or `dead`.
    pub state: &'static str,
    /// The address for other replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    pub version: String,
    /// The time since its heartbeat changed; for this replica, since its last acknowledged heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beat_age_seconds: Option<f64>,
    pub record_format: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct OperatorReplicaList {
    pub(super) replicas: Vec<OperatorReplica>,
}

impl OperatorReplica {
    /// All incarnations in the store, in the order in which they began.
    #[must_use]
    pub fn all(store: &PostgresStore) -> Vec<Self> {
        Self::all_in(&store.replicas(), store.holder(), BootTime(since_boot()))
    }

    pub(super) fn all_in(view: &ReplicaView, own: Incarnation, now: BootTime) -> Vec<Self> {
        view.rows.iter().map(|one| Self::of(one, view, own, now)).collect()
    }

    fn of(one: &StoredReplica, view: &ReplicaView, own: Incarnation, now: BootTime) -> Self {
        let row = &one.row;
        let is_own = row.incarnation == own;
        let state = match (is_own, row.is_dead, row.is_leaving) {
            (_, true, _) => "dead",
            (true, false, _) => "this one",
            (false, false, true) => "leaving",
            (false, false, false) => "living",
        };
        let since = if is_own { Some(view.heartbeat_sent) } else { view.heartbeats.get(&row.incarnation).copied() };
        let tenths = |seconds: f64| (seconds * 10.0).round() / 10.0;
        Self {
            name: row.name.clone(),
            life: row.incarnation.0,
            state,
            address: row.address.clone(),
            version: one.version.clone(),
            beat_age_seconds: since.map(|since| tenths(now.since(since).as_secs_f64())),
            record_format: row.record_reads,
        }
    }
}

impl std::fmt::Display for OperatorReplica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, life, state, address, version, beat_age_seconds, record_format } = self;
        write!(f, "replica {name} (life {life}): {state}, version {version}, records {record_format}")?;
        if let Some(address) = address {
            write!(f, ", at {address}")?;
        }
        beat_age_seconds.map_or(Ok(()), |age| write!(f, ", beat {age} s ago"))
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ForgottenReplica {
    forgotten: String,
    lives: usize,
}

impl ForgottenReplica {
    /// # Errors
    /// The status and the reason if the replica was not forgotten.
    pub(super) fn of(name: &str, outcome: ReplicaForgetting) -> Result<Self, (StatusCode, String)> {
        let because = |why: String| Err((StatusCode::CONFLICT, why));
        match outcome {
            ReplicaForgetting::Forgotten(lives) => Ok(Self { forgotten: name.to_owned(), lives }),
            ReplicaForgetting::Unknown => Err((StatusCode::NOT_FOUND, "no replica has this name".to_owned())),
            ReplicaForgetting::Alive => {
                because("the replica is alive; only a dead replica can be forgotten".to_owned())
            }
            ReplicaForgetting::Holding(count) => {
                let tasks = if count == 1 { "task" } else { "tasks" };
                because(format!("the replica still has {count} {tasks}; wait until other replicas have taken over"))
            }
            ReplicaForgetting::Unfinished => because("the replica's last write is unresolved; try again".to_owned()),
        }
    }
}
