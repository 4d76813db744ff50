//! Decides by revision and holder whether a row may be written or claimed. Stores have this rule in their statements,
//! and ask here why nothing changed. The rule is safe even if a former holder lives.

use crate::replica::Incarnation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardedRow {
    pub revision: u64,
    /// The replica responsible for the row; `None` once no work is left.
    pub holder: Option<Incarnation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardedWrite {
    expected_revision: u64,
    /// `None` for a client's command.
    writer: Option<Incarnation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteVerdict {
    Made,
    /// Another write came first, or the row is gone: read it again and decide again.
    Conflict,
    /// Another replica holds the row: the runner stops, and closes its stream to the upstream without a cancel.
    Fenced,
}

impl GuardedWrite {
    pub const fn by_holder(holder: Incarnation, expected_revision: u64) -> Self {
        Self { expected_revision, writer: Some(holder) }
    }

    /// A client's command (a cancel, an answer), which any replica executes: checks the revision, and keeps the holder.
    pub const fn by_command(expected_revision: u64) -> Self {
        Self { expected_revision, writer: None }
    }

    /// Any *other* holder fences a holder's write, at any revision. Without a holder the row has settled: a conflict.
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

/// Whether a replica may claim a row. `is_dead` decides for an incarnation; unknown ones are not dead.
///
/// The claim is a write at the row's revision, so only one claimant succeeds. It first stops its own older, fenced
/// runner of this row: that runner could write again, and repeat a call that the other replica has sent.
pub fn may_claim(row: GuardedRow, claimant: Incarnation, is_dead: impl FnOnce(Incarnation) -> bool) -> bool {
    row.holder.is_some_and(|holder| holder != claimant && is_dead(holder))
}

/// The higher revision invalidates the old holder's reads.
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
        assert!(!may_claim(GuardedRow { revision: 3, holder: None }, ME, |_| true), "it needs no holder");
        assert!(!may_claim(of_other, OTHER, |_| true), "a holder does not claim its own row");
        let after = Some(claimed(of_other, ME));
        assert_eq!(GuardedWrite::by_holder(OTHER, 3).judge(after), WriteVerdict::Fenced);
        assert_eq!(GuardedWrite::by_command(3).judge(after), WriteVerdict::Conflict);
        assert_eq!(GuardedWrite::by_holder(ME, 4).judge(after), WriteVerdict::Made);
    }
}
