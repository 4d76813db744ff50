//! Finds out whether something between lends out sessions of the server's by the transaction.
//!
//! A session is set up once, and all that is known of commits rests on that: that warnings are heard, and that what a barrier
//! proves was shown by the server that made it. Poolers that keep a session for its client as long as that is connected change
//! nothing of it. Through others each transaction may find a session that another client has set up, on another server even.

use super::open_error::PostgresOpenError;
use super::session::{DatabaseConnector, Session, arrival_error, in_time};
use super::transaction::promise_of;

/// Each of them finds a pooler unless other clients happen to take and return sessions in an order that hides it.
const ROUNDS: usize = 3;

/// Has a second connection take the place of the first one, as far as that can be: a pooler that lends sessions by the
/// transaction gives it the one that was returned last.
///
/// # Errors
/// `Pooled`, and as [`DatabaseConnector::connect`].
pub(super) async fn judge(connector: &DatabaseConnector, session: &Session) -> Result<(), PostgresOpenError> {
    let beside = connector.connect("beside", None).await?;
    let probing = async {
        for _ in 0..ROUNDS {
            is_kept(session).await?;
            beside.client.batch_execute("BEGIN").await.map_err(arrival_error)?;
            is_kept(session).await?;
            beside.client.batch_execute("ROLLBACK").await.map_err(arrival_error)?;
        }
        is_kept(&beside).await
    };
    in_time(connector.write_max(), probing).await
}

async fn is_kept(session: &Session) -> Result<(), PostgresOpenError> {
    let found = session.client.query_one(&session.promise, &[]).await.map_err(arrival_error)?;
    if promise_of(&found).is_of(&session.name) { Ok(()) } else { Err(PostgresOpenError::Pooled) }
}
