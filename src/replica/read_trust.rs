//! Determines which reads may be trusted.
//!
//! A server shows rows that a failover rolls back: commits with a cancelled wait or a terminated session, or in
//! progress at a restart, and all after another promotion. A *barrier* protects: a write of fate
//! [`Done`](super::WriteFate::Done). Logs are flushed in order: it proves all changes visible on its server when sent.
//!
//! For a client's read, any transaction of this replica that wrote a row is enough, on any connection to the same
//! server. Resolving an unknown commit needs a barrier with three more properties:
//! - It certainly writes: the replica's own row.
//! - It waits for every earlier batch of its replica: all write or lock that row. A commit flushed by its standby shows
//!   its rows only once its session is scheduled; an overtaking barrier would take an unresolved write for failed.
//! - It excludes batches that were sent before the unknown commit and arrive later.
//!
//! One statement of every batch does all three: it writes that row if the row has the writer's epoch, and a batch that
//! finds another epoch is rolled back. The PostgreSQL store increments the epoch per connection, with a write that
//! waits for the row. No other statement waits for it: declaring a replica dead waits for none of its writes.

use std::time::Duration;

use crate::replica::BootTime;

/// One run of one server (address, start and timeline, as read). A barrier on one run proves nothing about another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerMark(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadVerdict {
    Trusted,
    /// The read needs a barrier that is sent from now on to the same server.
    NeedsBarrier,
}

#[derive(Clone, Debug)]
pub struct ReadTrust {
    age_max: Duration,
    /// When a connection was last made or a write's outcome last became unknown. Earlier barriers do not cover the consequences.
    distrusted: BootTime,
    proof: Option<BarrierProof>,
    /// The last barrier that waited for every earlier batch.
    settling: Option<BarrierProof>,
}

#[derive(Clone, Copy, Debug)]
struct BarrierProof {
    server: ServerMark,
    sent: BootTime,
}

impl ReadTrust {
    /// `age_max`: the maximum age of the last barrier when a read is used; with zero every read needs a later barrier.
    pub const fn new(age_max: Duration, at: BootTime) -> Self {
        Self { age_max, distrusted: at, proof: None, settling: None }
    }

    /// A new connection requires a new barrier: the last one may have ended within a commit, and the server may differ.
    pub fn connected(&mut self, at: BootTime) {
        self.distrust(at);
    }

    /// Records an unknown outcome: to resolve the write, make a barrier, then read the rows.
    pub fn write_unknown(&mut self, at: BootTime) {
        self.distrust(at);
    }

    fn distrust(&mut self, at: BootTime) {
        self.distrusted = self.distrusted.max(at);
        (self.proof, self.settling) = (None, None);
    }

    /// Records a commit. It proves the changes visible on that server, but did not wait for this replica's batches.
    pub fn write_passed(&mut self, server: ServerMark, sent: BootTime) {
        if sent >= self.distrusted {
            BarrierProof { server, sent }.replace(&mut self.proof);
        }
    }

    pub fn lane_write_passed(&mut self, server: ServerMark, sent: BootTime) {
        self.write_passed(server, sent);
        if sent >= self.distrusted {
            BarrierProof { server, sent }.replace(&mut self.settling);
        }
    }

    /// Whether a read sent now may resolve a write: a [`Self::lane_write_passed`] here since the last unknown outcome.
    pub fn may_settle(&self, server: ServerMark) -> bool {
        self.settling.is_some_and(|proof| proof.server == server)
    }

    /// A barrier sent after a read proves it for good; an earlier one for `age_max`, as later commits may be undone.
    pub fn judge(&self, server: ServerMark, received: BootTime, now: BootTime) -> ReadVerdict {
        let is_fresh = |proof: BarrierProof| !self.age_max.is_zero() && now.since(proof.sent) <= self.age_max;
        match self.proof {
            Some(proof) if proof.server == server && is_fresh(proof) => ReadVerdict::Trusted,
            _ => self.judge_for_good(server, received),
        }
    }

    /// For reads that must never be rolled back: requires a barrier sent after the read was received.
    pub fn judge_for_good(&self, server: ServerMark, received: BootTime) -> ReadVerdict {
        match self.proof {
            Some(proof) if proof.server == server && proof.sent >= received => ReadVerdict::Trusted,
            _ => ReadVerdict::NeedsBarrier,
        }
    }
}

impl BarrierProof {
    fn replace(self, proof: &mut Option<Self>) {
        if proof.is_none_or(|other| other.sent <= self.sent) {
            *proof = Some(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ServerMark = ServerMark(1);
    const OTHER: ServerMark = ServerMark(2);

    const fn at(seconds: u64) -> BootTime {
        BootTime(Duration::from_secs(seconds))
    }

    const fn trust(age_max: u64) -> ReadTrust {
        ReadTrust::new(Duration::from_secs(age_max), at(0))
    }

    #[track_caller]
    fn check(trust: &ReadTrust, read: (ServerMark, u64), now: u64, expected: ReadVerdict) {
        assert_eq!(trust.judge(read.0, at(read.1), at(now)), expected);
    }

    #[test]
    fn a_barrier_comes_first_after_each_connect() {
        let mut trust = trust(1);
        check(&trust, (SERVER, 1), 1, ReadVerdict::NeedsBarrier);
        trust.lane_write_passed(SERVER, at(1));
        check(&trust, (SERVER, 1), 1, ReadVerdict::Trusted);
        trust.connected(at(2));
        check(&trust, (SERVER, 2), 2, ReadVerdict::NeedsBarrier);
        assert!(!trust.may_settle(SERVER));
    }

    #[test]
    fn an_unknown_write_is_settled_behind_a_barrier_that_was_sent_after_it() {
        let mut trust = trust(1);
        trust.lane_write_passed(SERVER, at(1));
        trust.write_unknown(at(3));
        trust.lane_write_passed(SERVER, at(2));
        assert!(!trust.may_settle(SERVER));
        trust.lane_write_passed(SERVER, at(4));
        assert!(trust.may_settle(SERVER));
        assert!(!trust.may_settle(OTHER), "another server may lack what this one was proven to have");
    }

    #[test]
    fn a_write_that_did_not_wait_for_the_batches_proves_reads_and_settles_nothing() {
        let mut trust = trust(1);
        trust.write_passed(SERVER, at(1));
        check(&trust, (SERVER, 1), 9, ReadVerdict::Trusted);
        assert!(!trust.may_settle(SERVER));
        trust.lane_write_passed(SERVER, at(2));
        trust.write_passed(OTHER, at(3));
        assert!(trust.may_settle(SERVER), "another write takes nothing from it");
        check(&trust, (SERVER, 1), 3, ReadVerdict::NeedsBarrier);
    }

    #[test]
    fn a_settled_read_is_proven_only_by_a_later_barrier() {
        let mut trust = trust(60);
        trust.lane_write_passed(SERVER, at(10));
        assert_eq!(trust.judge_for_good(SERVER, at(10)), ReadVerdict::Trusted);
        assert_eq!(trust.judge_for_good(SERVER, at(11)), ReadVerdict::NeedsBarrier);
        assert_eq!(trust.judge_for_good(OTHER, at(9)), ReadVerdict::NeedsBarrier);
    }

    #[test]
    fn a_read_is_believed_by_a_barrier_after_it_and_else_for_as_long_as_reads_are_trusted() {
        let mut trust = trust(1);
        trust.lane_write_passed(SERVER, at(10));
        check(&trust, (SERVER, 9), 20, ReadVerdict::Trusted);
        check(&trust, (SERVER, 11), 11, ReadVerdict::Trusted);
        check(&trust, (SERVER, 11), 12, ReadVerdict::NeedsBarrier);
        check(&trust, (OTHER, 9), 11, ReadVerdict::NeedsBarrier);
    }

    #[test]
    fn without_trust_in_age_each_read_needs_a_barrier_after_it() {
        let mut trust = trust(0);
        trust.lane_write_passed(SERVER, at(10));
        check(&trust, (SERVER, 11), 11, ReadVerdict::NeedsBarrier);
        trust.lane_write_passed(SERVER, at(11));
        check(&trust, (SERVER, 11), 11, ReadVerdict::Trusted);
    }

    #[test]
    fn barriers_that_are_told_of_out_of_turn_leave_the_newest() {
        let mut trust = trust(1);
        trust.lane_write_passed(SERVER, at(10));
        trust.lane_write_passed(OTHER, at(9));
        check(&trust, (SERVER, 11), 11, ReadVerdict::Trusted);
    }
}
