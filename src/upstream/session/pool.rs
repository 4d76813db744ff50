//! Pools the sessions of one upstream: one for each key, with one handshake.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt, Shared, join_all};
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{SessionKey, UpstreamLink, UpstreamSession, get_stream, initialize};
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::metric::{self, GaugeShare};
use crate::task::{Executed, GatewayFault, Principal, PrincipalLimitTable, Reason};
use crate::upstream::outgoing::SessionHeaders;
use crate::upstream::{BeginError, ForwardedHeaders};

const SESSIONS_MAX: usize = 1_024;
/// How long a session without calls is kept.
const IDLE_MAX: Duration = Duration::from_secs(5 * 60);
const SWEEP_EVERY: Duration = Duration::from_secs(30);

type SessionOpening = Shared<BoxFuture<'static, Result<Arc<UpstreamSession>, BeginError>>>;

#[derive(Debug)]
pub(crate) struct SessionPool {
    link: Arc<UpstreamLink>,
    pooled: Mutex<HashMap<SessionKey, PooledSession>>,
    /// Sessions of another process in which tasks are resumed, while in use.
    adopted: Mutex<HashMap<(SessionKey, HeaderValue), Weak<UpstreamSession>>>,
    /// The number of open sessions at the last sweep.
    open: GaugeShare,
}

#[derive(Debug)]
struct PooledSession {
    opening: SessionOpening,
    /// The headers with which it is opened, and the server's refusal of them.
    forwarded: ForwardedHeaders,
    used: Instant,
}

impl PooledSession {
    fn session(&self) -> Option<&Arc<UpstreamSession>> {
        self.opening.peek().and_then(|opened| opened.as_ref().ok())
    }

    /// There is no usable session: the handshake failed, or the upstream has forgotten it.
    fn has_failed(&self) -> bool {
        match self.opening.peek() {
            Some(Ok(session)) => session.ended.is_cancelled(),
            Some(Err(_)) => true,
            None => false,
        }
    }

    /// A refused request does not keep a session alive.
    fn note_use(&mut self, now: Instant) {
        if self.session().is_none_or(|session| !session.refusals.is_any()) {
            self.used = now;
        }
    }

    /// Whether only the pool holds the session, without subscribers.
    fn is_idle(&self) -> bool {
        self.is_unheld() && self.session().is_some_and(|session| session.news.receiver_count() == 0)
    }

    /// Whether only the pool holds the session; it may have subscribers, which are notified of its end.
    fn is_unheld(&self) -> bool {
        self.session().is_some_and(|session| Arc::strong_count(session) == 1)
    }
}

impl SessionPool {
    /// An empty pool. Its sweeper ends with it.
    pub(crate) fn new(link: Arc<UpstreamLink>) -> Arc<Self> {
        let open = GaugeShare::new(metrics::gauge!(metric::UPSTREAM_SESSIONS, "upstream" => Arc::clone(&link.name)));
        let pool = Arc::new(Self { link, pooled: Mutex::default(), adopted: Mutex::default(), open });
        let stop = pool.link.stop.clone();
        pool.link.tracker.spawn(sweep(Arc::downgrade(&pool), stop));
        pool
    }

    /// The session of a key, opened if there is none, for the request with the headers `asking`. Cancel safe: a
    /// handshake continues without waiters, who all get its error. `QueueFull` if all sessions of a full pool are used.
    pub(crate) async fn session(
        &self,
        key: &SessionKey,
        asking: &ForwardedHeaders,
    ) -> Result<Arc<UpstreamSession>, BeginError> {
        let (opening, forwarded) = self.opening(key)?;
        let opened = opening.clone().await;
        if opened.is_err() {
            asking.note_as(&forwarded);
            self.remove(key, |entry| entry.opening.ptr_eq(&opening));
        }
        opened
    }

    /// The session that replaces one that the upstream has forgotten: one handshake for any number of calls.
    pub(crate) async fn replace(
        &self,
        key: &SessionKey,
        lost: &Arc<UpstreamSession>,
        asking: &ForwardedHeaders,
    ) -> Result<Arc<UpstreamSession>, BeginError> {
        self.remove(key, |entry| entry.session().is_some_and(|session| Arc::ptr_eq(session, lost)));
        lost.ended.cancel();
        self.session(key, asking).await
    }

    /// Existing tasks' session: the pool's, or another process's, with a stream for questions. Never ended from here.
    pub(crate) fn adopt(
        &self,
        key: &SessionKey,
        credentials: SessionHeaders,
        tasks: UpstreamTaskSupport,
    ) -> Arc<UpstreamSession> {
        let credentials = SessionHeaders { client: key.credential.clone(), ..credentials };
        let Some(id) = credentials.session.clone() else {
            return UpstreamSession::adopted(&self.link, credentials, tasks);
        };
        // The server may send messages of its tasks on only one stream of a session.
        let own = self.pooled.lock().get(key).and_then(PooledSession::session).cloned();
        if let Some(own) = own.filter(|own| own.credentials.session.as_ref() == Some(&id) && !own.ended.is_cancelled())
        {
            return own;
        }
        let mut adopted = self.adopted.lock();
        let entry = adopted.entry((key.clone(), id)).or_default();
        if let Some(session) = entry.upgrade() {
            return session;
        }
        let session = UpstreamSession::adopted(&self.link, credentials, tasks);
        *entry = Arc::downgrade(&session);
        get_stream::start(&session, &key.principal, None);
        session
    }

    /// Ends all sessions without calls. Those with calls stay open at the upstream: the calls may be resumed in them later.
    pub(crate) async fn close(&self) {
        let idle: Vec<_> = {
            let mut pooled = self.pooled.lock();
            self.open.set(0);
            pooled
                .drain()
                .filter_map(|(_, entry)| entry.session().cloned())
                .filter(|session| session.calls.is_empty())
                .collect()
        };
        join_all(idle.iter().map(|session| session.end())).await;
    }

    fn opening(&self, key: &SessionKey) -> Result<(SessionOpening, ForwardedHeaders), BeginError> {
        let mut pooled = self.pooled.lock();
        // A failure that had no waiters is not returned to later ones.
        if let Some(entry) = pooled.get_mut(key).filter(|entry| !entry.has_failed()) {
            entry.note_use(Instant::now());
            return Ok((entry.opening.clone(), entry.forwarded.clone()));
        }
        self.make_room(&mut pooled, &key.principal)?;
        let forwarded = ForwardedHeaders::bearing(&key.credential);
        let opening = self.open(key.clone(), forwarded.clone());
        let entry = PooledSession { opening: opening.clone(), forwarded: forwarded.clone(), used: Instant::now() };
        pooled.insert(key.clone(), entry);
        Ok((opening, forwarded))
    }

    /// Starts a handshake in its own task, so that a waiter who leaves does not stop it.
    fn open(&self, key: SessionKey, forwarded: ForwardedHeaders) -> SessionOpening {
        let link = Arc::clone(&self.link);
        let failed = |reason| Err(BeginError::Gateway(GatewayFault::new(reason, Executed::No)));
        let opening = self.link.tracker.spawn(async move {
            let opening = Box::pin(initialize::open(&link, &key, &forwarded));
            link.stop.run_until_cancelled(opening).await.unwrap_or_else(|| failed(Reason::Draining))
        });
        opening.map(move |opened| opened.unwrap_or_else(|_| failed(Reason::Internal))).boxed().shared()
    }

    /// Makes room for one more session of `owner`. With several principals, each has at most its share; a full pool
    /// evicts a session without calls of the principal with most sessions, even a recently used one.
    fn make_room(&self, pooled: &mut HashMap<SessionKey, PooledSession>, owner: &Principal) -> Result<(), BeginError> {
        let share = PrincipalLimitTable::default().of(owner).permits.of(SESSIONS_MAX);
        if pooled.len() < share {
            return Ok(());
        }
        let mut held: HashMap<&Principal, usize> = HashMap::new();
        pooled.keys().for_each(|key| *held.entry(&key.principal).or_default() += 1);
        let own = held.get(owner).copied().unwrap_or_default();
        if pooled.len() < SESSIONS_MAX && own < share {
            return Ok(());
        }
        let giving = pooled.iter().filter_map(|(key, entry)| {
            let is_own = key.principal == *owner;
            let theirs = held.get(&key.principal).copied().unwrap_or_default();
            let gives_way = if !is_own && theirs > own + 1 { entry.is_unheld() } else { entry.is_idle() };
            (gives_way && (is_own || own < share)).then_some((theirs, Reverse(entry.used), key))
        });
        let giving = giving.max_by_key(|(theirs, used, _)| (*theirs, *used)).map(|(.., key)| key.clone());
        match giving.and_then(|key| pooled.remove(&key)) {
            Some(entry) => {
                tracing::debug!(upstream = %self.link.name, "ended an idle upstream session to make room for another");
                self.end(&entry);
                Ok(())
            }
            None => Err(BeginError::Gateway(GatewayFault::new(Reason::QueueFull, Executed::No))),
        }
    }

    fn remove(&self, key: &SessionKey, is_meant: impl FnOnce(&PooledSession) -> bool) {
        let mut pooled = self.pooled.lock();
        if pooled.get(key).is_some_and(is_meant) {
            pooled.remove(key);
        }
    }

    /// Drops handshakes that have not succeeded: the next request begins another, and does not get their errors.
    pub(crate) fn remove_handshakes(&self) {
        self.pooled.lock().retain(|_, entry| entry.session().is_some());
    }

    /// Ends a session in the background; one that the upstream has forgotten needs no end.
    fn end(&self, entry: &PooledSession) {
        if let Some(session) = entry.session().filter(|session| !session.ended.is_cancelled()).cloned() {
            self.link.tracker.spawn(async move { session.end().await });
        }
    }

    fn sweep(&self, now: Instant) {
        let mut pooled = self.pooled.lock();
        for entry in pooled.values_mut() {
            // The end of an abandoned handshake is only noticed by polling it.
            let _ = entry.opening.clone().now_or_never();
            if !entry.is_idle() {
                entry.note_use(now);
            }
        }
        let is_over = |entry: &PooledSession| {
            entry.has_failed() || (now.duration_since(entry.used) >= IDLE_MAX && entry.is_idle())
        };
        for (_, entry) in pooled.extract_if(|_, entry| is_over(entry)) {
            self.end(&entry);
        }
        self.adopted.lock().retain(|_, session| session.strong_count() > 0);
        self.open.set(u32::try_from(pooled.len()).unwrap_or(u32::MAX));
    }
}

async fn sweep(pool: Weak<SessionPool>, stop: tokio_util::sync::CancellationToken) {
    while stop.run_until_cancelled(tokio::time::sleep(SWEEP_EVERY)).await.is_some() {
        let Some(pool) = pool.upgrade() else { return };
        pool.sweep(Instant::now());
    }
}

#[cfg(test)]
mod tests;
