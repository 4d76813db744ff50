//! Leases a client's session to its calls: it stays open at the server until the last call has ended (T-31).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::memory::SessionMemory;
use super::{OwnSession, OwnSessions};
use crate::task::GatewayFault;
use crate::upstream::outgoing::SessionHeaders;
use crate::upstream::raw_channel::SessionBinding;
use crate::upstream::session::{UpstreamLink, UpstreamSession};

#[derive(Debug, Default)]
pub(super) struct SessionLeases(Mutex<HashMap<u128, LeasedSession>>);

#[derive(Debug, Default)]
struct LeasedSession {
    calls: usize,
    /// The upstream session to end, once the client has ended its own.
    ended: Option<SessionBinding>,
    /// A call that may be resumed later was released in it: it is not ended from here.
    has_orphan: bool,
    /// The sessions of its calls that may be the server's own tasks.
    listening: Vec<Weak<UpstreamSession>>,
    /// Cancelled with the last lease.
    over: CancellationToken,
}

impl SessionLeases {
    /// Postpones the end of a session until its calls have ended; false if there are none.
    pub(super) fn put_off(&self, nonce: u128, binding: &SessionBinding) -> bool {
        match self.0.lock().get_mut(&nonce) {
            Some(leased) => {
                leased.ended = Some(binding.clone());
                true
            }
            None => false,
        }
    }

    fn enter(&self, nonce: u128) {
        self.0.lock().entry(nonce).or_default().calls += 1;
    }

    /// Drops one lease; returns the upstream session to end now, if any.
    fn leave(&self, nonce: u128) -> Option<SessionBinding> {
        let mut all = self.0.lock();
        let Entry::Occupied(mut leased) = all.entry(nonce) else { return None };
        leased.get_mut().calls -= 1;
        if leased.get().calls > 0 {
            return None;
        }
        let leased = leased.remove();
        leased.over.cancel();
        leased.ended.filter(|_| !leased.has_orphan)
    }

    fn keep(&self, nonce: u128) {
        if let Some(leased) = self.0.lock().get_mut(&nonce) {
            leased.has_orphan = true;
        }
    }

    fn listen(&self, nonce: u128, session: &Arc<UpstreamSession>) {
        if let Some(leased) = self.0.lock().get_mut(&nonce) {
            leased.listening.retain(|session| session.strong_count() > 0);
            leased.listening.push(Arc::downgrade(session));
        }
    }

    /// The calls' sessions that receive messages of the session's own stream.
    pub(super) fn listening(&self, nonce: u128) -> Vec<Arc<UpstreamSession>> {
        let all = self.0.lock();
        all.get(&nonce).map(|leased| leased.listening.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default()
    }

    /// Cancelled once no call runs in the session; `None` if none runs now.
    pub(super) fn over(&self, nonce: u128) -> Option<CancellationToken> {
        self.0.lock().get(&nonce).map(|leased| leased.over.clone())
    }

    fn ended(&self, nonce: u128) -> Option<SessionBinding> {
        self.0.lock().get(&nonce).and_then(|leased| leased.ended.clone())
    }
}

#[derive(Debug)]
#[must_use]
pub struct SessionLease {
    sessions: Arc<OwnSessions>,
    session: OwnSession,
    /// In use while it is held, so that it makes no room for another session's.
    memory: Arc<SessionMemory>,
}

impl SessionLease {
    pub(super) fn new(sessions: &Arc<OwnSessions>, session: &OwnSession) -> Self {
        sessions.leases.enter(session.opened.nonce);
        Self { sessions: Arc::clone(sessions), session: session.clone(), memory: sessions.remembered(session) }
    }

    pub(crate) async fn session(&self, link: &Arc<UpstreamLink>) -> Arc<UpstreamSession> {
        let ended = self.sessions.leases.ended(self.session.opened.nonce);
        let binding = ended.unwrap_or_else(|| self.sessions.binding(&self.session));
        self.listened_to(self.adopt(link, binding)).await
    }

    /// A call that may be the server's task receives messages of the session's own stream.
    pub(crate) fn adopt(&self, link: &Arc<UpstreamLink>, binding: SessionBinding) -> Arc<UpstreamSession> {
        let SessionBinding { session, version, tasks } = binding;
        let client = self.session.forwarded.credential();
        let refusals = &self.memory.refusals;
        let adopted = UpstreamSession::lent(link, SessionHeaders { session, version, client }, tasks, refusals);
        if tasks.calls {
            self.sessions.leases.listen(self.session.opened.nonce, &adopted);
            self.sessions.read_for_calls(&self.session);
        }
        adopted
    }

    /// Leaves the session open at the server after its client and its last call here have ended.
    pub(crate) fn keep_for_later(&self) {
        self.sessions.leases.keep(self.session.opened.nonce);
    }

    /// The session that replaces one that the server has lost, for one call. After an error nothing was sent in it.
    pub(crate) async fn renew(&self, lost: &UpstreamSession) -> Result<Arc<UpstreamSession>, GatewayFault> {
        let SessionHeaders { session, version, .. } = lost.credentials.clone();
        let lost_binding = SessionBinding { session, version, tasks: lost.tasks };
        let renewed = self.sessions.renew(&self.session, &lost_binding).await?;
        let (leases, nonce) = (&self.sessions.leases, self.session.opened.nonce);
        if leases.ended(nonce).is_some() {
            leases.put_off(nonce, &renewed);
        }
        Ok(self.listened_to(self.adopt(&lost.link, renewed)).await)
    }

    /// Waits until the session's own stream is read, if the server may send messages of its tasks there.
    async fn listened_to(&self, session: Arc<UpstreamSession>) -> Arc<UpstreamSession> {
        if session.tasks.calls {
            self.sessions.stream_settled(&self.session).await;
        }
        session
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        if let Some(binding) = self.sessions.leases.leave(self.session.opened.nonce)
            && binding.session.is_some()
            // Without a runtime nothing can be sent to the server.
            && tokio::runtime::Handle::try_current().is_ok()
        {
            self.sessions.let_go(binding, &self.session.forwarded.credential());
        }
    }
}
