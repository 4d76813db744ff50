//! Reads from the primary: single rows by key, many at a time, and lists. Each has connections of its own, so that however many lists are
//! asked for, nobody who asks for one task waits for them.
//!
//! What was read is believed if the server that showed it has lately proved, on whichever connection of this gateway, that what it
//! shows is durable; else it proves that now, before anybody is answered (rules 4 to 6; [`crate::replica::read_trust`]).

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;
use tokio_postgres::{Error, Row, Statement};
use tokio_util::sync::CancellationToken;

use super::columns::{FetchedRow, key_arrays};
use super::health::PostgresHealth;
use super::session::{DatabaseConnector, Session, back_off};
use super::settled_rows::ReadSource;
use super::shared_clock::boot_time;
use super::state::StoreState;
use super::transaction::{DURABILITY_PROOF, Parameters, count_barrier, transact};
use crate::replica::ReadBelief;
use crate::store::tasks::StoreError;
use crate::task::TaskKey;

/// Rows of one statement.
const GROUP_MAX: usize = 512;
/// Bytes of one answer: a row that would begin behind them is asked for again.
const GROUP_BYTES_MAX: i64 = 8 << 20;
/// How often a server is looked for on which a barrier has passed.
pub(super) const SETTLE_TRIES_MAX: usize = 3;
/// Who may wait for a reader; whoever comes then waits for a place.
pub(super) const QUEUE_MAX: usize = 4_096;

/// How often connections in trouble are tried that nobody asks for.
const MEND_EVERY: Duration = Duration::from_secs(1);

/// Rows by key: `$1` and `$2` are arrays of ids and owners.
const ROWS: &str = "
SELECT t.id, t.owner, t.rev, t.holder, t.settled, t.created, t.expires,
    CASE WHEN sum(t.size) OVER (ORDER BY w.ord) - t.size <= $3::int8 THEN t.record END, w.ord
FROM unnest($1::bytea[], $2::bytea[]) WITH ORDINALITY AS w (id, owner, ord)
CROSS JOIN LATERAL (SELECT * FROM tg_task t WHERE t.id = w.id AND t.owner = w.owner LIMIT 1) t ORDER BY w.ord";

/// A connection that reads.
#[derive(Debug)]
pub(super) struct ReaderLink {
    session: Session,
    statements: HashMap<String, Statement>,
    proof: Statement,
}

impl ReaderLink {
    /// Makes a statement, and returns its rows.
    ///
    /// # Errors
    /// Whatever the server says.
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

/// What a server has proved of what it shows, before that is believed.
#[derive(Clone, Copy, Debug)]
enum ReadProof {
    None,
    /// As lately as `read_trust` says.
    Lately,
    /// Since the write that is asked for.
    ForGood,
}

/// One connection, opened when it is needed, and used by one reader at a time.
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
    /// Until when nobody tries to connect, and why.
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

    /// Reads, and returns what may be believed. A caller that leaves leaves the connection as it is.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn read<T>(
        &self,
        read: impl AsyncFnOnce(&mut ReaderLink) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.read_from(read).await.map(|(found, _)| found)
    }

    /// The same, and where it was read: it may be believed no longer by the time that it is shown again.
    async fn read_from<T>(
        &self,
        read: impl AsyncFnOnce(&mut ReaderLink) -> Result<T, Error>,
    ) -> Result<(T, ReadSource), StoreError> {
        let mut slot = self.slot.lock().await;
        self.link(&mut slot).await?;
        self.read_by(&mut slot, ReadProof::Lately, read).await
    }

    /// Reads what may be taken back, without a barrier: for whoever asks again, and answers nobody by it.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn read_unproven<T>(
        &self,
        read: impl AsyncFnOnce(&mut ReaderLink) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let mut slot = self.slot.lock().await;
        self.link(&mut slot).await?;
        self.read_by(&mut slot, ReadProof::None, read).await.map(|(found, _)| found)
    }

    /// Reads what became of a write in doubt, so that nothing is taken back of what it says. `None` if no barrier has passed since on
    /// the server at the other end: another one is to be made.
    ///
    /// # Errors
    /// `Io`.
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
        // It may be a server that was replaced. Each connection that is made asks for another barrier.
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
        let link = slot.link.as_mut().ok_or_else(super::closed)?;
        let reading = async {
            let found = read(&mut *link).await.map_err(|error| PostgresHealth::of(&error))?;
            let received = boot_time();
            let judge = |server| {
                let trust = self.connector.trust.lock();
                match proof {
                    ReadProof::None => ReadBelief::Believed,
                    ReadProof::Lately => trust.judge(server, received, received),
                    ReadProof::ForGood => trust.judge_for_good(server, received),
                }
            };
            let server = link.session.server;
            if judge(server) == ReadBelief::NeedsBarrier {
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
                if matches!(trouble, PostgresHealth::Away(_)) {
                    // A connection that ended says nothing of the server; the next connect does.
                    let _ = self.link(slot).await;
                } else {
                    self.state.reader_is(&self.duty, trouble.clone());
                }
                trouble
            }
            // Nor does a list that takes long.
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
        slot.link.as_mut().ok_or_else(super::closed)
    }

    async fn connect(&self) -> Result<ReaderLink, PostgresHealth> {
        let session = self.connector.connect(&self.duty, None).await.map_err(|error| error.health())?;
        let preparing =
            tokio::time::timeout(self.state.settings.access.write_max, session.client.prepare(DURABILITY_PROOF)).await;
        let proof = preparing.map_err(|_| PostgresHealth::slow())?.map_err(|error| PostgresHealth::of(&error))?;
        Ok(ReaderLink { session, statements: HashMap::new(), proof })
    }
}

/// Connects those anew that are in trouble, though nobody may ask for them: who is not ready is asked for nothing. Never
/// returns; cancel by dropping.
pub(super) async fn mend(readers: Vec<Arc<ReaderConnection>>) {
    loop {
        tokio::time::sleep(MEND_EVERY).await;
        for reader in readers.iter().filter(|reader| reader.state.is_reader_in_trouble(&reader.duty)) {
            let mut slot = reader.slot.lock().await;
            // What is in its way is said by the reader itself.
            let _ = reader.link(&mut slot).await;
        }
    }
}

/// Somebody who wants a row, and where it was read.
pub(super) type RowRequest = (TaskKey, oneshot::Sender<Result<Option<(FetchedRow, ReadSource)>, StoreError>>);

/// Reads rows by key, all that are asked for meanwhile at once, until the store ends.
pub(super) async fn serve(
    reader: Arc<ReaderConnection>,
    queue: Arc<Mutex<mpsc::Receiver<RowRequest>>>,
    end: CancellationToken,
) {
    let mut wanted: Vec<RowRequest> = Vec::new();
    loop {
        if wanted.is_empty() {
            let taking = async { queue.lock().await.recv_many(&mut wanted, GROUP_MAX).await };
            let taken = tokio::select! {
                taken = taking => taken,
                () = end.cancelled() => return,
            };
            if taken == 0 {
                return;
            }
        }
        wanted.retain(|(_, reply)| !reply.is_closed());
        match reader.read_from(async |link| rows(link, &wanted).await).await {
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

/// A row that was found: for whom, and `None` if it is to be asked for again.
type FoundRow = (usize, Option<FetchedRow>);

async fn rows(link: &mut ReaderLink, wanted: &[RowRequest]) -> Result<Vec<FoundRow>, Error> {
    let keys: Vec<&TaskKey> = wanted.iter().map(|(key, _)| key).collect();
    read_rows(link, &keys).await
}

/// Rows by key, as far as they have room in one answer.
pub(super) async fn read_rows(link: &mut ReaderLink, keys: &[&TaskKey]) -> Result<Vec<FoundRow>, Error> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let (ids, owners) = key_arrays(keys.iter().copied());
    let rows = link.query(ROWS, &vec![&ids, &owners, &GROUP_BYTES_MAX]).await?;
    let found = rows.iter().map(|row| {
        let place = usize::try_from(row.try_get::<_, i64>(8)? - 1).unwrap_or(usize::MAX);
        let is_there = row.try_get::<_, Option<&[u8]>>(7)?.is_some();
        Ok((place, if is_there { Some(FetchedRow::of(row)?) } else { None }))
    });
    found.collect()
}

/// Answers those whose row was read, or is not there; the others stay.
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

/// Connections that are used in turn.
#[derive(Debug)]
pub(super) struct ListReaders {
    readers: Vec<Arc<ReaderConnection>>,
    next: AtomicUsize,
}

impl ListReaders {
    pub(super) const fn new(readers: Vec<Arc<ReaderConnection>>) -> Self {
        Self { readers, next: AtomicUsize::new(0) }
    }

    /// Closes all connections, each once its list has been read.
    pub(super) async fn close(&self) {
        for reader in &self.readers {
            reader.slot.lock().await.link = None;
        }
    }

    /// The connection for the next list.
    pub(super) fn reader(&self) -> Result<&ReaderConnection, StoreError> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.readers
            .get(next.checked_rem(self.readers.len()).unwrap_or(0))
            .map(|reader| &**reader)
            .ok_or_else(super::closed)
    }
}
