//! Begins the life of a gateway in the database.

use std::sync::Arc;

use super::columns::holder;
use super::control::{self, BEGIN, ReplicaView};
use super::open_error::PostgresOpenError;
use super::schema;
use super::session::{DatabaseConnector, in_words};
use super::settings::{PostgresSettings, ReplicaDescription};
use super::state::StoreState;
use super::transaction::{CommitFailure, PROMISE, Parameters, transact};
use crate::replica::Incarnation;
use crate::store::record;

/// What a new life is told when it begins.
pub(super) struct Beginning {
    pub(super) holder: Incarnation,
    pub(super) generation: String,
}

/// Begins a life: looks at the server, makes the schema if there is none, and writes the life's line.
pub(super) async fn begin(
    connector: &DatabaseConnector,
    settings: &Arc<PostgresSettings>,
    now_ms: i64,
) -> Result<(Beginning, StoreState, ReplicaView), PostgresOpenError> {
    let away = |error: tokio_postgres::Error| PostgresOpenError::Away(in_words(&error));
    let session = connector.connect("opening", None).await?;
    schema::judge_server(&session, settings.durability).await?;
    schema::prepare(&session, settings).await?;
    let line = session.client.prepare(BEGIN).await.map_err(away)?;
    let promise = session.client.prepare(PROMISE).await.map_err(away)?;
    let ReplicaDescription { name, address, version, config_digest, key_print } = &settings.replica;
    let reads = i32::from(record::VERSION);
    let values: Parameters<'_> = vec![name, address, version, &reads, config_digest, key_print, &now_ms];
    let rows = transact(&session, &promise, settings.durability, &[(&line, values)]).await;
    let rows = rows.map_err(|failure| match failure {
        CommitFailure::NoStandby => PostgresOpenError::NoStandby,
        CommitFailure::NotMade(_) | CommitFailure::Unsure(_) => PostgresOpenError::Away(failure.into_io().to_string()),
    })?;
    let row = rows.iter().flatten().next().ok_or_else(|| PostgresOpenError::Away("no line was written".to_owned()))?;
    let begun = Beginning { holder: holder(row.try_get(0).map_err(away)?), generation: row.try_get(1).map_err(away)? };
    let state = StoreState::new(Arc::clone(settings), begun.holder);
    let view = control::look_once(&session, &state).await.map_err(away)?;
    Ok((begun, state, view))
}
