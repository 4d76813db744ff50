//! Says which reads may be believed.
//!
//! A server shows rows that a failover takes back: those of a commit whose wait for the standby was cancelled or whose session
//! was ended, those that were under way when it was restarted, and all of them once another server was promoted and this one
//! lives on. A *barrier* tells: one write whose fate is [`WriteFate::Done`](crate::replica::WriteFate::Done). Logs are
//! flushed in order, so it proves all that was visible on its server when it was sent.
//!
//! That is all that a barrier behind a read of a client's has to do, and any transaction of the replica's that wrote something does
//! it, on whichever connection. It serves all connections to the same server. What becomes of a write in doubt is decided behind more
//! than that:
//! - It writes for certain: a line of the replica's own.
//! - It waits for every earlier batch of its replica: all of them, and the barrier, write or lock one and the same thing (that
//!   line, or an advisory lock of the transaction). A commit that its standby has flushed shows its rows only when its session
//!   is run again; a barrier that overtook it would let a read miss a row that is there a moment later, and a write in doubt would
//!   be taken for one that was not made.
//! - It closes the store to batches that were sent before the doubt and come later.
//!
//! One statement does all three: it writes that line where the line has the writer's epoch, and a batch that finds another one
//! there is undone. It stands in every batch, so each of them is such a barrier once it is done. The PostgreSQL store counts the
//! epoch up once for each connection, by a write that waits for the line. The line is no other that anybody waits for:
//! declaring a replica dead must not wait for what it has under way.

use std::time::Duration;

use crate::replica::BootTime;

/// Tells one run of one server from any other: made of the server's address, its start and its timeline, as read on the
/// connection itself. A barrier on one proves nothing of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerMark(pub u64);

/// What becomes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBelief {
    Believed,
    /// It may be believed once a barrier, sent from now on to the same server, has passed.
    NeedsBarrier,
}

/// The barriers of one replica, and what made new ones necessary.
#[derive(Clone, Debug)]
pub struct ReadTrust {
    age_max: Duration,
    /// When a connection was made or a write became unsure last. Barriers sent before prove nothing of what came of that.
    doubted: BootTime,
    proof: Option<BarrierProof>,
    /// The same, of a barrier that has waited for every earlier batch.
    settling: Option<BarrierProof>,
}

/// A barrier that has passed.
#[derive(Clone, Copy, Debug)]
struct BarrierProof {
    server: ServerMark,
    sent: BootTime,
}

impl ReadTrust {
    /// Before the first barrier nothing is believed. `age_max` is how old the last barrier may be when something read is handed
    /// on; with zero every read needs one that was sent after it.
    #[must_use]
    pub const fn new(age_max: Duration, at: BootTime) -> Self {
        Self { age_max, doubted: at, proof: None, settling: None }
    }

    /// A connection was made: barrier first. The one before may have ended in the middle of a commit, and the server may be another.
    pub fn connected(&mut self, at: BootTime) {
        self.doubt(at);
    }

    /// A write of this replica ended in doubt: barrier, then read the rows, then decide.
    pub fn write_unsure(&mut self, at: BootTime) {
        self.doubt(at);
    }

    fn doubt(&mut self, at: BootTime) {
        self.doubted = self.doubted.max(at);
        (self.proof, self.settling) = (None, None);
    }

    /// A transaction that was sent at `sent` and wrote something is done on that server. It proves what was visible there, and says
    /// nothing of the batches of this replica: it did not wait for them.
    pub fn write_passed(&mut self, server: ServerMark, sent: BootTime) {
        if sent >= self.doubted {
            BarrierProof { server, sent }.replace(&mut self.proof);
        }
    }

    /// A barrier that was sent at `sent` has passed on that server: a write that waited for every earlier batch of this replica.
    pub fn lane_write_passed(&mut self, server: ServerMark, sent: BootTime) {
        self.write_passed(server, sent);
        if sent >= self.doubted {
            BarrierProof { server, sent }.replace(&mut self.settling);
        }
    }

    /// Whether a read that is sent now to this server may decide what became of a write: a barrier has passed there since the last
    /// doubt, and has waited for every earlier batch.
    #[must_use]
    pub fn may_settle(&self, server: ServerMark) -> bool {
        self.settling.is_some_and(|proof| proof.server == server)
    }

    /// Whether what a read of this server brought at `received` may be handed on now: a barrier that was sent after it proves it
    /// for good. An earlier one leaves a moment: what was cancelled since, or on a server that was replaced since, may be taken
    /// back; so it counts for `age_max` only.
    #[must_use]
    pub fn judge(&self, server: ServerMark, received: BootTime, now: BootTime) -> ReadBelief {
        let is_fresh = |proof: BarrierProof| !self.age_max.is_zero() && now.since(proof.sent) <= self.age_max;
        match self.proof {
            Some(proof) if proof.server == server && is_fresh(proof) => ReadBelief::Believed,
            _ => self.judge_for_good(server, received),
        }
    }

    /// The same for what nothing may be taken back of: a barrier that was sent after it was received proves it.
    #[must_use]
    pub fn judge_for_good(&self, server: ServerMark, received: BootTime) -> ReadBelief {
        match self.proof {
            Some(proof) if proof.server == server && proof.sent >= received => ReadBelief::Believed,
            _ => ReadBelief::NeedsBarrier,
        }
    }
}

impl BarrierProof {
    /// Takes the place of one that was sent earlier.
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
    fn check(trust: &ReadTrust, read: (ServerMark, u64), now: u64, expected: ReadBelief) {
        assert_eq!(trust.judge(read.0, at(read.1), at(now)), expected);
    }

    #[test]
    fn a_barrier_comes_first_after_each_connect() {
        let mut trust = trust(1);
        check(&trust, (SERVER, 1), 1, ReadBelief::NeedsBarrier);
        trust.lane_write_passed(SERVER, at(1));
        check(&trust, (SERVER, 1), 1, ReadBelief::Believed);
        trust.connected(at(2));
        check(&trust, (SERVER, 2), 2, ReadBelief::NeedsBarrier);
        assert!(!trust.may_settle(SERVER));
    }

    #[test]
    fn an_unsure_write_is_settled_behind_a_barrier_that_was_sent_after_it() {
        let mut trust = trust(1);
        trust.lane_write_passed(SERVER, at(1));
        trust.write_unsure(at(3));
        // This one was under way already.
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
        check(&trust, (SERVER, 1), 9, ReadBelief::Believed);
        assert!(!trust.may_settle(SERVER));
        trust.lane_write_passed(SERVER, at(2));
        trust.write_passed(OTHER, at(3));
        assert!(trust.may_settle(SERVER), "another write takes nothing from it");
        check(&trust, (SERVER, 1), 3, ReadBelief::NeedsBarrier);
    }

    #[test]
    fn what_is_to_hold_for_good_is_proven_by_a_barrier_after_it_alone() {
        let mut trust = trust(60);
        trust.lane_write_passed(SERVER, at(10));
        assert_eq!(trust.judge_for_good(SERVER, at(10)), ReadBelief::Believed);
        assert_eq!(trust.judge_for_good(SERVER, at(11)), ReadBelief::NeedsBarrier);
        assert_eq!(trust.judge_for_good(OTHER, at(9)), ReadBelief::NeedsBarrier);
    }

    #[test]
    fn a_read_is_believed_by_a_barrier_after_it_and_else_for_as_long_as_reads_are_trusted() {
        let mut trust = trust(1);
        trust.lane_write_passed(SERVER, at(10));
        check(&trust, (SERVER, 9), 20, ReadBelief::Believed);
        check(&trust, (SERVER, 11), 11, ReadBelief::Believed);
        check(&trust, (SERVER, 11), 12, ReadBelief::NeedsBarrier);
        check(&trust, (OTHER, 9), 11, ReadBelief::NeedsBarrier);
    }

    #[test]
    fn without_trust_in_age_each_read_needs_a_barrier_after_it() {
        let mut trust = trust(0);
        trust.lane_write_passed(SERVER, at(10));
        check(&trust, (SERVER, 11), 11, ReadBelief::NeedsBarrier);
        trust.lane_write_passed(SERVER, at(11));
        check(&trust, (SERVER, 11), 11, ReadBelief::Believed);
    }

    #[test]
    fn barriers_that_are_told_of_out_of_turn_leave_the_newest() {
        let mut trust = trust(1);
        trust.lane_write_passed(SERVER, at(10));
        trust.lane_write_passed(OTHER, at(9));
        check(&trust, (SERVER, 11), 11, ReadBelief::Believed);
    }
}
