//! Makes one transaction, and says what is known of it afterwards: by [`TransactionEnd::fate`] alone.
//!
//! All its statements are sent at once: one way there and back. Its last one before the commit asks what the server promises
//! about commits, so that the answer is true of the server that commits, whatever lies between.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::TryFutureExt as _;
use futures_util::future::{join_all, join4};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

use super::health::PostgresHealth;
use super::notices::{NoticePlace, ReceivedNotice, as_sql};
use super::open_error::PostgresOpenError;
use super::server_words::in_words;
use super::session::Session;
use super::shared_clock::boot_time;
use super::transaction_end::{ServerPromise, TransactionEnd};
use crate::metric;
use crate::replica::{BootTime, WriteDoubt, WriteFate};

/// Writes to the log alone, so that it waits for no other writer. Acknowledged, it proves that what the server showed before
/// is durable (rules 4 and 6).
pub(super) const DURABILITY_PROOF: &str = "SELECT pg_logical_emit_message(true, 'taskgate', '')";

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

/// What is missing is promised by nobody.
pub(super) fn promise_of(answer: &Row) -> ServerPromise {
    let text = |at| answer.try_get::<_, Option<String>>(at).ok().flatten();
    let (standby_names, commit_mode) = (text(0).unwrap_or_default(), text(1).unwrap_or_default());
    ServerPromise { standby_names, commit_mode, session: text(2) }
}

/// Says what became of a transaction that was sent as a whole, with its commit.
fn judge(
    session: &Session,
    ended: TransactionEnd<Row, Error>,
    begun: NoticePlace,
) -> Result<Vec<Vec<Row>>, CommitFailure> {
    let notices = session.notices.since(begun);
    let notices: Vec<_> = notices.iter().map(ReceivedNotice::as_sql).collect();
    let fate = ended.fate(session.settings.access.durability, &notices, |error| error.as_db_error().map(as_sql));
    match (fate, ended) {
        (WriteFate::Done, TransactionEnd::Acknowledged { rows, .. }) => Ok(rows),
        (WriteFate::NotDone, TransactionEnd::Failed(error)) => Err(CommitFailure::NotMade(error)),
        (fate, ended) => Err(unsure(fate, ended)),
    }
}

fn unsure(fate: WriteFate, ended: TransactionEnd<Row, Error>) -> CommitFailure {
    let doubt = if let WriteFate::Unsure(doubt) = fate { doubt } else { WriteDoubt::Lost };
    let (why, is_answered) = match ended {
        TransactionEnd::Failed(error) | TransactionEnd::Unbegun(error) => (in_words(&error), false),
        TransactionEnd::Elsewhere => (PostgresOpenError::Pooled.to_string(), false),
        TransactionEnd::TimedOut { is_answered: true } => ("commits wait, as if for a standby".to_owned(), true),
        TransactionEnd::TimedOut { is_answered: false } | TransactionEnd::Acknowledged { .. } => {
            (doubt_in_words(doubt).to_owned(), false)
        }
    };
    CommitFailure::Unsure { doubt, why, is_answered }
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
