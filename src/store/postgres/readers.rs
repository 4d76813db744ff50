//! Reads from the primary: rows by key, in groups, and lists. Lists have separate connections. A read is trusted if its
//! server has proved lately, on any of this replica's connections, that its data is durable; else the proof is made
//! before the caller gets an answer ([`crate::replica::read_trust`]).

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;
use tokio_postgres::{Error, Row, Statement};
use tokio_util::sync::CancellationToken;

use super::boot_time;
use super::columns::{FetchedRow, key_arrays};
use super::health::PostgresHealth;
use super::session::{DatabaseConnector, Session, back_off};
use super::settled_rows::ReadSource;
use super::state::StoreState;
use super::transaction::{DURABILITY_PROOF, Parameters, count_barrier, transact};
use crate::replica::ReadVerdict;
use crate::store::tasks::StoreError;
use crate::task::TaskKey;

const GROUP_MAX: usize = 512;
/// Bytes of one answer. A row that starts after this limit is read by the next query.
const GROUP_BYTES_MAX: i64 = 8 << 20;
/// Tries to find a server on which a barrier has passed.
pub(super) const SETTLE_TRIES_MAX: usize = 3;
/// Capacity of the readers' queue. Further callers wait.
pub(super) const QUEUE_MAX: usize = 4_096;

/// Interval between reconnects of idle connections in trouble.
const MEND_EVERY: Duration = Duration::from_secs(1);

/// Reads rows by key: `$1` and `$2` are arrays of ids and owners.
const ROWS: &str = "
SELECT t.id, t.owner, t.rev, t.holder, t.settled, t.created, t.expires,
    CASE WHEN sum(t.size) OVER (ORDER BY w.ord) - t.size <= $3::int8 THEN t.record END, w.ord
FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS w (id, owner, ord)
CROSS JOIN LATERAL (SELECT * FROM tg_task t WHERE t.id = w.id AND t.owner = w.owner LIMIT 1) t ORDER BY w.ord";

#[derive(Debug)]
pub(super) struct ReaderLink {
    session: Session,
    statements: HashMap<String, Statement>,
    proof: Statement,
}

impl ReaderLink {
    /// Runs a query, and prepares it at its first use.
    pub(super) async fn query(&mut self, sql: &str, values: &Parameters<'_>) -> Result<Vec<Row>, Error> {
        let statement = match self.statements.get(sql) {
            Some(statement) => statement,
            None => {
                let prepared = self.session.client.prepare(sql).await?;
                self.statements.entry(sql.to_owned()).or_insert(prepared)
            }
        };
        self.session.client.query(statement, values).await
    }
}

#[derive(Clone, Copy, Debug)]
enum ReadProof {
    None,
    /// As recent as `read_trust` requires.
    Lately,
    /// Made after the write in question.
    ForGood,
}

/// A connection that is opened on demand and used by one reader at a time.
#[derive(Debug)]
pub(super) struct ReaderConnection {
    duty: String,
    connector: Arc<DatabaseConnector>,
    state: Arc<StoreState>,
    slot: Mutex<ReaderSlot>,
}

#[derive(Debug, Default)]
struct ReaderSlot {
    link: Option<ReaderLink>,
    failures: u32,
    pause: Option<(Instant, PostgresHealth)>,
}

impl ReaderSlot {
    fn is_open(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.session.client.is_closed())
    }
}

impl ReaderConnection {
    pub(super) fn new(duty: String, connector: &Arc<DatabaseConnector>, state: &Arc<StoreState>) -> Self {
        let slot = Mutex::default();
        Self { duty, connector: Arc::clone(connector), state: Arc::clone(state), slot }
    }

    /// Runs a read, and returns a trusted result. A cancelled caller leaves the connection intact.
    pub(super) async fn read<T>(
        &self,
        read: impl AsyncFnOnce(&mut ReaderLink) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.read_from(read).await.map(|(found, _)| found)
    }

    /// Returns also the source of the read, which may no longer be trusted when the row is shown again.
    async fn read_from<T>(
        &self,
        read: impl AsyncFnOnce(&mut ReaderLink) -> Result<T, Error>,
    ) -> Result<(T, ReadSource), StoreError> {
        let mut slot = self.slot.lock().await;
        self.link(&mut slot).await?;
        self.read_by(&mut slot, ReadProof::Lately, read).await
    }

    /// Reads without a barrier: the result may be rolled back. For callers that check again and send no client the result.
    pub(super) async fn read_unproven<T>(
        &self,
        read: impl AsyncFnOnce(&mut ReaderLink) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let mut slot = self.slot.lock().await;
        self.link(&mut slot).await?;
        self.read_by(&mut slot, ReadProof::None, read).await.map(|(found, _)| found)
    }

    /// Reads a write's final outcome. `None` if no barrier passed on this server since the write: make one first.
    pub(super) async fn read_settled<T>(
        &self,
        read: impl AsyncFnOnce(&mut ReaderLink) -> Result<T, Error>,
    ) -> Result<Option<T>, StoreError> {
        let mut slot = self.slot.lock().await;
        let was_open = slot.is_open();
        let server = self.link(&mut slot).await?.session.server;
        if self.connector.trust.lock().may_settle(server) {
            return self.read_by(&mut slot, ReadProof::ForGood, read).await.map(|(found, _)| Some(found));
        }
        // The server may have been replaced. Each new connection requires another barrier.
        if was_open {
            slot.link = None;
            self.link(&mut slot).await?;
        }
        Ok(None)
    }

    async fn read_by<T>(
        &self,
        slot: &mut ReaderSlot,
        proof: ReadProof,
        read: impl AsyncFnOnce(&mut ReaderLink) -> Result<T, Error>,
    ) -> Result<(T, ReadSource), StoreError> {
        let link = slot.link.as_mut().ok_or_else(StoreError::closed)?;
        let reading = async {
            let found = read(&mut *link).await.map_err(|error| PostgresHealth::of(&error))?;
            let received = boot_time();
            let judge = |server| {
                let trust = self.connector.trust.lock();
                match proof {
                    ReadProof::None => ReadVerdict::Trusted,
                    ReadProof::Lately => trust.judge(server, received, received),
                    ReadProof::ForGood => trust.judge_for_good(server, received),
                }
            };
            let server = link.session.server;
            if judge(server) == ReadVerdict::NeedsBarrier {
                let proof = transact(&link.session, &[(&link.proof, vec![])]).await;
                let proof = proof.map_err(|failure| failure.health())?;
                self.state.settled.write_passed(server, proof.sent);
                count_barrier();
            }
            Ok::<_, PostgresHealth>((found, ReadSource { server, received }))
        };
        let done = tokio::time::timeout(self.state.settings.access.write_max, reading).await;
        let trouble = match done {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(trouble)) => {
                slot.link = None;
                if matches!(trouble, PostgresHealth::Unavailable(_)) {
                    // An ended connection proves nothing about the server; a reconnect does.
                    let _ = self.link(slot).await;
                } else {
                    self.state.reader_is(&self.duty, trouble.clone());
                }
                trouble
            }
            // Nor does a slow list prove anything about the server.
            Err(_) => {
                slot.link = None;
                PostgresHealth::slow()
            }
        };
        Err(StoreError::Io(io::Error::other(trouble.to_string())))
    }

    async fn link<'a>(&self, slot: &'a mut ReaderSlot) -> Result<&'a mut ReaderLink, StoreError> {
        if !slot.is_open() {
            slot.link = None;
            let unconnected = |why: &PostgresHealth| io::Error::new(io::ErrorKind::NotConnected, why.to_string());
            if let Some((until, why)) = &slot.pause
                && Instant::now() < *until
            {
                return Err(StoreError::Io(unconnected(why)));
            }
            match self.connect().await {
                Ok(link) => *slot = ReaderSlot { link: Some(link), ..ReaderSlot::default() },
                Err(why) => {
                    slot.failures += 1;
                    slot.pause = Some((Instant::now() + back_off(slot.failures), why.clone()));
                    let error = unconnected(&why);
                    self.state.reader_is(&self.duty, why);
                    return Err(StoreError::Io(error));
                }
            }
            self.state.reader_is(&self.duty, PostgresHealth::Good);
        }
        slot.link.as_mut().ok_or_else(StoreError::closed)
    }

    async fn connect(&self) -> Result<ReaderLink, PostgresHealth> {
        let session = self.connector.connect(&self.duty, None).await.map_err(|error| error.health())?;
        let preparing =
            tokio::time::timeout(self.state.settings.access.write_max, session.client.prepare(DURABILITY_PROOF)).await;
        let proof = preparing.map_err(|_| PostgresHealth::slow())?.map_err(|error| PostgresHealth::of(&error))?;
        Ok(ReaderLink { session, statements: HashMap::new(), proof })
    }
}

/// Reconnects connections in trouble even without reads, as a gateway not ready gets none. Never returns.
pub(super) async fn mend(readers: Vec<Arc<ReaderConnection>>) {
    loop {
        tokio::time::sleep(MEND_EVERY).await;
        for reader in readers.iter().filter(|reader| reader.state.is_reader_in_trouble(&reader.duty)) {
            let mut slot = reader.slot.lock().await;
            let _ = reader.link(&mut slot).await;
        }
    }
}

pub(super) type RowRequest = (TaskKey, oneshot::Sender<Result<Option<(FetchedRow, ReadSource)>, StoreError>>);

/// Reads rows by key until the store closes, grouping the requests that arrive meanwhile.
pub(super) async fn serve(
    reader: Arc<ReaderConnection>,
    queue: Arc<Mutex<mpsc::Receiver<RowRequest>>>,
    end: CancellationToken,
) {
    let mut wanted: Vec<RowRequest> = Vec::new();
    loop {
        if wanted.is_empty() {
            let taking = async { queue.lock().await.recv_many(&mut wanted, GROUP_MAX).await };
            if !matches!(end.run_until_cancelled(taking).await, Some(1..)) {
                return;
            }
        }
        wanted.retain(|(_, reply)| !reply.is_closed());
        let keys: Vec<&TaskKey> = wanted.iter().map(|(key, _)| key).collect();
        let read = reader.read_from(async |link| read_rows(link, &keys).await).await;
        match read {
            Ok((found, source)) => answer(&mut wanted, found, source),
            Err(error) => {
                let why = error.to_string();
                for (_, reply) in wanted.drain(..) {
                    let _ = reply.send(Err(StoreError::Io(io::Error::other(why.clone()))));
                }
            }
        }
    }
}

/// A request's position, and its row; `None` if it has to be read again.
type FoundRow = (usize, Option<FetchedRow>);

/// Reads rows by key, as far as they fit into one answer.
pub(super) async fn read_rows(link: &mut ReaderLink, keys: &[&TaskKey]) -> Result<Vec<FoundRow>, Error> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let (ids, owners) = key_arrays(keys.iter().copied());
    let rows = link.query(ROWS, &vec![&ids, &owners, &GROUP_BYTES_MAX]).await?;
    let found = rows.iter().map(|row| {
        let index = usize::try_from(row.try_get::<_, i64>(8)? - 1).unwrap_or(usize::MAX);
        let is_there = row.try_get::<_, Option<&[u8]>>(7)?.is_some();
        Ok((index, if is_there { Some(FetchedRow::of(row)?) } else { None }))
    });
    found.collect()
}

/// Answers requests with a read or missing row; keeps the others in `wanted`.
fn answer(wanted: &mut Vec<RowRequest>, found: Vec<FoundRow>, source: ReadSource) {
    let mut found: HashMap<usize, Option<FetchedRow>> = found.into_iter().collect();
    for (at, (key, reply)) in std::mem::take(wanted).into_iter().enumerate() {
        match found.remove(&at) {
            Some(None) => wanted.push((key, reply)),
            Some(Some(row)) => drop(reply.send(Ok(Some((row, source))))),
            None => drop(reply.send(Ok(None))),
        }
    }
}

/// Connections for lists and ungrouped reads, idle ones first: a slow list delays others only if all are busy.
#[derive(Debug)]
pub(super) struct ListReaders {
    readers: Vec<Arc<ReaderConnection>>,
    next: AtomicUsize,
}

impl ListReaders {
    pub(super) const fn new(readers: Vec<Arc<ReaderConnection>>) -> Self {
        Self { readers, next: AtomicUsize::new(0) }
    }

    /// Closes each connection after its current list.
    pub(super) async fn close(&self) {
        for reader in &self.readers {
            reader.slot.lock().await.link = None;
        }
    }

    /// An idle connection, or else the next one in turn.
    pub(super) fn reader(&self) -> Result<&ReaderConnection, StoreError> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let (before, from) = self.readers.split_at(next.checked_rem(self.readers.len()).unwrap_or(0));
        let mut in_turn = from.iter().chain(before).map(|reader| &**reader);
        let is_idle = |reader: &&ReaderConnection| reader.slot.try_lock().is_ok();
        in_turn.clone().find(is_idle).or_else(|| in_turn.next()).ok_or_else(StoreError::closed)
    }
}
