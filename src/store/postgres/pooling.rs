//! Detects a pooler that lends out server sessions by the transaction.
//!
//! Every conclusion about commits relies on the setup of the session: warnings arrive, and a barrier proves the reads
//! of the same server. With transaction pooling, each transaction may run in a session that another client has set up,
//! even on another server.

use super::open_error::PostgresOpenError;
use super::session::{DatabaseConnector, Session, arrival_error, in_time};
use super::transaction::promise_of;

/// A pooler is missed if other clients take and return sessions in an order that hides it.
const ROUNDS: usize = 3;

/// Tries to make a second connection take over the session of the first: a pooler in transaction mode lends it the
/// session that was returned last. `Pooled`, and as [`DatabaseConnector::connect`].
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
