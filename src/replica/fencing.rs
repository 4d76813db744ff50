//! Decides whether a write of a row is made, by what the row says of its revision and its holder; and which rows may be taken over.
//!
//! A store says the same in its own language (a condition of the statement that writes). What is here says why a write was not
//! made, and is what that condition is tested against. Safety rests on this alone, and not on who is thought to be alive.

use crate::replica::Incarnation;

/// What a row says of itself to whoever wants to write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardedRow {
    /// Counts the row's writes.
    pub revision: u64,
    /// Who has to go on with it; `None` once nobody has to.
    pub holder: Option<Incarnation>,
}

/// What a write expects of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardedWrite {
    expected_revision: u64,
    /// `None` for a client's command.
    writer: Option<Incarnation>,
}

/// What became of a guarded write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteVerdict {
    /// The row was as expected.
    Made,
    /// Another writer was first, or the row is gone: read it again, decide again.
    Conflict,
    /// The row has another holder: the runner ends, closes its stream at the server without a cancel, and decides nothing more.
    Fenced,
}

impl GuardedWrite {
    /// Of the runner that holds the row: it goes by revision and holder.
    #[must_use]
    pub const fn by_holder(holder: Incarnation, expected_revision: u64) -> Self {
        Self { expected_revision, writer: Some(holder) }
    }

    /// Of a client's command (a cancel, an answer), which any replica carries out: it goes by the revision, and leaves the holder.
    #[must_use]
    pub const fn by_command(expected_revision: u64) -> Self {
        Self { expected_revision, writer: None }
    }

    /// What becomes of the write at a row as it is; `None` where there is no such row.
    ///
    /// A holder's write is fenced by any *other* holder, whatever the revision. A row that nobody holds any more has ended, by
    /// whomever: its runner reads that, so it is a conflict.
    #[must_use]
    pub fn judge(self, found: Option<GuardedRow>) -> WriteVerdict {
        let Some(row) = found else { return WriteVerdict::Conflict };
        if let (Some(writer), Some(holder)) = (self.writer, row.holder)
            && writer != holder
        {
            return WriteVerdict::Fenced;
        }
        let may_write = self.writer.is_none_or(|_| self.writer == row.holder);
        if may_write && row.revision == self.expected_revision { WriteVerdict::Made } else { WriteVerdict::Conflict }
    }
}

/// Whether a replica may take over a row: its holder was declared dead. `is_dead` says so of an incarnation; one that it does not
/// know is not dead. A row without holder needs nobody.
///
/// The claim itself is a write under the row's revision, so that one of several claimants gets it. A claimant that has a runner of
/// this row from before ends it first: a row that somebody else held meanwhile shows that the runner was fenced, and once the row
/// names this replica again, nothing else would tell it. It would send what the other may have sent.
#[must_use]
pub fn may_claim(row: GuardedRow, claimant: Incarnation, is_dead: impl FnOnce(Incarnation) -> bool) -> bool {
    row.holder.is_some_and(|holder| holder != claimant && is_dead(holder))
}

/// The row as its claimant leaves it, everything else unchanged. The revision tells the old holder's reads from it.
#[must_use]
pub const fn claimed(row: GuardedRow, claimant: Incarnation) -> GuardedRow {
    GuardedRow { revision: row.revision + 1, holder: Some(claimant) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Incarnation = Incarnation(7);
    const OTHER: Incarnation = Incarnation(8);

    const fn row(revision: u64, holder: Option<Incarnation>) -> Option<GuardedRow> {
        Some(GuardedRow { revision, holder })
    }

    #[track_caller]
    fn check(write: GuardedWrite, cases: [(Option<GuardedRow>, WriteVerdict); 7]) {
        for (found, expected) in cases {
            assert_eq!(write.judge(found), expected, "{write:?} at {found:?}");
        }
    }

    #[test]
    fn a_holders_write_needs_its_revision_and_itself_as_holder() {
        use WriteVerdict::{Conflict, Fenced, Made};
        let cases = [
            (None, Conflict),
            (row(3, Some(ME)), Made),
            (row(4, Some(ME)), Conflict),
            (row(3, Some(OTHER)), Fenced),
            (row(4, Some(OTHER)), Fenced),
            (row(3, None), Conflict),
            (row(4, None), Conflict),
        ];
        check(GuardedWrite::by_holder(ME, 3), cases);
    }

    #[test]
    fn a_command_needs_the_revision_alone() {
        use WriteVerdict::{Conflict, Made};
        let cases = [
            (None, Conflict),
            (row(3, Some(ME)), Made),
            (row(4, Some(ME)), Conflict),
            (row(3, Some(OTHER)), Made),
            (row(4, Some(OTHER)), Conflict),
            (row(3, None), Made),
            (row(4, None), Conflict),
        ];
        check(GuardedWrite::by_command(3), cases);
    }

    #[test]
    fn only_rows_of_the_dead_are_claimed_and_the_claim_fences_their_holder() {
        let of_other = GuardedRow { revision: 3, holder: Some(OTHER) };
        assert!(may_claim(of_other, ME, |holder| holder == OTHER));
        assert!(!may_claim(of_other, ME, |_| false), "its holder lives");
        assert!(!may_claim(GuardedRow { revision: 3, holder: None }, ME, |_| true), "nobody has to do anything for it");
        assert!(!may_claim(of_other, OTHER, |_| true), "nobody claims what it holds");
        let after = Some(claimed(of_other, ME));
        assert_eq!(GuardedWrite::by_holder(OTHER, 3).judge(after), WriteVerdict::Fenced);
        assert_eq!(GuardedWrite::by_command(3).judge(after), WriteVerdict::Conflict);
        assert_eq!(GuardedWrite::by_holder(ME, 4).judge(after), WriteVerdict::Made);
    }
}
