//! What memory holds about sessions beside their tokens, all of it bounded and none of it needed: which
//! upstream session took the place of a lost one, what has to be told to the next, and which have ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use http::HeaderValue;
use moka::future::Cache;
use moka::policy::EvictionPolicy;
use parking_lot::Mutex;

use crate::face::sealed::SessionToken;
use crate::task::GatewayFault;
use crate::upstream::conduit::Binding;
use crate::wire::Payload;

/// Sessions that something is known about; the one used longest ago falls out. What is lost with it is its
/// log level and subscriptions, and a handshake if its upstream session had been renewed.
const KNOWN_MAX: u64 = 20_000;
/// Sessions that were ended. A client that goes on using one that fell out gets an upstream session anew.
const ENDED_MAX: u64 = 100_000;
/// What one session's memory holds of what its upstream was told.
const SUBSCRIPTIONS_MAX: usize = 256;
const TOLD_BYTES_MAX: usize = 16 * 1024;

/// One client's session, as its id tells.
#[derive(Clone, Debug)]
pub(in crate::face) struct Session {
    pub(in crate::face) token: Arc<SessionToken>,
}

impl Session {
    /// The upstream session that was opened for it.
    fn opened(&self) -> Binding {
        let session = self.token.upstream_session.as_deref().and_then(|id| HeaderValue::from_str(id).ok());
        Binding { session, version: Some(self.token.upstream_version) }
    }
}

/// A handshake that all who need it wait for.
pub(super) type Renewal = Shared<BoxFuture<'static, Result<Binding, GatewayFault>>>;

/// What is known about one session.
#[derive(Debug, Default)]
struct Known(Mutex<Facts>);

#[derive(Debug, Default)]
struct Facts {
    /// The upstream session in use, where it is not the token's any more.
    renewed: Option<Binding>,
    renewal: Option<Renewal>,
    told: Told,
}

/// What an upstream session was told that a new one has to be told again.
#[derive(Clone, Debug, Default)]
pub(in crate::face) struct Told {
    /// The params of `logging/setLevel`.
    pub(in crate::face) level: Option<Payload>,
    /// The addresses of `resources/subscribe`.
    pub(in crate::face) subscriptions: BTreeSet<String>,
}

/// One thing that a client tells its upstream session.
#[derive(Clone, Debug)]
pub(in crate::face) enum Telling {
    Level(Payload),
    Subscribe(String),
    Unsubscribe(String),
}

/// By nonce.
#[derive(Debug)]
pub(in crate::face) struct Sessions {
    known: Cache<u128, Arc<Known>>,
    ended: Cache<u128, ()>,
}

impl Sessions {
    pub(super) fn new() -> Self {
        let lru = EvictionPolicy::lru();
        Self {
            known: Cache::builder().max_capacity(KNOWN_MAX).eviction_policy(lru.clone()).build(),
            ended: Cache::builder().max_capacity(ENDED_MAX).eviction_policy(lru).build(),
        }
    }

    pub(super) async fn has_ended(&self, nonce: u128) -> bool {
        self.ended.get(&nonce).await.is_some()
    }

    pub(super) async fn ended(&self, nonce: u128) {
        self.ended.insert(nonce, ()).await;
        self.known.invalidate(&nonce).await;
    }

    /// The upstream session that is in use.
    pub(in crate::face) async fn binding(&self, session: &Session) -> Binding {
        let renewed = match self.known.get(&session.token.nonce).await {
            Some(known) => known.0.lock().renewed.clone(),
            None => None,
        };
        renewed.unwrap_or_else(|| session.opened())
    }

    /// Whether another upstream session took the place of the first one.
    pub(in crate::face) async fn is_renewed(&self, session: &Session) -> bool {
        match self.known.get(&session.token.nonce).await {
            Some(known) => known.0.lock().renewed.is_some(),
            None => false,
        }
    }

    /// Keeps in mind what an upstream session was told.
    pub(in crate::face) async fn tell(&self, session: &Session, telling: Telling) {
        let known = self.known(session).await;
        let told = &mut known.0.lock().told;
        match telling {
            Telling::Level(params) => {
                told.level =
                    Some(params).filter(|params| params.len() <= TOLD_BYTES_MAX).map(|params| params.detached());
            }
            Telling::Subscribe(uri) => {
                let kept: usize = told.subscriptions.iter().map(String::len).sum();
                if told.subscriptions.len() < SUBSCRIPTIONS_MAX && kept + uri.len() <= TOLD_BYTES_MAX {
                    told.subscriptions.insert(uri);
                }
            }
            Telling::Unsubscribe(uri) => {
                told.subscriptions.remove(&uri);
            }
        }
    }

    /// The upstream session that takes the place of `lost`: one that is there already, or the one that
    /// `open` is opening, started here unless somebody has started it.
    pub(super) async fn renew(
        &self,
        session: &Session,
        lost: &Binding,
        open: impl FnOnce(Told) -> BoxFuture<'static, Result<Binding, GatewayFault>>,
    ) -> Result<Binding, GatewayFault> {
        let known = self.known(session).await;
        let renewal = {
            let mut facts = known.0.lock();
            if let Some(renewed) = facts.renewed.as_ref().filter(|renewed| *renewed != lost) {
                return Ok(renewed.clone());
            }
            if facts.renewal.is_none() {
                let opening = open(facts.told.clone());
                // Weak, as what is known owns this future.
                let known = Arc::downgrade(&known);
                let noted = async move {
                    let opened = opening.await;
                    if let Some(known) = known.upgrade() {
                        let mut facts = known.0.lock();
                        facts.renewal = None;
                        if let Ok(binding) = &opened {
                            facts.renewed = Some(binding.clone());
                        }
                    }
                    opened
                };
                facts.renewal = Some(noted.boxed().shared());
            }
            facts.renewal.clone()
        };
        match renewal {
            Some(renewal) => renewal.await,
            None => Ok(lost.clone()),
        }
    }

    async fn known(&self, session: &Session) -> Arc<Known> {
        self.known.get_with(session.token.nonce, async { Arc::default() }).await
    }
}
