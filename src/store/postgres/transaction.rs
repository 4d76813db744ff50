//! Makes one transaction, and says what is known of it afterwards.
//!
//! All its statements are sent at once: one way there and back. Its last one before the commit asks what the server promises
//! about commits, so that the answer is true of the server that commits, whatever lies between.

use std::io;

use futures_util::future::{join, join_all, join4};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

use super::session::{Session, in_words};
use super::settings::Durability;
use crate::replica::DurabilitySettings;
use crate::replica::commit_trust::is_promised_by;

/// Asked in each transaction (see the module).
pub(super) const PROMISE: &str =
    "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')";

pub(super) type Parameters<'a> = Vec<&'a (dyn ToSql + Sync)>;

/// What is known of a transaction that cannot be told to have been made.
#[derive(Debug)]
pub(super) enum CommitFailure {
    /// Nothing of it was made, and nothing will be.
    NotMade(Error),
    /// It was made, or was not, or may be taken back.
    Unsure(io::Error),
    /// It was made by a server that names no standby, where one is needed.
    NoStandby,
}

impl CommitFailure {
    /// The name that PostgreSQL gives the cause, if it is the one who says so.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Self::NotMade(error) => error.code().map(|code| code.code()),
            Self::Unsure(_) | Self::NoStandby => None,
        }
    }

    pub(super) fn into_io(self) -> io::Error {
        match self {
            Self::NotMade(error) => io::Error::other(in_words(&error)),
            Self::Unsure(error) => error,
            Self::NoStandby => io::Error::other("the database's server names no synchronous standby"),
        }
    }
}

/// Makes a transaction of these statements, and returns the rows of each.
///
/// # Errors
/// See [`CommitFailure`]. Dropping the future leaves open whether it is made; the session is to be dropped with it.
pub(super) async fn transact(
    session: &Session,
    promise: &Statement,
    durability: Durability,
    statements: &[(&Statement, Parameters<'_>)],
) -> Result<Vec<Vec<Row>>, CommitFailure> {
    let client = &session.client;
    let warnings = session.warnings();
    let queries = statements.iter().map(|(statement, values)| client.query(*statement, values));
    let (begun, found, promised, committed) = join4(
        client.batch_execute("BEGIN"),
        join_all(queries),
        client.query_one(promise, &[]),
        client.batch_execute("COMMIT"),
    )
    .await;
    let mut rows = Vec::with_capacity(statements.len());
    let mut failed = begun.err();
    for one in found {
        match one {
            Ok(found) => rows.push(found),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let promised = match promised {
        Ok(row) => Some(row),
        Err(error) => {
            failed = failed.or(Some(error));
            None
        }
    };
    judge(failed, committed, session.warnings() != warnings)?;
    let is_kept = promised.is_some_and(|row| {
        let text = |at| row.try_get::<_, String>(at).unwrap_or_default();
        keeps_promise(durability, &text(0), &text(1))
    });
    if is_kept { Ok(rows) } else { Err(CommitFailure::NoStandby) }
}

/// What is known of a commit by how its statements, itself, and the server's warnings ended (rules 1, 2 and 5).
fn judge(failed: Option<Error>, committed: Result<(), Error>, has_warned: bool) -> Result<(), CommitFailure> {
    let unsure = |what: String| Err(CommitFailure::Unsure(io::Error::other(what)));
    match (failed, committed) {
        // What a statement refuses is undone, and what is undone waits for nobody.
        (Some(error), Ok(())) if error.as_db_error().is_some() => Err(CommitFailure::NotMade(error)),
        (_, Err(error)) | (Some(error), Ok(())) => unsure(in_words(&error)),
        (None, Ok(())) if has_warned => unsure("the commit was acknowledged with a warning".to_owned()),
        (None, Ok(())) => Ok(()),
    }
}

/// Whether the settings that a server commits by promise what the operator wants (rule 6).
fn keeps_promise(durability: Durability, standby_names: &str, commit_mode: &str) -> bool {
    is_promised_by(durability, DurabilitySettings { standby_names, commit_mode })
}

/// Reads, and proves afterwards that what was read is durable: a write of its own, acknowledged without a warning by the
/// server that was read from (rules 4 and 6). It writes to the log alone, so that it waits for no other writer.
pub(super) const BARRIER: &str = "SELECT pg_logical_emit_message(true, 'taskgate', '')";

/// Makes a barrier.
///
/// # Errors
/// If what the session has read so far may be taken back.
pub(super) async fn barrier(
    session: &Session,
    promise: &Statement,
    durability: Durability,
) -> Result<(), CommitFailure> {
    let client = &session.client;
    let warnings = session.warnings();
    let (sent, promised) = join(client.batch_execute(BARRIER), client.query_one(promise, &[])).await;
    judge(None, sent, session.warnings() != warnings)?;
    let row = promised.map_err(CommitFailure::NotMade)?;
    let text = |at| row.try_get::<_, String>(at).unwrap_or_default();
    if keeps_promise(durability, &text(0), &text(1)) { Ok(()) } else { Err(CommitFailure::NoStandby) }
}
