//! Makes one transaction, and says what is known of it afterwards: by [`fate`] alone.
//!
//! All its statements are sent at once: one way there and back. Its last one before the commit asks what the server promises
//! about commits, so that the answer is true of the server that commits, whatever lies between.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::TryFutureExt as _;
use futures_util::future::{join_all, join4};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

use super::health::PostgresHealth;
use super::notices::{NoticePlace, ReceivedNotice, severity};
use super::open_error::PostgresOpenError;
use super::server_words::in_words;
use super::session::Session;
use super::shared_clock::boot_time;
use crate::metric;
use crate::replica::commit_trust::fate;
use crate::replica::{BootTime, CommitEnd, DurabilitySettings, SqlNotice, WriteDoubt, WriteFate};

/// Writes to the log alone, so that it waits for no other writer. Acknowledged, it proves that what the server showed before
/// is durable (rules 4 and 6).
pub(super) const BARRIER: &str = "SELECT pg_logical_emit_message(true, 'taskgate', '')";

pub(super) type Parameters<'a> = Vec<&'a (dyn ToSql + Sync)>;

/// A transaction that was made.
#[derive(Debug)]
pub(super) struct MadeTransaction {
    /// Of each statement.
    pub(super) rows: Vec<Vec<Row>>,
    pub(super) sent: BootTime,
}

impl MadeTransaction {
    /// The first row of all.
    pub(super) fn row(&self) -> Option<&Row> {
        self.rows.iter().flatten().next()
    }
}

/// What is known of a transaction that cannot be told to have been made.
#[derive(Debug)]
pub(super) enum CommitFailure {
    /// Nothing of it was made, and nothing will be.
    NotMade(Error),
    /// It was made, or was not, or may be taken back.
    Unsure {
        doubt: WriteDoubt,
        why: String,
        /// Whether the server answered all of it but for the commit.
        is_answered: bool,
    },
}

impl CommitFailure {
    /// The name that PostgreSQL gives the cause, if it is the one who says so.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Self::NotMade(error) => error.code().map(|code| code.code()),
            Self::Unsure { .. } => None,
        }
    }

    /// Whether it was made but for the settings of the server.
    const fn is_unreplicated(&self) -> bool {
        matches!(self, Self::Unsure { doubt: WriteDoubt::Unreplicated, .. })
    }

    pub(super) const fn wrote_nothing(&self) -> bool {
        matches!(self, Self::Unsure { doubt: WriteDoubt::WroteNothing, .. })
    }

    /// What it says of the store.
    pub(super) fn health(&self) -> PostgresHealth {
        match self {
            Self::NotMade(error) => PostgresHealth::of(error),
            Self::Unsure { doubt: WriteDoubt::Unreplicated, .. } => PostgresHealth::NoStandby,
            // Whoever cancelled the commit cancelled its wait.
            Self::Unsure { doubt: WriteDoubt::Warned, why, .. } => PostgresHealth::Behind(why.clone()),
            Self::Unsure { doubt: WriteDoubt::TimedOut, why, is_answered: true } => PostgresHealth::Behind(why.clone()),
            Self::Unsure { why, .. } => PostgresHealth::Away(why.clone()),
        }
    }

    /// What it says to whoever wants to begin.
    pub(super) fn open_error(&self) -> PostgresOpenError {
        if self.is_unreplicated() { PostgresOpenError::NoStandby } else { PostgresOpenError::Away(self.health()) }
    }
}

impl std::fmt::Display for CommitFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotMade(error) => f.write_str(&in_words(error)),
            Self::Unsure { why, .. } => f.write_str(why),
        }
    }
}

/// A transaction that wrote for its acknowledgement alone was acknowledged.
pub(super) fn count_barrier() {
    metrics::counter!(metric::DATABASE_BARRIERS).increment(1);
}

/// How a transaction ended, and the error that says so.
enum TransactionEnd {
    Acknowledged {
        rows: Vec<Vec<Row>>,
        promise: Row,
    },
    /// A statement, or the commit, failed.
    Failed(Error),
    /// It is not even known whether it was one transaction.
    Unbegun(Error),
    /// It was made in a session that somebody else may have set up.
    Elsewhere,
    TimedOut {
        is_answered: bool,
    },
}

/// Makes a transaction of these statements, each of which returns a row at least if it writes one, and none if it does not.
///
/// # Errors
/// See [`CommitFailure`]. Dropping the future leaves open whether it is made; the session is to be dropped with it.
pub(super) async fn transact(
    session: &Session,
    statements: &[(&Statement, Parameters<'_>)],
) -> Result<MadeTransaction, CommitFailure> {
    let (place, sent) = (session.notices.place(), boot_time());
    // The time-out is the gateway's own (rule 1): whoever sees the failure drops the connection.
    let is_answered = AtomicBool::new(false);
    let ended = tokio::time::timeout(session.settings.access.write_max, run(session, statements, &is_answered)).await;
    let timed_out = |_| TransactionEnd::TimedOut { is_answered: is_answered.load(Ordering::Relaxed) };
    let made = judge(session, ended.unwrap_or_else(timed_out), place);
    let mut trust = session.trust.lock();
    match &made {
        Ok(_) => trust.write_passed(session.server, sent),
        Err(CommitFailure::Unsure { .. }) => trust.write_unsure(boot_time()),
        Err(CommitFailure::NotMade(_)) => (),
    }
    drop(trust);
    made.map(|rows| MadeTransaction { rows, sent })
}

/// Says in `is_answered` that only the commit is waited for.
async fn run(
    session: &Session,
    statements: &[(&Statement, Parameters<'_>)],
    is_answered: &AtomicBool,
) -> TransactionEnd {
    let client = &session.client;
    let queries = statements.iter().map(|(statement, values)| client.query(*statement, values));
    let (begun, found, promised, committed) = join4(
        client.batch_execute("BEGIN"),
        join_all(queries),
        client.query_one(&session.promise, &[]).inspect_ok(|_| is_answered.store(true, Ordering::Relaxed)),
        client.batch_execute("COMMIT"),
    )
    .await;
    if let Err(error) = begun {
        return TransactionEnd::Unbegun(error);
    }
    let rows = found.into_iter().collect::<Result<Vec<_>, _>>();
    let made = rows.and_then(|rows| Ok((rows, promised?)));
    match made.and_then(|made| committed.map(|()| made)) {
        Ok((_, promise)) if !session.is_same(&promise) => TransactionEnd::Elsewhere,
        Ok((rows, promise)) => TransactionEnd::Acknowledged { rows, promise },
        Err(error) => TransactionEnd::Failed(error),
    }
}

/// Says what became of a transaction that was sent as a whole, with its commit.
fn judge(session: &Session, ended: TransactionEnd, begun: NoticePlace) -> Result<Vec<Vec<Row>>, CommitFailure> {
    let (is_commit_sent, notices) = (true, session.notices.since(begun));
    let notices: Vec<_> = notices.iter().map(ReceivedNotice::as_sql).collect();
    let fate = |end| fate(session.settings.access.durability, end);
    let (fate, rows, error) = match ended {
        TransactionEnd::Acknowledged { rows, promise } => {
            let text = |at| promise.try_get::<_, String>(at).unwrap_or_default();
            let (standby_names, commit_mode) = (text(0), text(1));
            let settings = DurabilitySettings { standby_names: &standby_names, commit_mode: &commit_mode };
            let rows_written = rows.iter().map(|rows| rows.len() as u64).sum();
            (fate(CommitEnd::Acknowledged { notices: &notices, settings, rows_written }), Some(rows), None)
        }
        TransactionEnd::Failed(error) => {
            let end = error.as_db_error().map_or(CommitEnd::Lost { is_commit_sent }, |said| CommitEnd::Refused {
                error: SqlNotice { severity: severity(said), sqlstate: said.code().code() },
                is_commit_sent,
            });
            (fate(end), None, Some(error))
        }
        // What it was acknowledged without may not have been said there.
        TransactionEnd::Elsewhere => {
            let (doubt, why) =
                (doubt_of(fate(CommitEnd::Lost { is_commit_sent })), PostgresOpenError::Pooled.to_string());
            return Err(CommitFailure::Unsure { doubt, why, is_answered: false });
        }
        // What came behind was then carried out statement by statement.
        TransactionEnd::Unbegun(error) => (fate(CommitEnd::Lost { is_commit_sent }), None, Some(error)),
        TransactionEnd::TimedOut { is_answered } => {
            let doubt = fate(CommitEnd::TimedOut { is_commit_sent });
            return Err(unsure(doubt, None, is_answered));
        }
    };
    match (fate, rows, error) {
        (WriteFate::Done, Some(rows), _) => Ok(rows),
        (WriteFate::NotDone, _, Some(error)) => Err(CommitFailure::NotMade(error)),
        (fate, _, error) => Err(unsure(fate, error.as_ref(), false)),
    }
}

fn unsure(fate: WriteFate, error: Option<&Error>, is_answered: bool) -> CommitFailure {
    let doubt = doubt_of(fate);
    let why = match error {
        Some(error) => in_words(error),
        None if is_answered => "commits wait, as if for a standby".to_owned(),
        None => doubt_in_words(doubt).to_owned(),
    };
    CommitFailure::Unsure { doubt, why, is_answered }
}

const fn doubt_of(fate: WriteFate) -> WriteDoubt {
    if let WriteFate::Unsure(doubt) = fate { doubt } else { WriteDoubt::Lost }
}

const fn doubt_in_words(doubt: WriteDoubt) -> &'static str {
    match doubt {
        WriteDoubt::Warned => "the commit was acknowledged with a warning",
        WriteDoubt::Unreplicated => "the database's server names no synchronous standby",
        WriteDoubt::WroteNothing => "the transaction wrote nothing",
        WriteDoubt::Lost => "the connection ended",
        WriteDoubt::TimedOut => "the database takes too long",
    }
}
