//! Leases a client's session to the calls that run in it as tasks: it stays open at the upstream until the last of them
//! has ended, even if the client ends it first (T-31).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::face::session::SessionFaceState;
use crate::face::session::session_cache::ClientSession;
use crate::task::GatewayFault;
use crate::upstream::raw_channel::{CallMessageSink, ClientOwnSession, SessionBinding};

/// Sessions in which tasks run, by nonce.
#[derive(Debug, Default)]
pub(in crate::face::session) struct SessionLeases(Mutex<HashMap<u128, LeasedSession>>);

#[derive(Debug, Default)]
struct LeasedSession {
    calls: usize,
    /// The upstream session that is to be ended, once the client has ended its own.
    ended: Option<SessionBinding>,
    /// Of the calls in it that may be tasks of the upstream's own.
    ears: Vec<Weak<dyn CallMessageSink>>,
    /// Cancelled with the last loan.
    over: CancellationToken,
}

impl SessionLeases {
    /// Puts off the end of a session until its tasks have ended; false if there are none.
    pub(in crate::face::session) fn put_off(&self, nonce: u128, binding: &SessionBinding) -> bool {
        match self.0.lock().get_mut(&nonce) {
            Some(lending) => {
                lending.ended = Some(binding.clone());
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
        let Entry::Occupied(mut lending) = all.entry(nonce) else { return None };
        lending.get_mut().calls -= 1;
        if lending.get().calls > 0 {
            return None;
        }
        let lending = lending.remove();
        lending.over.cancel();
        lending.ended
    }

    fn listen(&self, nonce: u128, ear: Weak<dyn CallMessageSink>) {
        if let Some(lending) = self.0.lock().get_mut(&nonce) {
            lending.ears.retain(|ear| ear.strong_count() > 0);
            lending.ears.push(ear);
        }
    }

    /// Those who hear what is said on a session's own stream.
    pub(super) fn ears(&self, nonce: u128) -> Vec<Arc<dyn CallMessageSink>> {
        let all = self.0.lock();
        all.get(&nonce).map(|lending| lending.ears.iter().filter_map(Weak::upgrade).collect()).unwrap_or_default()
    }

    /// Cancelled once nothing runs in a session any more; `None` if nothing does now.
    pub(super) fn over(&self, nonce: u128) -> Option<CancellationToken> {
        self.0.lock().get(&nonce).map(|lending| lending.over.clone())
    }

    fn ended(&self, nonce: u128) -> Option<SessionBinding> {
        self.0.lock().get(&nonce).and_then(|lending| lending.ended.clone())
    }
}

/// One loan. Given back when dropped.
#[derive(Debug)]
pub(super) struct SessionLease {
    shared: Arc<SessionFaceState>,
    session: ClientSession,
}

impl SessionLease {
    pub(super) fn new(shared: &Arc<SessionFaceState>, session: &ClientSession) -> Self {
        shared.tasks.lendings.enter(session.token.nonce);
        Self { shared: Arc::clone(shared), session: session.clone() }
    }
}

#[async_trait]
impl ClientOwnSession for SessionLease {
    async fn binding(&self) -> SessionBinding {
        match self.shared.tasks.lendings.ended(self.session.token.nonce) {
            Some(binding) => binding,
            None => self.shared.sessions.binding(&self.session),
        }
    }

    async fn renew(&self, lost: &SessionBinding) -> Result<SessionBinding, GatewayFault> {
        let renewed = self.shared.renew(&self.session, lost).await?;
        let lendings = &self.shared.tasks.lendings;
        if lendings.ended(self.session.token.nonce).is_some() {
            lendings.put_off(self.session.token.nonce, &renewed);
        }
        Ok(renewed)
    }

    fn listen(&self, ear: Weak<dyn CallMessageSink>) {
        self.shared.tasks.lendings.listen(self.session.token.nonce, ear);
        self.shared.hear(&self.session);
    }

    async fn listening(&self) {
        self.shared.heard(&self.session).await;
    }
}

impl Drop for SessionLease {
    fn drop(&mut self) {
        if let Some(binding) = self.shared.tasks.lendings.leave(self.session.token.nonce)
            && binding.session.is_some()
            // Where the runtime itself ends there is nobody to tell the upstream.
            && tokio::runtime::Handle::try_current().is_ok()
        {
            self.shared.let_go(binding);
        }
    }
}
