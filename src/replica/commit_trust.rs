//! Says what a transaction's end means: made, not made, or in doubt.
//!
//! A server answers more than it promises: a commit that somebody cancels while it waits for a standby is acknowledged all the
//! same, and a failover takes it back. What is told to a client rests on [`WriteFate::Done`] alone. The rules have a function each;
//! [`fate`] puts them together. What may be believed of what is *read* says [`crate::replica::read_trust`].

/// What the operator says of a store, and what an acknowledgement is to prove accordingly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Flushed on the server and on a synchronous standby.
    Replicated,
    /// Flushed on the server, whose storage the operator knows to be replicated beneath it.
    Vouched,
    /// Flushed on one server.
    Single,
}

/// What a server says of its settings in the very transaction that it commits, as it spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurabilitySettings<'a> {
    /// `synchronous_standby_names`. Emptied, it releases commits that wait, and the next wait for nobody.
    pub standby_names: &'a str,
    /// `synchronous_commit`.
    pub commit_mode: &'a str,
}

/// A notice or an error of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqlNotice<'a> {
    /// As it is in every language (field `V` of the protocol): `WARNING`, `ERROR`, `FATAL`.
    pub severity: &'a str,
    /// Five characters, the first two of which are the class.
    pub sqlstate: &'a str,
}

/// How a transaction ended, as its writer saw it. It is sent as a whole, with its commit: whatever ends it, that may have been read.
#[derive(Clone, Copy, Debug)]
pub enum CommitEnd<'a> {
    /// The server said that it is committed, and no statement in it failed.
    Acknowledged {
        /// All that came on the connection from the first statement on, up to the acknowledgement.
        notices: &'a [SqlNotice<'a>],
        settings: DurabilitySettings<'a>,
        /// Rows that it inserted, changed or removed.
        rows_written: u64,
    },
    /// A statement, or the commit itself, was answered by an error.
    Refused { error: SqlNotice<'a> },
    /// The connection ended first, whoever ended it.
    Lost,
    /// The writer's own time was over. It drops the connection, and never asks the server to cancel.
    TimedOut,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFate {
    /// It is as durable as the operator said, and so is all that was visible before it.
    Done,
    /// Nothing of it is there, nor will be.
    NotDone,
    /// It may be there, now or later, and a failover may take it back. Nobody is told either; a barrier first, then the rows
    /// themselves decide.
    Unsure(WriteDoubt),
}

/// Why nobody knows what became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteDoubt {
    /// The acknowledgement came with a warning.
    Warned,
    /// The settings do not promise what the operator wants.
    Unreplicated,
    /// It wrote nothing, so its acknowledgement waited for nothing.
    WroteNothing,
    /// The connection or the server ended in the middle.
    Lost,
    TimedOut,
}

/// What became of a transaction that ended like this.
#[must_use]
pub fn fate(durability: Durability, end: CommitEnd<'_>) -> WriteFate {
    match end {
        CommitEnd::Acknowledged { notices, .. } if notices.iter().any(is_doubtful) => {
            WriteFate::Unsure(WriteDoubt::Warned)
        }
        CommitEnd::Acknowledged { settings, .. } if !is_promised_by(durability, settings) => {
            WriteFate::Unsure(WriteDoubt::Unreplicated)
        }
        CommitEnd::Acknowledged { rows_written, .. } if promises_nothing(rows_written) => {
            WriteFate::Unsure(WriteDoubt::WroteNothing)
        }
        CommitEnd::Acknowledged { .. } => WriteFate::Done,
        CommitEnd::Refused { error } if ends_the_connection(&error) => WriteFate::Unsure(WriteDoubt::Lost),
        CommitEnd::Refused { .. } => WriteFate::NotDone,
        CommitEnd::Lost => WriteFate::Unsure(WriteDoubt::Lost),
        // A server ends no commit that waits for its standby, whatever its own time-outs say.
        CommitEnd::TimedOut => WriteFate::Unsure(WriteDoubt::TimedOut),
    }
}

/// Whether an acknowledgement that comes with this promises nothing. A commit whose wait for the standby was cancelled is
/// acknowledged with a plain warning (class 01), one whose session was ended with a warning of class 57; no warning at a
/// commit is known that is harmless.
#[must_use]
pub fn is_doubtful(notice: &SqlNotice<'_>) -> bool {
    notice.severity == "WARNING" || matches!(notice.sqlstate.get(..2), Some("01" | "57") | None)
}

/// Whether a transaction that wrote so many rows waits for no disk and no standby: that a name exists, or that nothing matched,
/// was then only read, and may be taken back. Such a batch writes a line of its replica's own before anybody is answered.
const fn promises_nothing(rows_written: u64) -> bool {
    rows_written == 0
}

/// Whether settings of the server that committed promise what the operator wants.
fn is_promised_by(durability: Durability, settings: DurabilitySettings<'_>) -> bool {
    match durability {
        // `remote_write` leaves it in the standby's memory, `local` waits for no standby.
        Durability::Replicated => {
            !settings.standby_names.trim().is_empty() && matches!(settings.commit_mode, "on" | "remote_apply")
        }
        Durability::Vouched | Durability::Single => settings.commit_mode != "off",
    }
}

/// Whether an error may come behind a commit that was written: the session, the connection or the server ended. Any other error
/// is said before the commit is written, and undoes the transaction.
fn ends_the_connection(error: &SqlNotice<'_>) -> bool {
    let is_of_class = |class: &str| error.sqlstate.starts_with(class);
    // 40003: a server or a pooler says itself that it does not know. 57P: it shuts down.
    error.severity != "ERROR" || is_of_class("08") || is_of_class("57P") || error.sqlstate == "40003"
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLICATING: DurabilitySettings<'_> = DurabilitySettings { standby_names: "ANY 1 (b, c)", commit_mode: "on" };

    fn acknowledged(notices: &[SqlNotice<'_>]) -> WriteFate {
        let end = CommitEnd::Acknowledged { notices, settings: REPLICATING, rows_written: 1 };
        fate(Durability::Replicated, end)
    }

    fn refused(severity: &str, sqlstate: &str) -> WriteFate {
        fate(Durability::Replicated, CommitEnd::Refused { error: SqlNotice { severity, sqlstate } })
    }

    #[test]
    fn a_clean_acknowledgement_is_done() {
        assert_eq!(acknowledged(&[]), WriteFate::Done);
        assert_eq!(acknowledged(&[SqlNotice { severity: "NOTICE", sqlstate: "00000" }]), WriteFate::Done);
    }

    #[test]
    fn an_own_time_out_is_unsure() {
        assert_eq!(fate(Durability::Replicated, CommitEnd::TimedOut), WriteFate::Unsure(WriteDoubt::TimedOut));
    }

    #[test]
    fn a_commit_with_any_warning_is_unsure() {
        for (severity, sqlstate) in
            [("WARNING", "01000"), ("WARNING", "57P01"), ("WARNING", "25P01"), ("NOTICE", "01004"), ("NOTICE", "")]
        {
            let harmless = SqlNotice { severity: "LOG", sqlstate: "00000" };
            let fate = acknowledged(&[harmless, SqlNotice { severity, sqlstate }]);
            assert_eq!(fate, WriteFate::Unsure(WriteDoubt::Warned), "{severity} {sqlstate}");
        }
    }

    #[test]
    fn a_batch_that_changed_nothing_promises_nothing() {
        let end = |rows_written| CommitEnd::Acknowledged { notices: &[], settings: REPLICATING, rows_written };
        assert_eq!(fate(Durability::Replicated, end(0)), WriteFate::Unsure(WriteDoubt::WroteNothing));
        assert_eq!(fate(Durability::Replicated, end(1)), WriteFate::Done);
    }

    #[test]
    fn an_acknowledgement_proves_what_the_settings_of_its_own_transaction_promise() {
        use Durability::{Replicated, Single, Vouched};
        let rows = [
            ("ANY 1 (b, c)", "on", [true, true, true]),
            ("*", "remote_apply", [true, true, true]),
            ("", "on", [false, true, true]),
            (" ", "on", [false, true, true]),
            ("b", "remote_write", [false, true, true]),
            ("b", "local", [false, true, true]),
            ("b", "off", [false, false, false]),
        ];
        for (standby_names, commit_mode, expected) in rows {
            let settings = DurabilitySettings { standby_names, commit_mode };
            for (durability, is_done) in [Replicated, Vouched, Single].into_iter().zip(expected) {
                let end = CommitEnd::Acknowledged { notices: &[], settings, rows_written: 1 };
                let expected = if is_done { WriteFate::Done } else { WriteFate::Unsure(WriteDoubt::Unreplicated) };
                assert_eq!(fate(durability, end), expected, "{durability:?} with {settings:?}");
            }
        }
    }

    #[test]
    fn a_lost_connection_is_unsure() {
        assert_eq!(fate(Durability::Single, CommitEnd::Lost), WriteFate::Unsure(WriteDoubt::Lost));
    }

    #[test]
    fn an_error_undoes_the_transaction_unless_it_ends_the_connection() {
        for (severity, sqlstate) in [("ERROR", "23505"), ("ERROR", "53100"), ("ERROR", "57014"), ("ERROR", "40001")] {
            assert_eq!(refused(severity, sqlstate), WriteFate::NotDone, "{severity} {sqlstate}");
        }
        for (severity, sqlstate) in
            [("FATAL", "57P01"), ("ERROR", "57P01"), ("PANIC", "53100"), ("ERROR", "08006"), ("ERROR", "40003")]
        {
            assert_eq!(refused(severity, sqlstate), WriteFate::Unsure(WriteDoubt::Lost), "{severity} {sqlstate}");
        }
    }
}
