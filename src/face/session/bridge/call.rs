//! One request of a session client, as a call of the engine's.
//!
//! A driver follows the call to its end, whether or not its client still waits: that a client disconnects says nothing
//! here (LEG-11, T-81). What the client sees comes from the driver by a bounded queue; the first thing in it decides
//! between JSON and an event stream.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::super::tasks::Support;
use super::client::{Client, no_questions};
use super::desk::Entry;
use super::round::Next;
use super::{Session, Shared};
use crate::dialect::faults::gateway_error;
use crate::dialect::negotiate::LogLevel;
use crate::dialect::plain::PlainPeer;
use crate::dialect::reintroduction::{session_error, session_result};
use crate::dialect::{Complaint, PeerDialect};
use crate::engine::{CallEnd, CallEvent, CallSpec, CallStream, Engine, Questions, Rounds};
use crate::face::answer::{Addressee, accepted, event_stream};
use crate::face::http::{AcceptedTypes, Inbound, Response, empty_body};
use crate::face::pipe::tool_of;
use crate::face::rewrite;
use crate::face::rising::Rising;
use crate::metric;
use crate::task::{Executed, Failure, GatewayFault, Outcome, Plan, Principal, Reason};
use crate::upstream::{NativeTask, Upstream, UpstreamRequest};
use crate::wire::envelope::{Params, Request};
use crate::wire::framing::{sse_comment, sse_message};
use crate::wire::{Object, Payload, RequestId, RpcError, envelope, meta, method};

/// What waits for a client that reads slowly; above that the upstream is read no further.
const QUEUE_MAX: usize = 16;

/// Who makes a request, and what it takes for an answer.
pub(in crate::face::session) struct Caller {
    pub(super) principal: Principal,
    pub(super) accepted: AcceptedTypes,
    pub(super) arrived: Instant,
}

impl Caller {
    pub(in crate::face::session) fn of(inbound: &Inbound) -> Self {
        Self { principal: inbound.principal.clone(), accepted: inbound.accepted, arrived: inbound.received_at }
    }

    const fn takes_stream(&self) -> bool {
        matches!(self.accepted, AcceptedTypes::EventStream | AcceptedTypes::Both)
    }
}

/// How a request is answered.
pub(super) type Ending = Result<Payload, RpcError>;

/// What a driver has to say to its client.
enum Word {
    /// A message or a comment, as it stands in a stream.
    Event(Bytes),
    /// The answer. Nothing follows.
    Last(Ending),
}

/// The client's end of a call. Dropping it leaves the call alone.
pub(in crate::face::session) struct Said {
    words: mpsc::Receiver<Word>,
    cancelled: CancellationToken,
}

impl Said {
    /// The whole answer: JSON where nothing comes before it in time.
    pub(in crate::face::session) async fn respond(mut self, addressee: Addressee) -> Response {
        match self.next().await {
            Some(Word::Last(Ok(result))) => addressee.result(result),
            Some(Word::Last(Err(error))) => addressee.error(StatusCode::OK, &error),
            Some(Word::Event(first)) => self.stream(first, addressee.id),
            // A cancelled request has no response (LEG-14), but HTTP wants one.
            None if addressee.accepted == AcceptedTypes::Json => accepted(),
            None => event_stream(empty_body()),
        }
    }

    /// The answer as a message, passing over what comes before; `None` where the request was cancelled.
    pub(super) async fn message(mut self, id: &RequestId) -> Option<Bytes> {
        loop {
            match self.next().await? {
                Word::Event(_) => (),
                Word::Last(ending) => return Some(last_message(Some(id), &ending)),
            }
        }
    }

    /// The next word; `None` where the request was cancelled, and after the last.
    async fn next(&mut self) -> Option<Word> {
        match self.words.recv().await {
            // The driver is gone without a word, by a bug or with the process.
            None if !self.cancelled.is_cancelled() => Some(Word::Last(fault(Reason::Internal))),
            word => word,
        }
    }

    fn stream(self, first: Bytes, id: Option<RequestId>) -> Response {
        let state = (Some(self), Some(first));
        let events = stream::unfold(state, move |(said, first)| {
            let id = id.clone();
            async move {
                if let Some(first) = first {
                    return Some((Ok::<_, io::Error>(Frame::data(first)), (said, None)));
                }
                let mut said = said?;
                let (piece, more) = match said.next().await? {
                    Word::Event(event) => (event, Some(said)),
                    Word::Last(ending) => (sse_message(&last_message(id.as_ref(), &ending)), None),
                };
                Some((Ok(Frame::data(piece)), (more, None)))
            }
        });
        event_stream(StreamBody::new(events).boxed_unsync())
    }
}

fn last_message(id: Option<&RequestId>, ending: &Ending) -> Bytes {
    match (id, ending) {
        (Some(id), Ok(result)) => envelope::result(id, result),
        (_, Err(error)) => envelope::error(id, error),
        (None, Ok(_)) => envelope::error(None, &gateway_error(&GatewayFault::new(Reason::Internal, Executed::Unknown))),
    }
}

fn fault(reason: Reason) -> Ending {
    Err(gateway_error(&GatewayFault::new(reason, Executed::Unknown)))
}

/// Where a request goes.
pub(in crate::face::session) struct Way {
    pub(in crate::face::session) upstream: Arc<dyn Upstream>,
    pub(in crate::face::session) speech: Speech,
}

/// In whose words the upstream answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::face::session) enum Speech {
    /// Of a server without sessions: they are turned into those of a session.
    Stateless,
    /// Of a server with sessions, which runs the tool only as a task.
    Sessions,
}

/// Begins a request to a server without sessions.
///
/// # Errors
/// As [`begin_on`].
pub(super) fn begin(
    shared: &Arc<Shared>,
    session: &Session,
    request: &Request,
    caller: Caller,
) -> Result<Said, RpcError> {
    let Some(bridge) = &shared.served.bridge else {
        return Err(gateway_error(&GatewayFault::new(Reason::UpstreamSessionLost, Executed::No)));
    };
    let way = Way { upstream: Arc::clone(&bridge.stateless), speech: Speech::Stateless };
    begin_on(&way, shared, session, request, caller)
}

/// Begins a request.
///
/// # Errors
/// Those that the client is to see; nothing was sent.
pub(in crate::face::session) fn begin_on(
    way: &Way,
    shared: &Arc<Shared>,
    session: &Session,
    request: &Request,
    caller: Caller,
) -> Result<Said, RpcError> {
    let version = session.token.client_version;
    let complain = |complaint: &Complaint| complaint.to_error(version);
    let tool = match request.method.as_str() {
        method::TOOLS_CALL => Some(tool_of(request.params.object()).map_err(|complaint| complain(&complaint))?),
        _ => None,
    };
    let params = match &request.params {
        Params::Absent => None,
        Params::Object(params) => Some(params),
        Params::Other(_) => return Err(complain(&Complaint::Params(Cow::Borrowed("params must be an object")))),
    };
    let entered = shared.desk.enter(session.token.nonce, &request.id).map_err(|full| gateway_error(&full))?;
    let cancelled = entered.cancelled().clone();
    let counter = if tool.is_some() { &shared.meter.calls } else { &shared.meter.requests };
    counter.increment(1);

    let client = Client::of(version, &session.token.capabilities);
    let questions = if caller.takes_stream() { client.questions() } else { no_questions() };
    let token = params.and_then(progress_token).filter(|_| caller.takes_stream());
    let level = shared.sessions.level(session).filter(|_| caller.takes_stream());
    let (words, said) = mpsc::channel(QUEUE_MAX);
    let mut driver = Driver {
        shared: Arc::clone(shared),
        engine: Arc::clone(&shared.served.engine),
        method: request.method.clone(),
        uri: params.filter(|_| request.method == method::RESOURCES_READ).and_then(|params| params.get_string("uri")),
        nonce: session.token.nonce,
        version,
        rising: token.map(Rising::new),
        level,
        words,
        takes_stream: caller.takes_stream(),
        began: Instant::now(),
        is_call: tool.is_some(),
        questions,
        entered,
        support: shared.tasks.support(session),
        speech: way.speech,
    };
    let call = shared.served.engine.call(driver.spec(&way.upstream, &client, params, (tool, caller)));
    let stop = shared.served.life.stop.clone();
    let driving = async move { driver.run(call).await };
    shared.served.life.tracker.spawn(stop.run_until_cancelled_owned(driving));
    Ok(Said { words: said, cancelled })
}

/// The token that progress is wanted under, if it is one.
fn progress_token(params: &Object) -> Option<Payload> {
    let token = params.get_object(meta::META)?.get(meta::PROGRESS_TOKEN)?;
    RequestId::from_payload(&token).map(|token| token.payload().clone())
}

/// Follows one call, whoever waits for it.
pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
    pub(super) engine: Arc<Engine>,
    method: String,
    /// The resource that is read.
    uri: Option<String>,
    pub(super) nonce: u128,
    pub(super) version: crate::wire::ProtocolVersion,
    rising: Option<Rising>,
    level: Option<LogLevel>,
    words: mpsc::Sender<Word>,
    takes_stream: bool,
    began: Instant,
    is_call: bool,
    pub(super) questions: Questions,
    entered: Entry,
    /// What a tool list says of tasks.
    support: Option<Support>,
    speech: Speech,
}

/// What came of listening to a call for a while.
enum Heard {
    Over(Ending),
    Cancelled,
    /// Under this task.
    Asked(Arc<crate::task::Task>),
}

impl Driver {
    fn spec(
        &self,
        upstream: &Arc<dyn Upstream>,
        client: &Client,
        params: Option<&Object>,
        (tool, caller): (Option<String>, Caller),
    ) -> CallSpec {
        let served = &self.shared.served;
        let is_tool = tool.is_some();
        let tool = tool.unwrap_or_default();
        let policy = if is_tool { served.rules.policy_of(&tool) } else { served.rules.default.clone() };
        let (timeouts, bytes_max) = match is_tool {
            true => (served.call_timeouts, policy.result_bytes_max),
            false => (served.timeouts, served.edited_bytes_max),
        };
        let mut context = client.context(&caller.principal, timeouts, bytes_max);
        context.progress = self.rising.is_some();
        match self.speech {
            Speech::Stateless => context.log_level = self.level.map(|level| Arc::from(level.as_str())),
            // The level of a session is the client's own affair.
            Speech::Sessions => context.native_task = NativeTask::WhereServed { deadline: policy.deadline },
        }
        let peer = Arc::new(PlainPeer);
        CallSpec {
            owner: caller.principal,
            upstream: Arc::clone(upstream),
            slots: is_tool.then(|| Arc::clone(&served.slots)),
            queue_deadline: served.queue_deadline,
            request: UpstreamRequest {
                method: Arc::from(self.method.as_str()),
                params: params.map(|params| peer.encode_params(params)),
            },
            peer,
            context,
            tool: Arc::from(tool),
            policy,
            plan: Plan::Direct,
            arrived: caller.arrived,
            questions: Arc::clone(&self.questions),
            rounds: match self.method.as_str() {
                method::TOOLS_CALL | method::PROMPTS_GET | method::RESOURCES_READ => Rounds::Allowed,
                _ => Rounds::Unknown,
            },
            asides: None,
        }
    }

    async fn run(&mut self, mut call: CallStream) {
        let ending = loop {
            match self.hear(call).await {
                Heard::Over(ending) => break Some(ending),
                Heard::Cancelled => break None,
                Heard::Asked(task) => match self.ask(&task.key).await {
                    Next::Going(stream) => call = stream,
                    Next::Over(ending) => break Some(ending),
                    Next::Cancelled => break None,
                },
            }
        };
        let histogram = if self.is_call { &self.shared.meter.call_time } else { &self.shared.meter.request_time };
        histogram.record(self.began.elapsed());
        if let Some(ending) = ending
            && self.words.send(Word::Last(ending)).await.is_err()
        {
            let upstream = Arc::clone(self.shared.served.conduit.name());
            metrics::counter!(metric::UPSTREAM_DROPPED, "upstream" => upstream, "reason" => "client_gone").increment(1);
        }
    }

    /// Listens until the call ends or asks. Returning for a cancel drops the call, which tells the upstream.
    async fn hear(&mut self, mut call: CallStream) -> Heard {
        let cancelled = self.entered.cancelled().clone();
        let mut silent_since = Instant::now();
        loop {
            let sign_at = silent_since + self.shared.served.life_sign;
            let event = tokio::select! {
                biased;
                () = cancelled.cancelled() => return Heard::Cancelled,
                event = timeout_at(sign_at, call.next()) => event,
            };
            let Ok(event) = event else {
                self.life_sign().await;
                silent_since = Instant::now();
                continue;
            };
            let message = match event {
                Some(CallEvent::Progress(progress)) => self.rising.as_mut().and_then(|rising| {
                    let value = rising.real(&progress.progress, progress.total.as_ref())?;
                    Some(rising.notification(&value, progress.message.as_deref()))
                }),
                Some(CallEvent::Log(log)) => {
                    self.wants(&log).then(|| envelope::notification(method::LOG_MESSAGE, Some(&log)))
                }
                Some(CallEvent::StaysPlain) => None,
                Some(CallEvent::InputRequired { task, .. }) => return Heard::Asked(task),
                Some(CallEvent::Ended(CallEnd::Outcome(outcome))) => return Heard::Over(self.ending(outcome)),
                Some(CallEvent::Ended(CallEnd::Gone | CallEnd::NeedsCapability(_))) => {
                    return Heard::Over(fault(Reason::UpstreamClosed));
                }
                // No handle is given out here.
                Some(CallEvent::Created(_)) | None => return Heard::Over(fault(Reason::Internal)),
            };
            if let Some(message) = message {
                self.say(sse_message(&message)).await;
                silent_since = Instant::now();
            }
        }
    }

    /// Whether the session's level lets a log message through. Without one a server with sessions says what it likes.
    fn wants(&self, log: &Payload) -> bool {
        if self.speech == Speech::Sessions && self.level.is_none() {
            return true;
        }
        let level = Object::of(log).and_then(|log| log.get_string("level")).as_deref().and_then(LogLevel::parse);
        matches!((self.level, level), (Some(wanted), Some(level)) if level >= wanted)
    }

    /// A tool list says which tools may be called as tasks, where tasks are offered.
    fn offering(&self, result: Payload) -> Payload {
        let Some(support) = self.support.as_deref().filter(|_| self.method == method::TOOLS_LIST) else {
            return result;
        };
        Object::of(&result).and_then(|list| rewrite::tools(&list, Some(support))).unwrap_or(result)
    }

    /// How the client is told of an outcome.
    pub(super) fn ending(&self, outcome: Outcome) -> Ending {
        match outcome {
            Outcome::Returned { result, .. } if self.speech == Speech::Sessions => Ok(result),
            Outcome::Faulted(Failure::Upstream(error)) if self.speech == Speech::Sessions => Err(error),
            Outcome::Returned { result, .. } => Ok(self.offering(session_result(&self.method, &result))),
            Outcome::Faulted(Failure::Upstream(error)) => Err(session_error(&error, self.uri.as_deref())),
            Outcome::Faulted(Failure::Gateway(fault)) => Err(gateway_error(&fault)),
            Outcome::Cancelled => fault(Reason::UpstreamClosed),
        }
    }

    /// Set once the client wants no answer any more.
    pub(super) const fn cancelled(&self) -> &CancellationToken {
        self.entered.cancelled()
    }

    /// Says something before the answer. False if it has nowhere to go.
    pub(super) async fn say(&self, event: Bytes) -> bool {
        if !self.takes_stream {
            return false;
        }
        let saying = self.cancelled().run_until_cancelled(self.words.send(Word::Event(event)));
        matches!(saying.await, Some(Ok(())))
    }

    /// Breaks a silence: by progress where the client lets that reset its timers, else by a comment.
    pub(super) async fn life_sign(&mut self) {
        let sign = match &mut self.rising {
            Some(rising) if self.shared.served.life_signs => sse_message(&rising.sign()),
            Some(_) | None => sse_comment(),
        };
        self.say(sign).await;
    }
}
