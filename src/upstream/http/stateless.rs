//! Implements requests to servers of 2026-07-28, without sessions. Read `stateless_sender` for one request, and
//! `stateless_call` for a call with questions or the upstream's task
//! ([`relay_ext_tasks`](crate::dialect::relay_ext_tasks)). `StatelessExchange` owns it; `listen` subscribes.

mod input_requests;
mod listen;
mod stateless_call;
mod stateless_sender;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::input_requests::InputRequests;
use self::listen::ListenSources;
use self::stateless_call::{QuestionAnswer, StatelessCall, UpstreamTaskCell};
use self::stateless_sender::{AnnotatedTools, DraftRequest, RequestFailure, StatelessSender};
use super::exchange::{CallFuture, DrivenCall};
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::era::{EraAnswer, EraCache, EraDiscovery, era_of_refusal, is_served};
use crate::upstream::exchange::ExchangeClass;
use crate::upstream::exchange::{Era, NotificationResult, SubscriptionResult};
use crate::upstream::session::{SessionKey, UpstreamLink};
use crate::upstream::{
    Answer, AnsweredBy, BeginError, CallContext, ClientCredential, Exchange, ExchangeError, ExchangeEvent,
    ForwardedHeaders, Handshake, ResumeToken, TaskRequestError, Timeouts, Upstream, UpstreamRequest,
};
use crate::wire::meta::{META, SERVER_INFO};
use crate::wire::{Object, Payload, ProtocolVersion, method};

pub(crate) use self::stateless_call::token as task_token;

const DISCOVER_BYTES_MAX: usize = 1024 * 1024;
/// A server may be replaced by a newer one: after this time it is asked again (U84), and given this long to answer.
const HANDSHAKE_FRESH_FOR: Duration = Duration::from_secs(60);
const HANDSHAKE_WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct StatelessUpstream {
    link: Arc<UpstreamLink>,
    eras: Arc<EraCache>,
    annotated: Arc<AnnotatedTools>,
    /// The last handshake. It may depend on the client, so only the server's name is trusted.
    handshake: parking_lot::Mutex<Option<CachedHandshake>>,
    listens: Arc<ListenSources>,
}

#[derive(Debug)]
struct CachedHandshake {
    handshake: Arc<Handshake>,
    asked_at: Instant,
}

impl StatelessUpstream {
    pub(in crate::upstream) fn new(link: Arc<UpstreamLink>, eras: Arc<EraCache>) -> Self {
        let listens = ListenSources::new(Arc::clone(&link));
        Self { link, eras, annotated: Arc::default(), handshake: parking_lot::Mutex::default(), listens }
    }

    fn sender(&self, context: &CallContext) -> StatelessSender {
        StatelessSender::new(Arc::clone(&self.link), Arc::clone(&self.eras), Arc::clone(&self.annotated), context)
    }

    async fn request_discover(&self, context: &CallContext) -> Result<Arc<Handshake>, RequestFailure> {
        let request = DraftRequest::new(method::DISCOVER, None);
        let result = self.sender(context).answer(&request, None).await?;
        let handshake = Arc::new(handshake_in(&result).ok_or(RequestFailure::Lost(MALFORMED))?);
        self.eras.discovered(&handshake.capabilities);
        *self.handshake.lock() = Some(CachedHandshake { handshake: Arc::clone(&handshake), asked_at: Instant::now() });
        Ok(handshake)
    }

    async fn fetch_handshake(&self, context: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        let mark = self.link.health.mark();
        self.request_discover(context).await.map_err(|ending| match ending {
            RequestFailure::Faulted(error) => BeginError::Refused(error),
            RequestFailure::Lost(fault) => {
                self.link.health.ended(mark, &fault);
                BeginError::Gateway(GatewayFault { executed: Executed::No, ..fault })
            }
        })
    }

    /// The last handshake, and whether it is fresh. Of several callers the first one has to refresh it.
    fn cached_handshake(&self) -> Option<(Arc<Handshake>, bool)> {
        let mut known = self.handshake.lock();
        let known = known.as_mut()?;
        let is_fresh = known.asked_at.elapsed() < HANDSHAKE_FRESH_FOR;
        if !is_fresh {
            known.asked_at = Instant::now();
        }
        Some((Arc::clone(&known.handshake), is_fresh))
    }
}

const MALFORMED: GatewayFault = GatewayFault::new(Reason::UpstreamMalformed, Executed::No);

/// `None` if the server supports none of the gateway's versions.
fn handshake_in(result: &Payload) -> Option<Handshake> {
    let result = Object::of(result)?;
    let versions: Vec<String> = result.get("supportedVersions")?.read().ok()?;
    versions.iter().any(|version| is_served(version)).then_some(())?;
    let meta = result.get_object(META);
    Some(Handshake {
        version: ProtocolVersion::STATELESS,
        capabilities: result.get_object("capabilities")?.payload().detached(),
        server_info: meta.and_then(|meta| Handshake::identity_in(&meta, SERVER_INFO)),
        instructions: Handshake::instructions_in(&result),
        has_session: false,
    })
}

/// Probes anonymously: a stateless server allows any client. Only servers that authenticate clients get a credential.
#[async_trait]
impl EraDiscovery for StatelessUpstream {
    async fn discover(&self, credential: &ClientCredential) -> EraAnswer {
        let (nobody, nothing) = (Principal::anonymous(), Payload::empty_object());
        let context = CallContext {
            forwarded: ForwardedHeaders::bearing(credential),
            ..CallContext::new(nobody, nothing, Timeouts::default(), DISCOVER_BYTES_MAX)
        };
        match self.request_discover(&context).await {
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
                ) if credential.is_clients() => EraAnswer::CredentialRefused,
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

    async fn handshake(&self, context: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        // A server that authenticates clients itself decides for each.
        let is_open = !context.forwarded.credential().is_clients();
        match is_open.then(|| self.cached_handshake()).flatten() {
            Some((handshake, true)) => Ok(handshake),
            // A server that fails now keeps its last description.
            Some((handshake, false)) => {
                let asked = tokio::time::timeout(HANDSHAKE_WAIT_MAX, self.fetch_handshake(context)).await;
                Ok(asked.ok().and_then(Result::ok).unwrap_or(handshake))
            }
            None => self.fetch_handshake(context).await,
        }
    }

    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let exchange = StatelessExchange::begin(self.sender(&context), request, &context).await?;
        Ok(Box::new(exchange))
    }

    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let broken = GatewayFault::new(Reason::UpstreamSessionLost, Executed::Unknown);
        let (task, open) = stateless_call::resumed(&token).ok_or(BeginError::Gateway(broken))?;
        Ok(Box::new(StatelessExchange::resume(self.sender(&context), task, open)))
    }

    /// Reports only that tools changed, as long as any client listens.
    async fn notifications(&self, _: &CallContext) -> NotificationResult {
        Ok(self.listens.tool_changes.subscribe())
    }

    async fn listen(&self, context: &CallContext, wishes: &SubscriptionFilter) -> SubscriptionResult {
        self.listens.listen(SessionKey::of(context), self.sender(context), wishes.of_the_upstream()).await
    }
}

const EVENTS_MAX: usize = 64;
/// How long a cancel waits for a task handle: servers make tasks at once, and dropping the request does not end one.
const HANDLE_MAX: Duration = Duration::from_secs(1);
/// Queued answers; more than the open questions of a call.
const ANSWERS_MAX: usize = 64;

struct StatelessExchange {
    sender: StatelessSender,
    driven: DrivenCall,
    answers: mpsc::Sender<Box<QuestionAnswer>>,
    task: UpstreamTaskCell,
    /// Questions that the owner received, neither answered nor withdrawn.
    open: Vec<Payload>,
    untaken: Arc<AtomicBool>,
}

impl StatelessExchange {
    /// Sends a request and returns once a connection has taken it. On an error nothing was sent.
    async fn begin(
        sender: StatelessSender,
        request: UpstreamRequest,
        context: &CallContext,
    ) -> Result<Self, BeginError> {
        let class = if *request.method == *method::TOOLS_CALL { ExchangeClass::Call } else { ExchangeClass::Other };
        let request = DraftRequest { method: request.method, params: request.params, progress: context.progress };
        let handed_over = context.handed_over.clone().unwrap_or_default();
        let mut exchange = Self::start(sender, class, |course| Box::pin(course.run(request, Arc::clone(&handed_over))));
        exchange.driven.hand_over(&handed_over).await?;
        Ok(exchange)
    }

    /// Resumes a task of another process; its events show whether the upstream still has it.
    fn resume(sender: StatelessSender, id: Arc<str>, open: Vec<Payload>) -> Self {
        let (task, known) = (Arc::clone(&id), open.clone());
        let exchange = Self::start(sender, ExchangeClass::Resumed, |mut course| {
            Box::pin(async move { course.take_up(task, &known).await.map_or_else(|end| end, ExchangeEvent::Returned) })
        });
        exchange.task.set(&id);
        Self { open, ..exchange }
    }

    fn start(sender: StatelessSender, class: ExchangeClass, run: impl FnOnce(StatelessCall) -> CallFuture) -> Self {
        let (events, queue) = mpsc::channel(EVENTS_MAX);
        let (answers, answered) = mpsc::channel(ANSWERS_MAX);
        let task = UpstreamTaskCell::default();
        let untaken = Arc::<AtomicBool>::default();
        let course = StatelessCall {
            sender: sender.clone(),
            events,
            answers: answered,
            questions: InputRequests::default(),
            has_client_answer: false,
            task: task.clone(),
            untaken: Arc::clone(&untaken),
        };
        let driven = DrivenCall::new(&sender.link, class, Instant::now(), queue, run(course));
        Self { sender, driven, answers, task, open: Vec::new(), untaken }
    }
}

impl StatelessExchange {
    fn queue_answer(&mut self, ask: &Payload, answer: Answer, by: AnsweredBy) -> Result<(), ExchangeError> {
        if !self.driven.is_running() {
            return Ok(());
        }
        let full = |_| ExchangeError(GatewayFault::new(Reason::Internal, Executed::Unknown));
        let answer = QuestionAnswer { ask: ask.detached(), answer, by };
        self.answers.try_send(Box::new(answer)).map_err(full)?;
        self.open.retain(|open| open != ask);
        Ok(())
    }
}

#[async_trait]
impl Exchange for StatelessExchange {
    async fn next(&mut self) -> ExchangeEvent {
        let event = self.driven.next().await;
        if let ExchangeEvent::Asked { ask, .. } = &event
            && !self.open.contains(ask)
        {
            self.open.push(ask.detached());
        } else if let ExchangeEvent::Withdrawn { ask } = &event {
            self.open.retain(|open| open != ask);
        }
        event
    }

    /// The call sends the queued answer at its next update.
    async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        self.queue_answer(ask, answer, AnsweredBy::Client)
    }

    async fn refuse(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        self.queue_answer(ask, answer, AnsweredBy::Gateway)
    }

    /// Dropping a request cancels it at a stateless server; a task is cancelled by its id.
    async fn cancel(&mut self, _: &str) {
        if self.sender.takes_tasks {
            self.driven.run_until(tokio::time::timeout(HANDLE_MAX, self.task.wait())).await;
        }
        if self.driven.is_running() {
            self.driven.abandon();
            if let Some(id) = self.task.get() {
                stateless_call::cancel(&self.sender, &id).await;
            }
        }
    }

    async fn cancel_task(&mut self) -> Result<(), TaskRequestError> {
        match self.task.get().filter(|_| self.driven.is_running()) {
            Some(id) => stateless_call::request_cancel(&self.sender, &id).await,
            None => Ok(()),
        }
    }

    fn resume_token(&self) -> Option<ResumeToken> {
        // A token does not hold answers that are not yet sent.
        let is_answered = self.untaken.load(Ordering::Relaxed) || self.answers.capacity() < ANSWERS_MAX;
        let task = self.task.get().filter(|_| self.driven.is_running() && !is_answered)?;
        Some(stateless_call::token(&task, &self.open))
    }
}
