//! Implements requests to servers of 2026-07-28, without sessions.
//!
//! Read `stateless_sender` for one request and its response, and `stateless_call` for a call with questions or a task
//! of the upstream ([`relay_ext_tasks`](crate::dialect::relay_ext_tasks) reads their messages). `exchange` owns it;
//! `listen` subscribes to notifications.

mod exchange;
mod input_requests;
mod listen;
mod stateless_call;
mod stateless_sender;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::broadcast;

use self::exchange::StatelessExchange;
use self::listen::ListenSources;
pub(crate) use self::stateless_call::token as task_token;
use self::stateless_sender::{AnnotatedTools, DraftRequest, RequestFailure, StatelessSender};
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::era::{EraAnswer, EraCache, EraDiscovery, era_of_refusal, is_served};
use crate::upstream::exchange::Era;
use crate::upstream::session::{SessionKey, UpstreamLink};
use crate::upstream::{
    BeginError, CallContext, ClientCredential, Exchange, ForwardedHeaders, NotificationSubscription, ResumeToken,
    ServerFacts, ServerNotification, Timeouts, Upstream, UpstreamRequest,
};
use crate::wire::meta::{META, SERVER_INFO};
use crate::wire::{Object, Payload, ProtocolVersion, method};

const DISCOVER_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug)]
pub(crate) struct StatelessUpstream {
    link: Arc<UpstreamLink>,
    eras: Arc<EraCache>,
    annotated: Arc<AnnotatedTools>,
    /// The server's facts. They may depend on the client, so only the name is trusted.
    facts: parking_lot::Mutex<Option<Arc<ServerFacts>>>,
    listens: Arc<ListenSources>,
}

impl StatelessUpstream {
    pub(in crate::upstream) fn new(link: Arc<UpstreamLink>, eras: Arc<EraCache>) -> Self {
        let listens = ListenSources::new(Arc::clone(&link));
        Self { link, eras, annotated: Arc::default(), facts: parking_lot::Mutex::default(), listens }
    }

    fn line(&self, context: &CallContext) -> StatelessSender {
        StatelessSender::new(Arc::clone(&self.link), Arc::clone(&self.eras), Arc::clone(&self.annotated), context)
    }

    async fn ask_facts(&self, context: &CallContext) -> Result<Arc<ServerFacts>, RequestFailure> {
        let request = DraftRequest::new(method::DISCOVER, None);
        let result = self.line(context).answer(&request, None).await?;
        let facts = Arc::new(facts_in(&result).ok_or(RequestFailure::Lost(MALFORMED))?);
        self.eras.discovered(&facts.capabilities);
        *self.facts.lock() = Some(Arc::clone(&facts));
        Ok(facts)
    }
}

const MALFORMED: GatewayFault = GatewayFault::new(Reason::UpstreamMalformed, Executed::No);

/// `None` if the server supports none of the gateway's versions.
fn facts_in(result: &Payload) -> Option<ServerFacts> {
    let result = Object::of(result)?;
    let versions: Vec<String> = result.get("supportedVersions")?.read().ok()?;
    versions.iter().any(|version| is_served(version)).then_some(())?;
    let meta = result.get_object(META);
    Some(ServerFacts {
        version: ProtocolVersion::STATELESS,
        capabilities: result.get_object("capabilities")?.payload().detached(),
        server_info: meta.and_then(|meta| meta.get(SERVER_INFO)).map(|info| info.detached()),
        instructions: result.get("instructions").map(|text| text.detached()),
        has_session: false,
    })
}

/// Probes anonymously and without capabilities, as a stateless server allows any client. Only a server that
/// authenticates clients itself receives a client's credential.
#[async_trait]
impl EraDiscovery for StatelessUpstream {
    async fn discover(&self, credential: &ClientCredential) -> EraAnswer {
        let (nobody, nothing) = (Principal::anonymous(), Payload::empty_object());
        let context = CallContext {
            forwarded: ForwardedHeaders::bearing(credential),
            ..CallContext::new(nobody, nothing, Timeouts::default(), DISCOVER_BYTES_MAX)
        };
        match self.ask_facts(&context).await {
            Ok(_) => EraAnswer::Verdict(Era::Stateless),
            Err(RequestFailure::Faulted(error)) => EraAnswer::Verdict(era_of_refusal(&error)),
            // A missing credential or a failing server does not show the era.
            Err(RequestFailure::Lost(fault)) => match (fault.reason, fault.http_status) {
                (
                    Reason::UpstreamAuth
                    | Reason::CredentialMissing
                    | Reason::CredentialBound
                    | Reason::CredentialRefused,
                    _,
                ) if credential.is_clients() => EraAnswer::NotLetIn,
                // A server that does not know the method answers it with an error.
                (Reason::ResultTooLarge, _) => EraAnswer::Verdict(Era::Stateless),
                (Reason::UpstreamMalformed, _) => EraAnswer::Verdict(Era::Session),
                (Reason::UpstreamHttpStatus, Some(400..=499)) if fault.http_status != Some(429) => {
                    EraAnswer::Verdict(Era::Session)
                }
                // Some servers exit on a request before `initialize`.
                (Reason::UpstreamClosed, _) if self.link.transport.is_adapted() => EraAnswer::Verdict(Era::Session),
                _ => EraAnswer::NoVerdict,
            },
        }
    }
}

#[async_trait]
impl Upstream for StatelessUpstream {
    fn name(&self) -> &Arc<str> {
        &self.link.name
    }

    async fn facts(&self, context: &CallContext) -> Result<Arc<ServerFacts>, BeginError> {
        // A server that authenticates clients itself decides for each.
        let is_open = !context.forwarded.credential().is_clients();
        let known = self.facts.lock().clone().filter(|_| is_open);
        if let Some(facts) = known {
            return Ok(facts);
        }
        let mark = self.link.health.mark();
        self.ask_facts(context).await.map_err(|ending| match ending {
            RequestFailure::Faulted(error) => BeginError::Refused(error),
            RequestFailure::Lost(fault) => {
                self.link.health.ended(mark, &fault);
                BeginError::Gateway(GatewayFault { executed: Executed::No, ..fault })
            }
        })
    }

    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let exchange = StatelessExchange::begin(self.line(&context), request, &context).await?;
        Ok(Box::new(exchange))
    }

    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let broken = GatewayFault::new(Reason::UpstreamSessionLost, Executed::Unknown);
        let (task, open) = stateless_call::resumed(&token).ok_or(BeginError::Gateway(broken))?;
        Ok(Box::new(StatelessExchange::resume(self.line(&context), task, open)))
    }

    /// Reports only that tools changed, as long as any client listens.
    async fn notifications(&self, _: &CallContext) -> Result<broadcast::Receiver<ServerNotification>, BeginError> {
        Ok(self.listens.tool_changes())
    }

    async fn listen(
        &self,
        context: &CallContext,
        wishes: &SubscriptionFilter,
    ) -> Result<NotificationSubscription, BeginError> {
        self.listens.listen(SessionKey::of(context), self.line(context), wishes.of_the_upstream()).await
    }
}
