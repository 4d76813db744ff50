//! Keeps what one replica knows of the others and of itself: who is silent, and what it may do itself.
//!
//! A replica counts its beats up in a line of its own; everybody reads the lines of all. An observer measures how long a beat stays
//! the same by its own clock alone, and only while it reaches the store itself. Nothing here is needed for safety: whoever is
//! declared dead wrongly is fenced (`fencing`), and begins anew.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::replica::{BootTime, Incarnation};
use crate::task::Timestamp;

/// How often each replica reads the lines of all.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest between two beats, whatever the lease: an observer goes by its own, and that of others may be longer.
pub const BEAT_EVERY_MAX: Duration = Duration::from_secs(2);
/// A window after an outage of the store is as long as the outage, up to this.
pub const WINDOW_AFTER_OUTAGE_MAX: Duration = Duration::from_secs(30);
/// How long a dead replica's line stays at least. One that was paused finds out by it that it was replaced; one whose line is gone
/// concludes that the store has lost what it promised.
pub const DEAD_LINES_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// How long replicas wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    lease: Duration,
    alone_max: Duration,
}

impl Default for LeaseTerms {
    /// As long as a failover of the store often takes, for the lease; what clients wait for a call, for the calls.
    fn default() -> Self {
        Self { lease: Duration::from_secs(8), alone_max: Duration::from_secs(300) }
    }
}

impl LeaseTerms {
    pub const LEASE_MIN: Duration = Duration::from_secs(4);
    pub const LEASE_MAX: Duration = Duration::from_secs(60);

    /// `None` if the lease is out of bounds. `alone_max` is how long calls go on without the store.
    #[must_use]
    pub fn new(lease: Duration, alone_max: Duration) -> Option<Self> {
        (Self::LEASE_MIN..=Self::LEASE_MAX).contains(&lease).then_some(Self { lease, alone_max })
    }

    /// After how long without a new beat a replica counts as silent.
    #[must_use]
    pub const fn lease(self) -> Duration {
        self.lease
    }

    /// How often a replica beats: a quarter of the lease, or more often where that is longer than [`BEAT_EVERY_MAX`].
    #[must_use]
    pub fn beat_every(self) -> Duration {
        (self.lease / 4).min(BEAT_EVERY_MAX)
    }

    /// A longer gap between an observer's own acknowledged beats is an outage of the store: half of the lease.
    #[must_use]
    pub fn gap_max(self) -> Duration {
        self.lease / 2
    }

    /// How old the last acknowledged beat of a replica that adds rows may be: seven eighths of the lease. Others would soon take them over.
    #[must_use]
    pub fn begin_max(self) -> Duration {
        self.lease * 7 / 8
    }

    /// How old it may be while calls go on.
    #[must_use]
    pub const fn alone_max(self) -> Duration {
        self.alone_max
    }

    /// How long windows last that begin anew after an outage.
    fn window_after(self, outage: Duration) -> Duration {
        self.lease.max(outage.min(WINDOW_AFTER_OUTAGE_MAX))
    }
}

/// Drawn when a store was made: another one has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreGeneration(pub u128);

/// A replica's line in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaLine {
    pub incarnation: Incarnation,
    /// The operator's name for it, which the next life of the same replica has too.
    pub name: String,
    /// Where the others reach it; `None` if it does not listen for them.
    pub address: Option<String>,
    /// Counts its beats.
    pub beat: u64,
    /// Its task clock at its last beat.
    pub now: Timestamp,
    /// It takes nothing new and will soon be gone.
    pub is_leaving: bool,
    pub is_dead: bool,
    /// The newest format of records that it reads.
    pub record_reads: u32,
}

/// All lines as one read showed them.
#[derive(Clone, Debug)]
pub struct ReplicaLook {
    /// When the read was sent: it shows no older state.
    pub sent: BootTime,
    /// When its answer was there: it shows no newer one.
    pub received: BootTime,
    pub lines: Vec<ReplicaLine>,
}

/// What a beat was answered. A beat in doubt has no answer: it may be in the line or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeatAnswer {
    /// It is durable; both are as its own transaction saw them.
    Acknowledged { beat: u64, generation: StoreGeneration },
    /// The line says that this replica is dead, and has this beat.
    Dead { beat: u64 },
    /// There is no line, on a server on which another write was acknowledged since: one that was replaced may lack it and says
    /// nothing of the store.
    Missing,
}

/// How a store shows that it has lost what it promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLoss {
    /// A beat was acknowledged under a number that had been acknowledged before, or the line of this replica, which is dead there,
    /// never got that far.
    BeatWentBack {
        acknowledged: u64,
        found: u64,
    },
    LineMissing,
    /// It is another store.
    OtherGeneration(StoreGeneration),
}

/// What a replica may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnStanding {
    /// Go on with calls and keep their outcomes; add rows as long as its beats are acknowledged ([`LeaseTerms::begin_max`]).
    Member,
    /// Nothing: it was declared dead, or was alone for too long. Its runners end; it may register anew.
    Fenced,
    /// Nothing: held calls end with this. Sticks, whatever comes after.
    StoreLost(StoreLoss),
}

/// Another replica that is to be declared dead, on condition that its line still has this beat and is not dead: one that has beaten
/// meanwhile is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeathClaim {
    pub incarnation: Incarnation,
    pub beat: u64,
}

/// What a replica knows of all, from its registration on. It is told of its own beats and of looks; instants may come late.
#[derive(Debug)]
pub struct Membership {
    terms: LeaseTerms,
    own: Incarnation,
    generation: StoreGeneration,
    acknowledged: AcknowledgedBeat,
    /// Counts outages of the store: windows of an earlier one are void.
    outages: u64,
    /// When the store was back from the last outage.
    back: BootTime,
    /// How long windows last that begin with the first look after it.
    window_after_outage: Duration,
    /// When the newest look was sent.
    looked: BootTime,
    others: BTreeMap<Incarnation, WatchedReplica>,
    /// What it cannot come back from.
    end: Option<OwnStanding>,
}

#[derive(Debug)]
struct AcknowledgedBeat {
    beat: u64,
    sent: BootTime,
    received: BootTime,
}

#[derive(Debug)]
struct WatchedReplica {
    line: ReplicaLine,
    /// When the line was first seen with its beat.
    since: BootTime,
    /// How long the beat may stay.
    window: Duration,
    /// The outage after which the window began.
    outage: u64,
}

impl Membership {
    /// Of a replica whose line was acknowledged, with a beat of 0, by a write that was sent and answered then.
    #[must_use]
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
            acknowledged: AcknowledgedBeat { beat: 0, sent, received },
            outages: 0,
            back: received,
            window_after_outage: terms.lease,
            looked: sent,
            others: BTreeMap::new(),
            end: None,
        }
    }

    /// The last of its beats that was acknowledged.
    #[must_use]
    pub const fn acknowledged_beat(&self) -> u64 {
        self.acknowledged.beat
    }

    /// Takes note of what a beat, sent and answered then, was answered.
    pub fn beat_answered(&mut self, answer: BeatAnswer, sent: BootTime, received: BootTime) {
        // Whoever was alone for too long has ended, even if it was paused and nobody asked meanwhile.
        let standing = self.standing(received);
        if matches!(standing, OwnStanding::Fenced | OwnStanding::StoreLost(_)) {
            self.end = Some(standing);
            return;
        }
        match answer {
            BeatAnswer::Acknowledged { generation, .. } if generation != self.generation => {
                self.end = Some(OwnStanding::StoreLost(StoreLoss::OtherGeneration(generation)));
            }
            BeatAnswer::Acknowledged { beat, .. } if beat <= self.acknowledged.beat => {
                let loss = StoreLoss::BeatWentBack { acknowledged: self.acknowledged.beat, found: beat };
                self.end = Some(OwnStanding::StoreLost(loss));
            }
            BeatAnswer::Acknowledged { beat, .. } => self.acknowledged(beat, sent, received),
            // It was declared dead in a store that has parted from the one that acknowledged its beats.
            BeatAnswer::Dead { beat } if beat < self.acknowledged.beat => {
                let loss = StoreLoss::BeatWentBack { acknowledged: self.acknowledged.beat, found: beat };
                self.end = Some(OwnStanding::StoreLost(loss));
            }
            BeatAnswer::Dead { .. } => self.end = Some(OwnStanding::Fenced),
            BeatAnswer::Missing => self.end = Some(OwnStanding::StoreLost(StoreLoss::LineMissing)),
        }
    }

    fn acknowledged(&mut self, beat: u64, sent: BootTime, received: BootTime) {
        let gap = received.since(self.acknowledged.received);
        if gap > self.terms.gap_max() {
            // Windows of the outage before may not have begun.
            let unbegun = if self.looked < self.back { self.window_after_outage } else { Duration::ZERO };
            self.outages += 1;
            self.back = received;
            self.window_after_outage = self.terms.window_after(gap).max(unbegun);
        }
        self.acknowledged = AcknowledgedBeat { beat, sent, received };
    }

    /// Takes note of a look, and returns who is to be declared dead: whose beat was the same for the lease, during which this
    /// replica's own beats were acknowledged without an outage. With beats and looks in time that is at most the lease and two
    /// looks after the last beat.
    pub fn looked(&mut self, look: ReplicaLook) -> Vec<DeathClaim> {
        // Late answers show what is known to be past; those of before an outage's end would begin windows too early.
        if look.sent < self.looked || look.sent < self.back {
            return Vec::new();
        }
        self.looked = look.sent;
        let mut others = BTreeMap::new();
        for line in look.lines {
            if line.incarnation == self.own {
                // A look may be taken back; what a line says that is too old its next beat finds out.
                if line.is_dead && line.beat >= self.acknowledged.beat && self.end.is_none() {
                    self.end = Some(OwnStanding::Fenced);
                }
                continue;
            }
            let known = self.others.remove(&line.incarnation);
            others.insert(line.incarnation, self.watched(known, line, look.received));
        }
        self.others = others;
        self.silent(look.sent)
    }

    /// What is known of another replica after a look at its line. A beat that went back (its failover took it) is a new one too.
    fn watched(&self, known: Option<WatchedReplica>, line: ReplicaLine, received: BootTime) -> WatchedReplica {
        let (since, window) = match known {
            // Who was silent since a longer outage has its longer window still.
            Some(known) if known.outage != self.outages && known.line.beat == line.beat => {
                (received, self.window_after_outage.max(known.window))
            }
            Some(known) if known.outage != self.outages => (received, self.window_after_outage),
            Some(known) if known.line.beat == line.beat => (known.since, known.window),
            Some(_) => (received, self.terms.lease),
            None => (received, self.window_after_outage),
        };
        WatchedReplica { line, since, window, outage: self.outages }
    }

    fn silent(&self, now: BootTime) -> Vec<DeathClaim> {
        let reaches_store = now.since(self.acknowledged.received) <= self.terms.gap_max();
        if self.end.is_some() || !reaches_store {
            return Vec::new();
        }
        let is_silent = |other: &&WatchedReplica| !other.line.is_dead && now.since(other.since) >= other.window;
        self.others.values().filter(is_silent).map(WatchedReplica::death_claim).collect()
    }

    /// How long this replica is without the store: since it sent the last beat that was acknowledged. Others may count from that
    /// moment, not from the answer's.
    fn alone_for(&self, now: BootTime) -> Duration {
        now.since(self.acknowledged.sent)
    }

    /// What this replica may do now.
    #[must_use]
    pub fn standing(&self, now: BootTime) -> OwnStanding {
        match self.end {
            Some(end) => end,
            None if self.alone_for(now) >= self.terms.alone_max.max(self.terms.lease) => OwnStanding::Fenced,
            None => OwnStanding::Member,
        }
    }

    /// Since when another replica's line has the beat that it has, as far as this one has seen it.
    #[must_use]
    pub fn beat_since(&self, incarnation: Incarnation) -> Option<BootTime> {
        self.others.get(&incarnation).map(|other| other.since)
    }

    /// The lines of the other replicas that are not dead, as of the last look.
    fn living_others(&self) -> impl Iterator<Item = &ReplicaLine> {
        self.others.values().map(|other| &other.line).filter(|line| !line.is_dead)
    }

    /// The incarnations that are dead, and silent for as long as calls go on without the store: all of their rows may be claimed by
    /// anybody, whatever they are.
    pub fn given_up(&self, now: BootTime) -> impl Iterator<Item = Incarnation> {
        let is_given_up =
            move |other: &&WatchedReplica| other.line.is_dead && now.since(other.since) >= self.terms.alone_max;
        self.others.values().filter(is_given_up).map(|other| other.line.incarnation)
    }

    /// The highest time of another living replica's task clock, for [`TaskClock::steer`](crate::replica::TaskClock::steer).
    #[must_use]
    pub fn highest_now(&self) -> Option<Timestamp> {
        self.living_others().map(|line| line.now).max()
    }
}

impl WatchedReplica {
    const fn death_claim(&self) -> DeathClaim {
        DeathClaim { incarnation: self.line.incarnation, beat: self.line.beat }
    }
}

#[cfg(test)]
mod tests;
