//! Runs one transaction, and determines its outcome with [`TransactionEnd::fate`] alone. One round trip. The last
//! statement reads the commit settings of the server that commits, even behind a proxy.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::TryFutureExt as _;
use futures_util::future::{join_all, join4};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

use super::boot_time;
use super::health::{PostgresHealth, in_words};
use super::notices::{NoticeOffset, ReceivedNotice, as_sql};
use super::open_error::PostgresOpenError;
use super::session::Session;
use crate::metric;
use crate::replica::commit_trust::fate;
use crate::replica::{BootTime, CommitEnd, Durability, DurabilitySettings, SqlNotice, UnknownCommitCause, WriteFate};

/// Writes only to the log, so it waits for no writer. Proves that earlier reads from the same server are durable.
pub(super) const DURABILITY_PROOF: &str = "SELECT pg_logical_emit_message(true, 'taskgate', '')";

pub(super) type Parameters<'a> = Vec<&'a (dyn ToSql + Sync)>;

#[derive(Debug)]
pub(super) struct MadeTransaction {
    pub(super) rows: Vec<Vec<Row>>,
    pub(super) sent: BootTime,
}

impl MadeTransaction {
    pub(super) fn row(&self) -> Option<&Row> {
        self.rows.iter().flatten().next()
    }
}

#[derive(Debug)]
pub(super) enum CommitFailure {
    /// Nothing was written, and nothing will be.
    NotMade(Error),
    /// The transaction may be committed, now or later, and may be rolled back.
    Unknown { cause: UnknownCommitCause, why: String, is_answered: bool },
}

impl CommitFailure {
    pub(super) fn code(&self) -> Option<&str> {
        if let Self::NotMade(error) = self { error.code().map(|code| code.code()) } else { None }
    }

    pub(super) const fn wrote_nothing(&self) -> bool {
        matches!(self, Self::Unknown { cause: UnknownCommitCause::WroteNothing, .. })
    }

    pub(super) fn health(&self) -> PostgresHealth {
        match self {
            Self::NotMade(error) => PostgresHealth::of(error),
            Self::Unknown { cause: UnknownCommitCause::Unreplicated, .. } => PostgresHealth::NoStandby,
            // The commit was cancelled while it waited for a standby.
            Self::Unknown { cause: UnknownCommitCause::Warned, why, .. } => PostgresHealth::Behind(why.clone()),
            Self::Unknown { cause: UnknownCommitCause::TimedOut, why, is_answered: true } => {
                PostgresHealth::Behind(why.clone())
            }
            Self::Unknown { why, .. } => PostgresHealth::Unavailable(why.clone()),
        }
    }

    pub(super) fn open_error(self) -> PostgresOpenError {
        match self {
            // It was committed, but with settings that do not wait for a standby.
            Self::Unknown { cause: UnknownCommitCause::Unreplicated, .. } => PostgresOpenError::NoStandby,
            Self::Unknown { .. } | Self::NotMade(_) => PostgresOpenError::Unavailable(self.health()),
        }
    }
}

impl std::fmt::Display for CommitFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotMade(error) => f.write_str(&in_words(error)),
            Self::Unknown { why, .. } => f.write_str(why),
        }
    }
}

pub(super) fn count_barrier() {
    metrics::counter!(metric::DATABASE_BARRIERS).increment(1);
}

/// Each statement returns at least one row if it writes one. Dropping leaves the outcome unknown; drop the session too.
pub(super) async fn transact(
    session: &Session,
    statements: &[(&Statement, Parameters<'_>)],
) -> Result<MadeTransaction, CommitFailure> {
    let (offset, sent) = (session.notices.offset(), boot_time());
    // The gateway has its own time-out, and drops the connection after a failure.
    let is_answered = AtomicBool::new(false);
    let ended = tokio::time::timeout(session.settings.access.write_max, run(session, statements, &is_answered)).await;
    let timed_out = |_| TransactionEnd::TimedOut { is_answered: is_answered.load(Ordering::Relaxed) };
    let made = judge(session, ended.unwrap_or_else(timed_out), offset);
    let mut trust = session.trust.lock();
    match &made {
        Ok(_) => trust.write_passed(session.server, sent),
        Err(CommitFailure::Unknown { .. }) => trust.write_unknown(boot_time()),
        Err(CommitFailure::NotMade(_)) => (),
    }
    drop(trust);
    made.map(|rows| MadeTransaction { rows, sent })
}

/// Sets `is_answered` once only the commit is outstanding.
async fn run(
    session: &Session,
    statements: &[(&Statement, Parameters<'_>)],
    is_answered: &AtomicBool,
) -> TransactionEnd<Row, Error> {
    let client = &session.client;
    let queries = statements.iter().map(|(statement, values)| client.query(*statement, values));
    let (begun, found, promised, committed) = join4(
        client.batch_execute("BEGIN"),
        join_all(queries),
        client.query_one(&session.promise, &[]).inspect_ok(|_| is_answered.store(true, Ordering::Relaxed)),
        client.batch_execute("COMMIT"),
    )
    .await;
    let rows = found.into_iter().collect::<Result<Vec<_>, _>>();
    let made = rows.and_then(|rows| Ok((rows, promise_of(&promised?))));
    TransactionEnd::of(&session.name, begun, made, committed)
}

/// Reads the server's promise. Missing values promise nothing.
pub(super) fn promise_of(answer: &Row) -> ServerPromise {
    let text = |at| answer.try_get::<_, Option<String>>(at).ok().flatten();
    let (standby_names, commit_mode) = (text(0).unwrap_or_default(), text(1).unwrap_or_default());
    ServerPromise { standby_names, commit_mode, session: text(2) }
}

fn judge(
    session: &Session,
    ended: TransactionEnd<Row, Error>,
    begun_at: NoticeOffset,
) -> Result<Vec<Vec<Row>>, CommitFailure> {
    let notices = session.notices.since(begun_at);
    let notices: Vec<_> = notices.iter().map(ReceivedNotice::as_sql).collect();
    let fate = ended.fate(session.settings.access.durability, &notices, |error| error.as_db_error().map(as_sql));
    match (fate, ended) {
        (WriteFate::Done, TransactionEnd::Acknowledged { rows, .. }) => Ok(rows),
        (WriteFate::NotDone, TransactionEnd::Failed(error)) => Err(CommitFailure::NotMade(error)),
        (fate, ended) => Err(unknown(fate, ended)),
    }
}

fn unknown(fate: WriteFate, ended: TransactionEnd<Row, Error>) -> CommitFailure {
    let cause = if let WriteFate::Unknown(cause) = fate { cause } else { UnknownCommitCause::Lost };
    let (why, is_answered) = match ended {
        TransactionEnd::Failed(error) | TransactionEnd::Unbegun(error) => (in_words(&error), false),
        TransactionEnd::Elsewhere => (PostgresOpenError::Pooled.to_string(), false),
        TransactionEnd::TimedOut { is_answered: true } => ("commits wait, as if for a standby".to_owned(), true),
        TransactionEnd::TimedOut { is_answered: false } | TransactionEnd::Acknowledged { .. } => {
            (cause_in_words(cause).to_owned(), false)
        }
    };
    CommitFailure::Unknown { cause, why, is_answered }
}

const fn cause_in_words(cause: UnknownCommitCause) -> &'static str {
    match cause {
        UnknownCommitCause::Warned => "the commit was acknowledged with a warning",
        UnknownCommitCause::Unreplicated => "the database's server names no synchronous standby",
        UnknownCommitCause::WroteNothing => "the transaction wrote nothing",
        UnknownCommitCause::Lost => "the connection ended",
        UnknownCommitCause::TimedOut => "the database takes too long",
    }
}

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
    fn n5_statements_after_a_failed_begin_have_an_unknown_commit_after_any_answer() {
        for error in [refused("08P01"), refused("42601"), refused("53300"), LOST] {
            check(Err(error), made_in(Some("own")), Ok(()), UNKNOWN);
            check(Err(error), Err(refused("23505")), Ok(()), UNKNOWN);
            check(Err(error), made_in(Some("own")), Err(refused("25P01")), UNKNOWN);
            check(Err(error), Err(error), Err(error), UNKNOWN);
        }
    }

    #[test]
    fn the_first_error_among_the_answers_decides_the_commit() {
        let fatal = Some(SqlNotice { severity: "FATAL", sqlstate: "57P01" });
        for (error, expected) in [(refused("23505"), WriteFate::NotDone), (fatal, UNKNOWN), (LOST, UNKNOWN)] {
            check(Ok(()), Err(error), Ok(()), expected);
            check(Ok(()), made_in(Some("own")), Err(error), expected);
            check(Ok(()), made_in(None), Err(error), expected);
        }
        check(Ok(()), Err(refused("23505")), Err(LOST), WriteFate::NotDone);
    }
}
