//! Restates rules that the program has elsewhere: in the statements of its store, and in its engine's handling of unknown commits.

use taskgate::replica::{DeathClaim, GuardedRow};

use super::server::LineRow;

/// A row's answer about an unknown commit, read behind a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DoubtEnd {
    Made,
    /// The row is as it was before: the write may be repeated.
    NotMade,
    /// Another write came since, on top of it or in its place: the row as it is now decides.
    Overtaken,
}

/// Resolves an unknown commit of a row that was `before` (`None` for an insert) and would be `written`. `found` is the
/// row as it is, and whether its record is byte for byte the written one. Revision and holder alone do not tell: a
/// client's command counts the revision up as well, and leaves the holder.
pub(super) fn settle(before: Option<GuardedRow>, written: GuardedRow, found: Option<(GuardedRow, bool)>) -> DoubtEnd {
    match found {
        Some((row, true)) if row == written => DoubtEnd::Made,
        found if found.map(|(row, _)| row) == before => DoubtEnd::NotMade,
        Some(_) | None => DoubtEnd::Overtaken,
    }
}

/// Counts a replica's unknown commits. Every batch has the number at the time of its sending, and the replica's row has
/// the number of its last barrier.
///
/// A batch of a writer that no longer waits may stay unread in front of a server, and be carried out at any later time,
/// also behind the barrier after which its writer concluded that it was not committed. So a barrier closes the store to
/// batches that were sent before the unknown commit that it follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BatchEpoch(u64);

impl BatchEpoch {
    /// The epoch after another doubt.
    pub(super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Whether a batch of this epoch is carried out where its replica's line, which it locks first, has that one. If not, all of it
    /// is undone.
    pub(super) fn is_admitted(self, in_line: Self) -> bool {
        self == in_line
    }

    /// Whether a barrier of this epoch takes it where the line has that one.
    pub(super) fn may_be_taken(self, in_line: Self) -> bool {
        self >= in_line
    }
}

/// Whether a replica may still be declared dead, by its line as it is when that is written.
pub(super) const fn holds(claim: DeathClaim, line: LineRow) -> bool {
    !line.is_dead && line.beat == claim.heartbeat
}

#[test]
fn the_row_tells_the_result_of_an_unknown_commit() {
    use taskgate::replica::Incarnation;
    let (me, other) = (Incarnation(7), Incarnation(8));
    let guard = |revision, holder| GuardedRow { revision, holder: Some(holder) };
    let (before, written) = (guard(3, me), guard(4, me));
    let rows = [
        (Some((written, true)), DoubtEnd::Made),
        // A command was first: it has the same revision and holder.
        (Some((written, false)), DoubtEnd::Overtaken),
        (Some((before, false)), DoubtEnd::NotMade),
        (Some((guard(5, me), false)), DoubtEnd::Overtaken),
        (Some((guard(4, other), true)), DoubtEnd::Overtaken),
        (None, DoubtEnd::Overtaken),
    ];
    for (found, expected) in rows {
        assert_eq!(settle(Some(before), written, found), expected, "{found:?}");
    }
    assert_eq!(settle(None, written, None), DoubtEnd::NotMade);
    assert_eq!(settle(None, written, Some((written, true))), DoubtEnd::Made);
}

#[test]
fn a_barrier_closes_the_store_to_batches_of_before_its_doubt() {
    let epoch = BatchEpoch::default();
    let barrier = epoch.next();
    assert!(barrier.may_be_taken(epoch) && barrier.may_be_taken(barrier) && !epoch.may_be_taken(barrier));
    assert!(epoch.is_admitted(epoch) && barrier.is_admitted(barrier));
    assert!(!epoch.is_admitted(barrier) && !barrier.is_admitted(epoch), "an epoch that was not taken");
}
