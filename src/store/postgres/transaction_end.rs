//! Classifies the end of a transaction sent with its commit. Pure: independent of connections and their errors.

use crate::replica::commit_trust::fate;
use crate::replica::{CommitEnd, Durability, DurabilitySettings, SqlNotice, WriteFate};

/// The end of a transaction: the rows `R` of each statement, or an error `E`.
#[derive(Debug)]
pub(super) enum TransactionEnd<R, E> {
    Acknowledged {
        rows: Vec<Vec<R>>,
        promise: ServerPromise,
    },
    Failed(E),
    /// `BEGIN` failed, so the statements may have run outside a transaction.
    Unbegun(E),
    /// It ran in a session that another client may have set up.
    Elsewhere,
    TimedOut {
        /// Whether the server answered every statement except the commit.
        is_answered: bool,
    },
}

/// The commit settings that the server reported within a transaction.
#[derive(Debug)]
pub(super) struct ServerPromise {
    pub(super) standby_names: String,
    pub(super) commit_mode: String,
    pub(super) session: Option<String>,
}

impl ServerPromise {
    pub(super) fn is_of(&self, session: &str) -> bool {
        self.session.as_deref() == Some(session)
    }
}

impl<R, E> TransactionEnd<R, E> {
    /// Combines the answers to `BEGIN`, the statements and the commit. `session` is the name that was set up.
    pub(super) fn of(
        session: &str,
        begun: Result<(), E>,
        made: Result<(Vec<Vec<R>>, ServerPromise), E>,
        committed: Result<(), E>,
    ) -> Self {
        if let Err(error) = begun {
            return Self::Unbegun(error);
        }
        match made.and_then(|made| committed.map(|()| made)) {
            Ok((_, promise)) if !promise.is_of(session) => Self::Elsewhere,
            Ok((rows, promise)) => Self::Acknowledged { rows, promise },
            Err(error) => Self::Failed(error),
        }
    }

    /// The outcome, considering the notices of this transaction. `said` extracts the server's notice from an error.
    pub(super) fn fate(
        &self,
        durability: Durability,
        notices: &[SqlNotice<'_>],
        said: impl Fn(&E) -> Option<SqlNotice<'_>>,
    ) -> WriteFate {
        match self {
            Self::Acknowledged { rows, promise } => {
                let ServerPromise { standby_names, commit_mode, session: _ } = promise;
                let settings = DurabilitySettings { standby_names, commit_mode };
                let rows_written = rows.iter().map(|rows| rows.len() as u64).sum();
                fate(durability, CommitEnd::Acknowledged { notices, settings, rows_written })
            }
            Self::Failed(error) => {
                let refused = said(error).map(|error| CommitEnd::Refused { error });
                fate(durability, refused.unwrap_or(CommitEnd::Lost))
            }
            // Statements ran outside a transaction, or the server reported no settings: the commit is unknown.
            Self::Unbegun(_) | Self::Elsewhere => fate(durability, CommitEnd::Lost),
            Self::TimedOut { .. } => fate(durability, CommitEnd::TimedOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::UnknownCommitCause;

    /// `None` if the connection ended.
    type Said = Option<SqlNotice<'static>>;
    type Made = Result<(Vec<Vec<()>>, ServerPromise), Said>;

    const LOST: Said = None;
    const UNKNOWN: WriteFate = WriteFate::Unknown(UnknownCommitCause::Lost);

    const fn refused(sqlstate: &'static str) -> Said {
        Some(SqlNotice { severity: "ERROR", sqlstate })
    }

    fn made_in(session: Option<&str>) -> Made {
        let session = session.map(str::to_owned);
        Ok((vec![vec![()]], ServerPromise { standby_names: String::new(), commit_mode: "on".into(), session }))
    }

    #[track_caller]
    fn check(begun: Result<(), Said>, made: Made, committed: Result<(), Said>, expected: WriteFate) {
        let what = format!("{begun:?} {made:?} {committed:?}");
        let end = TransactionEnd::of("own", begun, made, committed);
        assert_eq!(end.fate(Durability::Single, &[], |said| *said), expected, "{what}");
    }

    #[test]
    fn n5_a_commit_is_believed_in_the_session_alone_that_was_set_up() {
        check(Ok(()), made_in(Some("own")), Ok(()), WriteFate::Done);
        for session in [Some("another's"), Some("own "), Some(""), None] {
            check(Ok(()), made_in(session), Ok(()), UNKNOWN);
        }
    }

    /// Each later statement may have been its own transaction.
    #[test]
    fn n5_what_came_behind_a_begin_that_failed_has_an_unknown_commit_whatever_was_answered() {
        for error in [refused("08P01"), refused("42601"), refused("53300"), LOST] {
            check(Err(error), made_in(Some("own")), Ok(()), UNKNOWN);
            check(Err(error), Err(refused("23505")), Ok(()), UNKNOWN);
            check(Err(error), made_in(Some("own")), Err(refused("25P01")), UNKNOWN);
            check(Err(error), Err(error), Err(error), UNKNOWN);
        }
    }

    #[test]
    fn the_first_answer_that_is_an_error_says_what_became_of_it() {
        let fatal = Some(SqlNotice { severity: "FATAL", sqlstate: "57P01" });
        for (error, expected) in [(refused("23505"), WriteFate::NotDone), (fatal, UNKNOWN), (LOST, UNKNOWN)] {
            check(Ok(()), Err(error), Ok(()), expected);
            check(Ok(()), made_in(Some("own")), Err(error), expected);
            check(Ok(()), made_in(None), Err(error), expected);
        }
        check(Ok(()), Err(refused("23505")), Err(LOST), WriteFate::NotDone);
    }
}
