//! Leases a client's session to the calls that run in it: it stays open at the server until the last of them has ended,
//! even if the client ends it first (T-31).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{OwnSession, OwnSessions};
use crate::task::GatewayFault;
use crate::upstream::outgoing::SessionHeaders;
use crate::upstream::raw_channel::SessionBinding;
use crate::upstream::session::{UpstreamLink, UpstreamSession};

/// Sessions in which calls run, by nonce.
#[derive(Debug, Default)]
pub(super) struct SessionLeases(Mutex<HashMap<u128, LeasedSession>>);

#[derive(Debug, Default)]
struct LeasedSession {
    calls: usize,
    /// The upstream session that is to be ended, once the client has ended its own.
    ended: Option<SessionBinding>,
    /// A call that may be taken up later was let go in it: it is not ended from here.
    has_orphan: bool,
    /// As the calls in it that may be tasks of the server's own know it.
    listening: Vec<Weak<UpstreamSession>>,
    /// Cancelled with the last loan.
    over: CancellationToken,
}

impl SessionLeases {
    /// Puts off the end of a session until its calls have ended; false if there are none.
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

    /// Takes back one loan; the upstream session that is to be ended now, if one is.
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

    /// Those who hear what is said on a session's own stream.
    pub(super) fn listening(&self, nonce: u128) -> Vec<Arc<UpstreamSession>> {
        let all = self.0.lock();
        all.get(&nonce).map(|leased| leased.listening.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default()
    }

    /// Cancelled once no call runs in a session any more; `None` if none does now.
    pub(super) fn over(&self, nonce: u128) -> Option<CancellationToken> {
        self.0.lock().get(&nonce).map(|leased| leased.over.clone())
    }

    fn ended(&self, nonce: u128) -> Option<SessionBinding> {
        self.0.lock().get(&nonce).and_then(|leased| leased.ended.clone())
    }
}

/// The loan of a client's own session. Given back when dropped.
#[derive(Debug)]
pub struct SessionLease {
    sessions: Arc<OwnSessions>,
    session: OwnSession,
}

impl SessionLease {
    pub(super) fn new(sessions: &Arc<OwnSessions>, session: &OwnSession) -> Self {
        sessions.leases.enter(session.opened.nonce);
        Self { sessions: Arc::clone(sessions), session: session.clone() }
    }

    /// The session in use, for one call.
    pub(crate) async fn session(&self, link: &Arc<UpstreamLink>) -> Arc<UpstreamSession> {
        let ended = self.sessions.leases.ended(self.session.opened.nonce);
        let binding = ended.unwrap_or_else(|| self.sessions.binding(&self.session));
        self.listened_to(self.adopt(link, binding)).await
    }

    /// An upstream session of this client's, for one call. What is said on the session's own stream reaches the call where
    /// it may be a task of the server's.
    pub(crate) fn adopt(&self, link: &Arc<UpstreamLink>, binding: SessionBinding) -> Arc<UpstreamSession> {
        let SessionBinding { session, version, tasks } = binding;
        let client = self.session.forwarded.credential();
        let refusals = &self.sessions.remembered.get_or_default(self.session.opened.nonce).refusals;
        let adopted = UpstreamSession::lent(link, SessionHeaders { session, version, client }, tasks, refusals);
        if tasks.calls {
            self.sessions.leases.listen(self.session.opened.nonce, &adopted);
            self.sessions.read_for_calls(&self.session);
        }
        adopted
    }

    /// Leaves the session to the server when its client has ended it and the last call in it is over here.
    pub(crate) fn keep_for_later(&self) {
        self.sessions.leases.keep(self.session.opened.nonce);
    }

    /// The session that takes the place of one which the server has lost, for one call.
    ///
    /// # Errors
    /// If the server agrees to none: nothing was sent in it.
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

    /// Waits until the session's own stream is read, where the server may speak of its tasks there.
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
            // Where the runtime itself ends there is nobody to tell the server.
            && tokio::runtime::Handle::try_current().is_ok()
        {
            self.sessions.let_go(binding, &self.session.forwarded.credential());
        }
    }
}
