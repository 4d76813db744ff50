//! Tracks which replicas are silent, and this replica's own standing. An observer measures on its own clock how long a
//! heartbeat stays unchanged, and only while it reaches the store itself. Safety does not depend on this: a replica
//! wrongly declared dead is fenced (`fencing`) and registers again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::replica::{BootTime, Incarnation};
use crate::task::Timestamp;

pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Maximum interval with any lease: the lease of other replicas may be longer than the observer's.
pub const HEARTBEAT_INTERVAL_MAX: Duration = Duration::from_secs(2);
/// After an outage of the store, the window is as long as the outage, up to this.
pub const WINDOW_AFTER_OUTAGE_MAX: Duration = Duration::from_secs(30);
/// A paused replica learns from its dead row that it was replaced. Without the row it would report lost writes of the store.
pub const DEAD_ROWS_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    lease: Duration,
    alone_max: Duration,
}

impl Default for LeaseTerms {
    /// The lease covers a typical failover of the store; `alone_max` covers the time that clients wait for a call.
    fn default() -> Self {
        Self { lease: Duration::from_secs(8), alone_max: Duration::from_secs(300) }
    }
}

impl LeaseTerms {
    pub const LEASE_MIN: Duration = Duration::from_secs(4);
    pub const LEASE_MAX: Duration = Duration::from_secs(60);

    /// `None` if the lease is out of range. `alone_max` is how long calls continue without the store.
    pub fn new(lease: Duration, alone_max: Duration) -> Option<Self> {
        (Self::LEASE_MIN..=Self::LEASE_MAX).contains(&lease).then_some(Self { lease, alone_max })
    }

    pub const fn lease(self) -> Duration {
        self.lease
    }

    pub fn heartbeat_interval(self) -> Duration {
        (self.lease / 4).min(HEARTBEAT_INTERVAL_MAX)
    }

    /// A longer gap between an observer's own acknowledged heartbeats is an outage of the store.
    pub fn gap_max(self) -> Duration {
        self.lease / 2
    }

    /// Maximum age of the last acknowledged heartbeat for inserting rows. After that, others would soon claim them.
    pub fn insert_max(self) -> Duration {
        self.lease * 7 / 8
    }
}

/// A random number drawn when a store is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreGeneration(pub u128);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaRow {
    pub incarnation: Incarnation,
    /// The operator's name for the replica, shared by its later processes.
    pub name: String,
    /// `None` if it does not listen for other replicas.
    pub address: Option<String>,
    pub heartbeat: u64,
    /// Its task clock at its last heartbeat.
    pub now: Timestamp,
    pub is_leaving: bool,
    pub is_dead: bool,
    pub record_reads: u32,
}

#[derive(Clone, Debug)]
pub struct ReplicaLook {
    /// When the read was sent: it shows no older state.
    pub sent: BootTime,
    /// When its result was received: it shows no newer state.
    pub received: BootTime,
    pub rows: Vec<ReplicaRow>,
}

/// A heartbeat with an unknown commit has no answer: the row may contain it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatAnswer {
    /// Durable; both values are as its own transaction saw them.
    Acknowledged {
        heartbeat: u64,
        generation: StoreGeneration,
    },
    Dead {
        heartbeat: u64,
    },
    /// The row is missing on a server that acknowledged a later write; on a replaced server that proves nothing.
    Missing,
}

/// How a store shows that it has lost acknowledged writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreLoss {
    /// A heartbeat was acknowledged under a known number, or this replica's row is dead with an earlier heartbeat.
    #[error("heartbeat {acknowledged} of this replica was acknowledged, and the database has {found}")]
    HeartbeatWentBack { acknowledged: u64, found: u64 },
    #[error("the row of this replica is missing")]
    RowMissing,
    #[error("it is another database, or was restored from a backup")]
    OtherGeneration(StoreGeneration),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnStanding {
    /// May insert rows while its heartbeats are acknowledged ([`LeaseTerms::insert_max`]).
    Member,
    /// Declared dead, or without the store for too long. Its runners stop; it may register again.
    Fenced,
    /// Held calls end with this error. Permanent.
    StoreLost(StoreLoss),
}

/// A replica to declare dead, unless its row has a newer heartbeat or is already dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeathClaim {
    pub incarnation: Incarnation,
    pub heartbeat: u64,
}

/// Fed since registration with answers to heartbeats and with looks, which may arrive late.
#[derive(Debug)]
pub struct Membership {
    terms: LeaseTerms,
    own: Incarnation,
    generation: StoreGeneration,
    acknowledged: AcknowledgedHeartbeat,
    /// Counts outages of the store. A window that began before the last one is void.
    outages: u64,
    outage_ended: BootTime,
    /// Length of windows that start with the first look after an outage.
    window_after_outage: Duration,
    last_look_sent: BootTime,
    others: BTreeMap<Incarnation, WatchedReplica>,
    end: Option<OwnStanding>,
}

#[derive(Debug)]
struct AcknowledgedHeartbeat {
    heartbeat: u64,
    sent: BootTime,
    received: BootTime,
}

#[derive(Debug)]
struct WatchedReplica {
    row: ReplicaRow,
    /// When the window began. The replica is silent if its heartbeat stays unchanged for the whole window.
    since: BootTime,
    window: Duration,
    /// The number of outages before the window.
    outage: u64,
}

impl Membership {
    /// A replica with a row that was acknowledged at heartbeat 0, by a write sent and answered at these instants.
    pub const fn registered(
        terms: LeaseTerms,
        own: Incarnation,
        generation: StoreGeneration,
        sent: BootTime,
        received: BootTime,
    ) -> Self {
        Self {
            terms,
            own,
            generation,
            acknowledged: AcknowledgedHeartbeat { heartbeat: 0, sent, received },
            outages: 0,
            outage_ended: received,
            window_after_outage: terms.lease,
            last_look_sent: sent,
            others: BTreeMap::new(),
            end: None,
        }
    }

    pub const fn acknowledged_heartbeat(&self) -> u64 {
        self.acknowledged.heartbeat
    }

    /// Records the answer to a heartbeat that was sent and answered at these instants.
    pub fn heartbeat_answered(&mut self, answer: HeartbeatAnswer, sent: BootTime, received: BootTime) {
        // A replica without the store for too long is fenced, even if `standing` was not called meanwhile.
        let standing = self.standing(received);
        if matches!(standing, OwnStanding::Fenced | OwnStanding::StoreLost(_)) {
            self.end = Some(standing);
            return;
        }
        match answer {
            HeartbeatAnswer::Acknowledged { generation, .. } if generation != self.generation => {
                self.end = Some(OwnStanding::StoreLost(StoreLoss::OtherGeneration(generation)));
            }
            HeartbeatAnswer::Acknowledged { heartbeat, .. } if heartbeat <= self.acknowledged.heartbeat => {
                let loss = StoreLoss::HeartbeatWentBack { acknowledged: self.acknowledged.heartbeat, found: heartbeat };
                self.end = Some(OwnStanding::StoreLost(loss));
            }
            HeartbeatAnswer::Acknowledged { heartbeat, .. } => self.acknowledged(heartbeat, sent, received),
            // The store that declared it dead has diverged from the one that acknowledged its heartbeats.
            HeartbeatAnswer::Dead { heartbeat } if heartbeat < self.acknowledged.heartbeat => {
                let loss = StoreLoss::HeartbeatWentBack { acknowledged: self.acknowledged.heartbeat, found: heartbeat };
                self.end = Some(OwnStanding::StoreLost(loss));
            }
            HeartbeatAnswer::Dead { .. } => self.end = Some(OwnStanding::Fenced),
            HeartbeatAnswer::Missing => self.end = Some(OwnStanding::StoreLost(StoreLoss::RowMissing)),
        }
    }

    fn acknowledged(&mut self, heartbeat: u64, sent: BootTime, received: BootTime) {
        let gap = received.since(self.acknowledged.received);
        if gap > self.terms.gap_max() {
            // Windows of the previous outage may not have started.
            let unbegun =
                if self.last_look_sent < self.outage_ended { self.window_after_outage } else { Duration::ZERO };
            self.outages += 1;
            self.outage_ended = received;
            self.window_after_outage = self.terms.lease.max(gap.min(WINDOW_AFTER_OUTAGE_MAX)).max(unbegun);
        }
        self.acknowledged = AcknowledgedHeartbeat { heartbeat, sent, received };
    }

    /// Returns the replicas to declare dead: unchanged for the lease, while this replica's own heartbeats were
    /// acknowledged without an outage. With punctual heartbeats and looks that takes at most the lease and two looks.
    pub fn apply_look(&mut self, look: ReplicaLook) -> Vec<DeathClaim> {
        // A look that was sent before the last one is outdated. One from before an outage's end would start windows too early.
        if look.sent < self.last_look_sent || look.sent < self.outage_ended {
            return Vec::new();
        }
        self.last_look_sent = look.sent;
        let mut others = BTreeMap::new();
        for row in look.rows {
            if row.incarnation == self.own {
                // A look may be rolled back; if its row is too old, the next heartbeat finds out.
                if row.is_dead && row.heartbeat >= self.acknowledged.heartbeat && self.end.is_none() {
                    self.end = Some(OwnStanding::Fenced);
                }
                continue;
            }
            let known = self.others.remove(&row.incarnation);
            others.insert(row.incarnation, self.watched(known, row, look.received));
        }
        self.others = others;
        self.silent(look.sent)
    }

    /// A lower heartbeat, rolled back by a failover, also counts as new.
    fn watched(&self, known: Option<WatchedReplica>, row: ReplicaRow, received: BootTime) -> WatchedReplica {
        let (since, window) = match known {
            // A replica silent since a longer outage keeps its longer window.
            Some(known) if known.outage != self.outages && known.row.heartbeat == row.heartbeat => {
                (received, self.window_after_outage.max(known.window))
            }
            Some(known) if known.outage != self.outages => (received, self.window_after_outage),
            Some(known) if known.row.heartbeat == row.heartbeat => (known.since, known.window),
            Some(_) => (received, self.terms.lease),
            None => (received, self.window_after_outage),
        };
        WatchedReplica { row, since, window, outage: self.outages }
    }

    fn silent(&self, now: BootTime) -> Vec<DeathClaim> {
        let reaches_store = now.since(self.acknowledged.received) <= self.terms.gap_max();
        if self.end.is_some() || !reaches_store {
            return Vec::new();
        }
        let is_silent = |other: &&WatchedReplica| !other.row.is_dead && now.since(other.since) >= other.window;
        self.others.values().filter(is_silent).map(WatchedReplica::death_claim).collect()
    }

    /// Counts from when the last acknowledged heartbeat was sent, since others may count from then.
    fn alone_for(&self, now: BootTime) -> Duration {
        now.since(self.acknowledged.sent)
    }

    pub fn standing(&self, now: BootTime) -> OwnStanding {
        match self.end {
            Some(end) => end,
            None if self.alone_for(now) >= self.terms.alone_max.max(self.terms.lease) => OwnStanding::Fenced,
            None => OwnStanding::Member,
        }
    }

    pub fn heartbeat_seen_at(&self, incarnation: Incarnation) -> Option<BootTime> {
        self.others.get(&incarnation).map(|other| other.since)
    }

    /// The other replicas' rows that are not dead, as of the last look.
    fn living_others(&self) -> impl Iterator<Item = &ReplicaRow> {
        self.others.values().map(|other| &other.row).filter(|row| !row.is_dead)
    }

    /// Dead incarnations, silent for as long as calls continue without the store: any replica may claim their rows.
    pub fn abandoned(&self, now: BootTime) -> impl Iterator<Item = Incarnation> {
        let is_abandoned =
            move |other: &&WatchedReplica| other.row.is_dead && now.since(other.since) >= self.terms.alone_max;
        self.others.values().filter(is_abandoned).map(|other| other.row.incarnation)
    }

    /// The highest time of another living replica, for [`TaskClock::steer`](crate::replica::TaskClock::steer).
    pub fn highest_now(&self) -> Option<Timestamp> {
        self.living_others().map(|row| row.now).max()
    }
}

impl WatchedReplica {
    const fn death_claim(&self) -> DeathClaim {
        DeathClaim { incarnation: self.row.incarnation, heartbeat: self.row.heartbeat }
    }
}

#[cfg(test)]
mod tests;
