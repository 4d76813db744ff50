//! Classifies the end of a transaction: committed, not committed, or unknown. A server acknowledges more than it
//! guarantees: a commit cancelled while it waits for a standby is acknowledged, and a failover undoes it. Replies rest
//! on [`WriteFate::Done`] alone. See [`crate::replica::read_trust`] for reads.

/// The operator's declaration about a store, which determines the guarantees that an acknowledgement must give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Flushed on the server and on a synchronous standby.
    Replicated,
    /// Flushed on the server, with storage that the operator knows to be replicated.
    Vouched,
    /// Flushed on one server.
    Single,
}

/// The settings that a server reports within the transaction that it commits, unparsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurabilitySettings<'a> {
    /// `synchronous_standby_names`. Emptying it releases waiting commits, and later ones wait for no standby.
    pub standby_names: &'a str,
    pub commit_mode: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SqlNotice<'a> {
    /// The severity, independent of the server's language (field `V` of the protocol): `WARNING`, `ERROR`, `FATAL`.
    pub severity: &'a str,
    /// Five characters; the first two are the class.
    pub sqlstate: &'a str,
}

/// A transaction's end as its writer saw it. Its commit is sent with it, so the server may always have read both.
#[derive(Clone, Copy, Debug)]
pub enum CommitEnd<'a> {
    /// The server reported the commit, and no statement failed.
    Acknowledged {
        /// All notices on the connection from the first statement to the acknowledgement.
        notices: &'a [SqlNotice<'a>],
        settings: DurabilitySettings<'a>,
        rows_written: u64,
    },
    Refused {
        error: SqlNotice<'a>,
    },
    /// The connection ended before the answer.
    Lost,
    /// The writer's own time limit passed. It drops the connection, and never asks the server to cancel.
    TimedOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFate {
    /// Committed as durably as the operator declared, and so are all earlier visible changes.
    Done,
    /// Not committed, now or later.
    NotDone,
    /// May be committed, now or later, or rolled back by a failover: the caller waits for a barrier and a new read.
    Unknown(UnknownCommitCause),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownCommitCause {
    Warned,
    /// The settings do not guarantee the declared durability.
    Unreplicated,
    /// It wrote no row, so its acknowledgement waited for no flush.
    WroteNothing,
    Lost,
    TimedOut,
}

pub fn fate(durability: Durability, end: CommitEnd<'_>) -> WriteFate {
    match end {
        CommitEnd::Acknowledged { notices, .. } if notices.iter().any(voids_acknowledgement) => {
            WriteFate::Unknown(UnknownCommitCause::Warned)
        }
        CommitEnd::Acknowledged { settings, .. } if !is_promised_by(durability, settings) => {
            WriteFate::Unknown(UnknownCommitCause::Unreplicated)
        }
        // A commit without rows waits for no flush, so its reads may be undone: each batch writes its replica's row.
        CommitEnd::Acknowledged { rows_written: 0, .. } => WriteFate::Unknown(UnknownCommitCause::WroteNothing),
        CommitEnd::Acknowledged { .. } => WriteFate::Done,
        CommitEnd::Refused { error } if ends_the_connection(&error) => WriteFate::Unknown(UnknownCommitCause::Lost),
        CommitEnd::Refused { .. } => WriteFate::NotDone,
        CommitEnd::Lost => WriteFate::Unknown(UnknownCommitCause::Lost),
        // None of a server's time-outs ends a commit that waits for its standby.
        CommitEnd::TimedOut => WriteFate::Unknown(UnknownCommitCause::TimedOut),
    }
}

/// A commit with a cancelled wait for its standby is acknowledged with a warning of class 01, one in a terminated
/// session with a warning of class 57. No harmless warning on a commit is known.
pub fn voids_acknowledgement(notice: &SqlNotice<'_>) -> bool {
    notice.severity == "WARNING" || matches!(notice.sqlstate.get(..2), Some("01" | "57") | None)
}

fn is_promised_by(durability: Durability, settings: DurabilitySettings<'_>) -> bool {
    match durability {
        // `remote_write` leaves data in the standby's memory; `local` waits for no standby.
        Durability::Replicated => {
            !settings.standby_names.trim().is_empty() && matches!(settings.commit_mode, "on" | "remote_apply")
        }
        Durability::Vouched | Durability::Single => settings.commit_mode != "off",
    }
}

/// Whether an error may follow a written commit. All other errors precede the commit and roll back the transaction.
fn ends_the_connection(error: &SqlNotice<'_>) -> bool {
    let is_of_class = |class: &str| error.sqlstate.starts_with(class);
    // 40003: the server or a pooler reports an unknown outcome. 57P: it shuts down.
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
    fn an_own_time_out_is_unknown() {
        assert_eq!(fate(Durability::Replicated, CommitEnd::TimedOut), WriteFate::Unknown(UnknownCommitCause::TimedOut));
    }

    #[test]
    fn a_commit_with_any_warning_is_unknown() {
        for (severity, sqlstate) in
            [("WARNING", "01000"), ("WARNING", "57P01"), ("WARNING", "25P01"), ("NOTICE", "01004"), ("NOTICE", "")]
        {
            let harmless = SqlNotice { severity: "LOG", sqlstate: "00000" };
            let fate = acknowledged(&[harmless, SqlNotice { severity, sqlstate }]);
            assert_eq!(fate, WriteFate::Unknown(UnknownCommitCause::Warned), "{severity} {sqlstate}");
        }
    }

    #[test]
    fn a_batch_that_changed_nothing_promises_nothing() {
        let end = |rows_written| CommitEnd::Acknowledged { notices: &[], settings: REPLICATING, rows_written };
        assert_eq!(fate(Durability::Replicated, end(0)), WriteFate::Unknown(UnknownCommitCause::WroteNothing));
        assert_eq!(fate(Durability::Replicated, end(1)), WriteFate::Done);
    }

    #[test]
    fn an_acknowledgement_proves_the_promise_of_its_own_transactions_settings() {
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
                let expected =
                    if is_done { WriteFate::Done } else { WriteFate::Unknown(UnknownCommitCause::Unreplicated) };
                assert_eq!(fate(durability, end), expected, "{durability:?} with {settings:?}");
            }
        }
    }

    #[test]
    fn a_lost_connection_is_unknown() {
        assert_eq!(fate(Durability::Single, CommitEnd::Lost), WriteFate::Unknown(UnknownCommitCause::Lost));
    }

    #[test]
    fn an_error_undoes_the_transaction_unless_it_ends_the_connection() {
        for (severity, sqlstate) in [("ERROR", "23505"), ("ERROR", "53100"), ("ERROR", "57014"), ("ERROR", "40001")] {
            assert_eq!(refused(severity, sqlstate), WriteFate::NotDone, "{severity} {sqlstate}");
        }
        for (severity, sqlstate) in
            [("FATAL", "57P01"), ("ERROR", "57P01"), ("PANIC", "53100"), ("ERROR", "08006"), ("ERROR", "40003")]
        {
            assert_eq!(
                refused(severity, sqlstate),
                WriteFate::Unknown(UnknownCommitCause::Lost),
                "{severity} {sqlstate}"
            );
        }
    }
}
