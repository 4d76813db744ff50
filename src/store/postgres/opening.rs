//! Registers a new incarnation: reads the others' rows, adopts their task time, inserts its row.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::columns::{holder, holder_column, time};
use super::control::OTHERS_SUMS;
use super::open_error::{PostgresOpenError, unavailable};
use super::replica_rows::{
    ReplicaView, StoredReplica, declare_dead, generation_of, generation_text, log_declared_dead, read_replicas,
    row_time,
};
use super::session::{DatabaseConnector, Session, arrival_error, in_time};
use super::settings::{KEY_PRINT_LEN, PostgresSettings, PriorIncarnation, ReplicaDescription};
use super::state::StoreState;
use super::sums::SumChange;
use super::transaction::{CommitFailure, DURABILITY_PROOF, Parameters, promise_of, transact};
use super::writer::WriterLink;
use super::{SharedClock, boot_time, schema};
use crate::replica::membership::HEARTBEAT_INTERVAL_MAX;
use crate::replica::{ClockStart, Incarnation, Membership, ReplicaRow, StoreGeneration, TaskClock};
use crate::store::clock_trust::{ClockTrust, DISTRUST, RESET};
use crate::store::record;
use crate::task::Clock as _;

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time that a heartbeat may take, beyond the heartbeat interval.
const HEARTBEAT_MAX: Duration = Duration::from_secs(1);

const REGISTER: &str = "WITH made AS (
        INSERT INTO tg_replica (name, address, version, record_reads, config_digest, key_print, now_ms)
        VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING incarnation),
    lane AS (INSERT INTO tg_lane (incarnation, epoch) SELECT incarnation, 0 FROM made)
    SELECT incarnation FROM made";
/// The store's generation, and whether it knows incarnation `$1` by its lane, or by a later one that was removed
/// ([`super::statements`]). The sequence proves nothing: a restored one skips numbers. Later rows may be new.
const IDENTITY: &str = "SELECT generation::text, EXISTS (
        SELECT FROM tg_lane l WHERE l.incarnation = $1 OR l.incarnation > $1
            AND NOT EXISTS (SELECT FROM tg_replica r WHERE r.incarnation = l.incarnation))
    FROM tg_meta";
/// The server's time, the store's last use (the last heartbeat with a trusted time, or a slightly later write), and the
/// latest expiry. Tasks that were created, or ended, later have a wrong expiry; with such tasks alone the store is not empty.
const TIMES: &str = "WITH beat AS (SELECT max(now_ms) AS last FROM tg_replica WHERE now_ms > 0)
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8,
        greatest(last, (SELECT max(created) FROM tg_task WHERE created <= last + 10000)),
        greatest((SELECT max(expires) FROM tg_task WHERE settled AND updated <= last + 10000),
            (SELECT max(expires) FROM tg_task WHERE NOT settled AND created <= last + 10000),
            (SELECT last + 10001 FROM tg_task LIMIT 1))
    FROM beat";
/// Corrects last-use times that lie after the server's clock.
const RESET_TIMES: &str = "UPDATE tg_replica SET now_ms = (extract(epoch FROM clock_timestamp()) * 1000)::int8
    WHERE now_ms > (extract(epoch FROM clock_timestamp()) * 1000)::int8 RETURNING 1";

pub(super) struct Beginning {
    pub(super) membership: Membership,
    pub(super) generation: StoreGeneration,
    pub(super) clock: SharedClock,
    pub(super) state: StoreState,
    pub(super) view: ReplicaView,
}

/// Checks the server, creates a missing schema, and inserts this incarnation's row once its writer is connected, so
/// that failed tries leave no rows: the writer may wait for an earlier one. Fails as [`super::PostgresStore::open`].
pub(super) async fn begin(
    connector: &DatabaseConnector,
    settings: &Arc<PostgresSettings>,
) -> Result<(Beginning, WriterLink), PostgresOpenError> {
    // A connection has this long for each address. Waits for a healthy database or another's heartbeat take no longer.
    let within = settings.access.write_max * 2 + settings.terms.lease();
    let session = connector.connect("opening", None).await?;
    detect_pooler(connector, &session).await?;
    in_time(within, schema::judge_server(&session, settings.access.durability)).await?;
    schema::prepare(&session, settings, within).await?;
    let writer = connector.connect("writer", None).await?;
    let beginning = in_time(within, join(&session, settings)).await?;
    match Box::pin(WriterLink::of(writer, &beginning.state)).await {
        Ok(writer) => Ok((beginning, writer)),
        Err(error) => {
            // Else it would count as a living replica for a lease, and each retry would add one.
            let declaring = declare_dead(&session, beginning.state.holder, None);
            let _ = tokio::time::timeout(settings.access.write_max * 2, declaring).await;
            Err(error)
        }
    }
}

async fn join(session: &Session, settings: &Arc<PostgresSettings>) -> Result<Beginning, PostgresOpenError> {
    // Reads of a fresh connection may be rolled back by a failover.
    let proof = session.client.prepare(DURABILITY_PROOF).await.map_err(unavailable)?;
    transact(session, &[(&proof, vec![])]).await.map_err(CommitFailure::open_error)?;
    let former = former_row(session, settings).await?;
    let generation = check_identity(session, settings, former.as_ref()).await?;
    if let (Some(former), Some(prior)) = (former, settings.prior)
        && prior.generation == generation
        && declare_dead(session, former.incarnation, None).await.map_err(CommitFailure::open_error)?
    {
        tracing::info!(incarnation = %prior.holder, "the incarnation before this one did not end in order; its tasks are taken over");
    }
    let living = living(session, settings).await?;
    if living.iter().any(|one| one.row.name == settings.replica.name) {
        return Err(PostgresOpenError::NameTaken { name: settings.replica.name.clone() });
    }
    reset_clock(session, settings, &living).await?;
    let (start, trust) = clock_start(session, &living).await?;
    let clock = SharedClock(parking_lot::Mutex::new(TaskClock::new(start.begin(), boot_time())));
    let sent = boot_time();
    let own = register(session, settings, row_time(clock.now(), trust)).await?;
    let membership = Membership::registered(settings.terms, own, generation, sent, boot_time());
    let state = StoreState::new(Arc::clone(settings), own, trust);
    let view = ReplicaView::of(read_replicas(session).await.map_err(unavailable)?, boot_time());
    let sums = session.client.query(OTHERS_SUMS, &[&holder_column(own)]).await.map_err(unavailable)?;
    state.sums.reset_others(SumChange::all(&sums).map_err(unavailable)?);
    Ok(Beginning { membership, generation, clock, state, view })
}

/// The row of the process before this one, if it exists. A restored store may have given another replica its number.
async fn former_row(session: &Session, settings: &PostgresSettings) -> Result<Option<ReplicaRow>, PostgresOpenError> {
    let Some(prior) = settings.prior else { return Ok(None) };
    let rows = read_replicas(session).await.map_err(unavailable)?.into_iter().map(|one| one.row);
    Ok(rows.into_iter().find(|row| row.incarnation == prior.holder && row.name == settings.replica.name))
}

/// Whether the store is the one that the earlier process knew, and no older than at that time.
async fn check_identity(
    session: &Session,
    settings: &PostgresSettings,
    former: Option<&ReplicaRow>,
) -> Result<StoreGeneration, PostgresOpenError> {
    let prior = settings.prior.map(|prior| holder_column(prior.holder));
    let row = session.client.query_one(IDENTITY, &[&prior]).await.map_err(unavailable)?;
    let text: String = row.try_get(0).map_err(unavailable)?;
    let knows_prior: bool = row.try_get(1).map_err(unavailable)?;
    let generation =
        generation_of(&text).ok_or_else(|| PostgresOpenError::Refused("it has no generation".to_owned()))?;
    let is_same = |prior: &PriorIncarnation| {
        prior.generation == generation && knows_prior && former.is_none_or(|former| former.heartbeat >= prior.heartbeat)
    };
    let is_lost = settings.prior.is_some_and(|prior| !is_same(&prior));
    match (is_lost, settings.access.accept_loss == Some(generation)) {
        (true, false) => return Err(PostgresOpenError::Lost { generation: generation_text(generation) }),
        (true, true) => tracing::warn!(
            "the database is another one than before, or was restored from a backup; it is used because `accept_loss` in [store] \
             allows it. Remove `accept_loss`: it also allows the next loss"
        ),
        (false, true) => {
            tracing::warn!("remove `accept_loss` from [store]: it also allows the next loss of this database")
        }
        (false, false) => (),
    }
    Ok(generation)
}

struct SeenHeartbeat {
    heartbeat: u64,
    at: Instant,
}

/// The other replicas that send a heartbeat within one interval; silent rows may be old. A replica with keys that do
/// not fit is watched until a heartbeat, an error (`SealKeys`), or until the lease ran out: then it is dead.
async fn living(session: &Session, settings: &PostgresSettings) -> Result<Vec<StoredReplica>, PostgresOpenError> {
    let until = Instant::now() + HEARTBEAT_INTERVAL_MAX + HEARTBEAT_MAX;
    let mut seen: HashMap<Incarnation, SeenHeartbeat> = HashMap::new();
    let mut is_logged = false;
    loop {
        let mut others = read_replicas(session).await.map_err(unavailable)?;
        others.retain(|one| !one.row.is_dead);
        let (own, now) = (&settings.replica.key_prints, Instant::now());
        let has_heartbeat = |one: &StoredReplica| {
            seen.get(&one.row.incarnation).is_some_and(|seen: &SeenHeartbeat| seen.heartbeat != one.row.heartbeat)
        };
        let (living, silent): (Vec<_>, Vec<_>) = others.into_iter().partition(has_heartbeat);
        let is_unlike = |one: &&StoredReplica| !open_each_other(own, &one.key_print);
        if let Some(unlike) = living.iter().find(is_unlike) {
            return Err(PostgresOpenError::SealKeys { name: unlike.row.name.clone() });
        }
        let unlike: Vec<_> = silent.iter().filter(is_unlike).collect();
        if silent.is_empty() || (now >= until && unlike.is_empty()) {
            return Ok(living);
        }
        if let Some(one) = unlike.first().filter(|_| now >= until && !std::mem::replace(&mut is_logged, true)) {
            tracing::warn!(
                replica = one.row.name,
                "a replica with a different seal.key is silent; it is declared dead once its lease ends"
            );
        }
        for one in unlike {
            let incarnation = one.row.incarnation;
            let since = seen.get(&incarnation).map_or(Duration::ZERO, |seen| now - seen.at);
            if since >= settings.terms.lease() {
                let declared = declare_dead(session, incarnation, Some(one.row.heartbeat)).await;
                if declared.map_err(CommitFailure::open_error)? {
                    log_declared_dead(&one.row);
                }
            }
        }
        for one in &silent {
            seen.entry(one.row.incarnation).or_insert(SeenHeartbeat { heartbeat: one.row.heartbeat, at: now });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Whether each ring can open the tokens that the other seals. Rings differ while keys are rotated.
fn open_each_other(own: &[[u8; KEY_PRINT_LEN]], other: &[u8]) -> bool {
    let others = || other.chunks_exact(KEY_PRINT_LEN);
    let is_opened_there = own.first().is_none_or(|first| others().any(|print| print == first));
    let is_opened_here = others().next().is_none_or(|first| own.iter().any(|print| print == first));
    is_opened_there && is_opened_here
}

/// Discards a wrong last-use time if the operator asks for it. Living replicas keep their time.
async fn reset_clock(
    session: &Session,
    settings: &PostgresSettings,
    living: &[StoredReplica],
) -> Result<(), PostgresOpenError> {
    let Some(wish) = settings.folder.as_ref().map(|folder| folder.join(RESET)).filter(|wish| wish.exists()) else {
        return Ok(());
    };
    if !living.is_empty() {
        tracing::warn!(
            "`{RESET}` changes nothing while other replicas live: stop all of them, and start this one first"
        );
        return Ok(());
    }
    let reset = session.client.prepare(RESET_TIMES).await.map_err(unavailable)?;
    transact(session, &[(&reset, vec![])]).await.map_err(CommitFailure::open_error)?;
    tracing::warn!("the time of the task store's last use is discarded, as `{RESET}` requests");
    // In this order a second run repeats both steps harmlessly.
    if let Err(error) = std::fs::remove_file(&wish) {
        tracing::warn!(%error, "`{RESET}` cannot be removed: remove it, or each start discards the time");
    }
    Ok(())
}

/// The clock's start time, and whether it is trusted. The first replica decides; later ones adopt its verdict.
async fn clock_start(
    session: &Session,
    living: &[StoredReplica],
) -> Result<(ClockStart, ClockTrust), PostgresOpenError> {
    let row = session.client.query_one(TIMES, &[]).await.map_err(unavailable)?;
    let server = time(row.try_get(0).map_err(unavailable)?);
    let [stored, gone] = [row.try_get::<_, Option<i64>>(1), row.try_get(2)];
    let (stored, gone) = (stored.map_err(unavailable)?.map(time), gone.map_err(unavailable)?.map(time));
    let trust = match (living, stored) {
        ([], Some(seen)) => {
            let longest = gone.map_or(Duration::ZERO, |gone| gone.since(seen));
            ClockTrust::new(Some(server), seen, longest, DISTRUST)
        }
        (living, _) if living.iter().any(|one| one.is_time_distrusted) => ClockTrust::distrusted(DISTRUST),
        _ => ClockTrust::trusted(),
    };
    let living = living.iter().map(|one| one.row.now).max();
    Ok((ClockStart { living, server, stored }, trust))
}

async fn register(session: &Session, settings: &PostgresSettings, now: i64) -> Result<Incarnation, PostgresOpenError> {
    let register = session.client.prepare(REGISTER).await.map_err(unavailable)?;
    let ReplicaDescription { name, address, version, config_digest, key_prints } = &settings.replica;
    let (reads, prints) = (i32::from(record::VERSION), key_prints.concat());
    let values: Parameters<'_> = vec![name, address, version, &reads, config_digest, &prints, &now];
    let made = transact(session, &[(&register, values)]).await.map_err(CommitFailure::open_error)?;
    let row = made.row().ok_or_else(|| PostgresOpenError::unavailable("no row was written"))?;
    Ok(holder(row.try_get(0).map_err(unavailable)?))
}

/// A pooler is missed if other clients take and return sessions in an order that hides it.
const ROUNDS: usize = 3;

/// Detects a pooler that lends server sessions by the transaction: a second connection gets the last returned.
/// Conclusions about commits rely on the session's setup: warnings arrive, and a barrier proves the same server's
/// reads. A pooled transaction may run in another client's session, or on another server. `Pooled`, or as in `connect`.
async fn detect_pooler(connector: &DatabaseConnector, session: &Session) -> Result<(), PostgresOpenError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_that_differ_open_each_other_while_keys_are_changed() {
        let ring = |keys: &[u8]| keys.iter().map(|key| [*key; KEY_PRINT_LEN]).collect::<Vec<_>>();
        for (own, other, expected) in [
            (&[1][..], &[1][..], true),
            (&[1], &[2], false),
            (&[1, 2], &[2, 1], true),
            (&[1], &[1, 2], true),
            (&[1], &[2, 1], false),
            (&[2, 1], &[1], false),
        ] {
            assert_eq!(open_each_other(&ring(own), &ring(other).concat()), expected, "{own:?} and {other:?}");
        }
    }
}
