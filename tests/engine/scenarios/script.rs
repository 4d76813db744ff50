//! A scripted upstream, with the moments of its events, that records its requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::json;
use taskgate::store::{TaskStore, WriteRole};

use taskgate::task::{Executed, GatewayFault, Reason, Timestamp};
use taskgate::upstream::{
    Answer, BeginError, CallContext, Exchange, ExchangeError, ExchangeEvent, Handshake, Progress, ResumeToken,
    Upstream, UpstreamRequest,
};
use taskgate::wire::{Payload, ProtocolVersion, RpcError, ScanLimits};
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::stores::GatedStore;

/// An event of an exchange, once its moment has come.
#[derive(Clone, Debug)]
pub(crate) enum Happens {
    /// `progress` and its message; an empty message is none.
    Progress(f64, &'static str),
    /// A log message of this level.
    Log(&'static str),
    /// A question with this method, under the name `ask-1`.
    Asks(&'static str),
    /// An elicitation under a name of its own.
    Elicits(&'static str),
    /// A question as it is written.
    AsksFor(&'static str, &'static str),
    /// Cancels the question of this name.
    Withdraws(&'static str),
    /// So many answers have come, refusals included.
    Heard(usize),
    Returns(String),
    Faults(i64, &'static str),
    /// An error with this `data`.
    FaultsWith(i64, &'static str),
    Loses(Reason, Executed),
    /// The upstream's status message of its own task.
    States(&'static str),
    /// Names subtasks of its own, each of which goes on as the rest of the script does.
    Names(&'static [&'static str]),
    /// The upstream cancels its own task.
    Cancels,
    /// A bug in the transport.
    Panics,
    /// Progress without end and without a pause.
    Floods,
}

/// One call as the upstream will treat it. After its last event it is silent for ever.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// How long the handshake and sending take.
    pub(crate) begins_after: Duration,
    /// The server may have seen the call before that is over.
    pub(crate) is_seen_at_once: bool,
    /// Nothing is sent; this is why.
    pub(crate) refusal: Option<BeginError>,
    /// Counted from the moment at which the call was sent.
    pub(crate) events: VecDeque<(Duration, Happens)>,
    /// Answers do not reach it.
    pub(crate) deaf: bool,
    /// How long an answer is on its way.
    pub(crate) answer_takes: Duration,
    /// How long the upstream takes to read a cancel.
    pub(crate) cancel_takes: Duration,
    /// The upstream's answer to a resumption by another process; `None` if the call has no resume token.
    pub(crate) resumes: Option<Resumes>,
}

/// An upstream's answer to a resumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumes {
    /// The call goes on as if nothing had happened; missed events are sent again.
    Follows,
    /// It knows nothing of the call.
    Refuses,
    /// It gives no stream, and after this long the resumption fails.
    Loses(Duration),
    /// A bug in the transport.
    Panics,
}

impl Script {
    pub(crate) fn of(events: impl IntoIterator<Item = (Duration, Happens)>) -> Self {
        Self { events: events.into_iter().collect(), ..Self::default() }
    }

    /// Returns `text` after this long.
    pub(crate) fn returns(after: Duration, text: &str) -> Self {
        Self::of([(after, Happens::Returns(result(text)))])
    }

    /// The same call, which another process can resume.
    pub(crate) fn resumed(self, resumes: Resumes) -> Self {
        Self { resumes: Some(resumes), ..self }
    }

    /// Runs for ever.
    pub(crate) fn silent() -> Self {
        Self::default()
    }
}

/// A `CallToolResult` that says `text`.
pub(crate) fn result(text: &str) -> String {
    json!({ "content": [{ "type": "text", "text": text }] }).to_string()
}

/// All requests at the upstream but `tools/list`, in order. Calls are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Saw {
    /// A call is to be sent; so many tasks lay in the store at that moment.
    Begin {
        call: usize,
        rows: usize,
    },
    Answer {
        call: usize,
        ask: String,
        answer: String,
    },
    Cancel(usize),
    /// A call is resumed after so many of its events.
    Resume {
        call: usize,
        after: usize,
    },
    /// The exchange was dropped.
    Drop(usize),
}

type Choose = dyn Fn(&Call) -> Script + Send + Sync;

/// One request as it reached the upstream.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) params: String,
    pub(crate) context: CallContext,
}

/// The upstream itself.
pub(crate) struct Scripted {
    name: Arc<str>,
    choose: Box<Choose>,
    store: Arc<dyn TaskStore>,
    seen: Arc<watch::Sender<Vec<Saw>>>,
    calls: Mutex<Vec<Call>>,
    running: Mutex<Vec<Running>>,
    changes: broadcast::Sender<(Arc<str>, Option<Payload>)>,
}

impl std::fmt::Debug for Scripted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scripted")
    }
}

impl Scripted {
    pub(crate) fn new(
        store: Arc<dyn TaskStore>,
        choose: impl Fn(&Call) -> Script + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::from("scripted"),
            choose: Box::new(choose),
            store,
            seen: Arc::new(watch::Sender::new(Vec::new())),
            calls: Mutex::default(),
            running: Mutex::default(),
            changes: broadcast::Sender::new(1),
        })
    }

    pub(crate) fn saw(&self) -> Vec<Saw> {
        self.seen.borrow().clone()
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    /// Removes the event offsets from all stored rows that have one.
    pub(crate) async fn forget_place(&self, store: &Arc<GatedStore>) {
        for key in store.unsettled().await {
            let row = store.load(&key, Timestamp::from_millis(0)).await.unwrap().unwrap();
            let mut task = (*row.task).clone();
            let Some(position) = &task.recovery.resume else { continue };
            let (call, _): (usize, usize) = position.read().unwrap();
            task.recovery.resume = Some(Payload::of(&(call, 0)));
            store.replace(row.revision, WriteRole::Command, &task).await.unwrap();
        }
    }

    /// Calls that reached the upstream.
    pub(crate) fn begins(&self) -> usize {
        self.saw().iter().filter(|saw| matches!(saw, Saw::Begin { .. })).count()
    }

    pub(crate) fn cancels(&self) -> usize {
        self.saw().iter().filter(|saw| matches!(saw, Saw::Cancel(_))).count()
    }

    /// Says something that belongs to no call. One such message is kept for those who are behind.
    pub(crate) fn change(&self, notification: &str) {
        let _ = self.changes.send((Arc::from(notification), None));
    }

    /// Waits until the upstream has seen this.
    pub(crate) async fn sees(&self, what: &Saw) {
        let mut seen = self.seen.subscribe();
        let there = tokio::time::timeout(Duration::from_secs(3600), seen.wait_for(|all| all.contains(what))).await;
        assert!(there.is_ok(), "{what:?} never came, but {:?}", self.saw());
    }

    /// The tools: one that mirrors an argument in a header, the others only differ in whether they make tasks.
    fn tools() -> String {
        let mirrored =
            json!({ "type": "object", "properties": { "region": { "type": "string", "x-mcp-header": "Region" } } });
        let plain = json!({ "type": "object" });
        let tool = |name: &str, support: &str| json!({ "name": name, "inputSchema": plain, "execution": { "taskSupport": support } });
        json!({ "tools": [
            { "name": "read", "inputSchema": plain, "annotations": { "readOnlyHint": true } },
            tool("work", "optional"), tool("other", "optional"), { "name": "mirrored", "inputSchema": mirrored },
            tool("only_as_task", "required"), tool("never_as_task", "forbidden"),
        ] })
        .to_string()
    }
}

pub(crate) fn payload(text: &str) -> Payload {
    Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::UPSTREAM).unwrap()
}

#[async_trait]
impl Upstream for Scripted {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    async fn handshake(&self, _: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        Ok(Arc::new(Handshake {
            version: ProtocolVersion::V2025_11_25,
            capabilities: payload(r#"{"tools":{"listChanged":true},"tasks":{}}"#),
            server_info: Some(payload(r#"{"name":"scripted","version":"1"}"#)),
            instructions: None,
            has_session: true,
        }))
    }

    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let params = request.params.map_or_else(String::new, |params| params.as_str().to_owned());
        let is_call = &*request.method != "tools/list";
        let (script, number) = if is_call {
            let call = Call { params, context };
            let script = (self.choose)(&call);
            if script.is_seen_at_once {
                call.context.handed_over.as_ref().unwrap().set(()).unwrap();
            }
            let mut calls = self.calls.lock();
            calls.push(call);
            let number = calls.len() - 1;
            let answers = Arc::default();
            self.running.lock().push(Running {
                script: script.clone(),
                begun: Instant::now() + script.begins_after,
                answers,
            });
            let rows = self.store.usage().tasks;
            self.seen.send_modify(|seen| seen.push(Saw::Begin { call: number, rows }));
            (script, Some(number))
        } else {
            (Script::of([(Duration::ZERO, Happens::Returns(Self::tools()))]), None)
        };
        tokio::time::sleep(script.begins_after).await;
        if let Some(refusal) = script.refusal {
            return Err(refusal);
        }
        let answers = number.map(|number| Arc::clone(&self.running.lock()[number].answers)).unwrap_or_default();
        let seen = Arc::clone(&self.seen);
        Ok(Box::new(Played { begun: Instant::now(), script, answers, heard: 0, number, seen }))
    }

    async fn resume(&self, token: ResumeToken, _: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        let (call, after): (usize, usize) = token.0.read().unwrap();
        self.seen.send_modify(|seen| seen.push(Saw::Resume { call, after }));
        let Running { mut script, mut begun, answers } = self.running.lock()[call].clone();
        match script.resumes {
            Some(Resumes::Follows) => drop(script.events.drain(..after)),
            Some(Resumes::Loses(within)) => {
                begun = Instant::now();
                script.events = [(within, Happens::Loses(Reason::UpstreamClosed, Executed::Unknown))].into();
            }
            Some(Resumes::Panics) => panic!("a transport with a bug"),
            Some(Resumes::Refuses) | None => {
                let fault = GatewayFault::new(Reason::UpstreamSessionLost, Executed::Unknown);
                return Err(BeginError::Gateway(fault));
            }
        }
        let seen = Arc::clone(&self.seen);
        Ok(Box::new(Played { begun, script, answers, heard: after, number: Some(call), seen }))
    }

    async fn notifications(
        &self,
        _: &CallContext,
    ) -> Result<broadcast::Receiver<(Arc<str>, Option<Payload>)>, BeginError> {
        Ok(self.changes.subscribe())
    }
}

/// A call as the upstream itself knows it.
#[derive(Clone)]
struct Running {
    script: Script,
    begun: Instant,
    answers: Arc<AtomicUsize>,
}

/// One exchange that follows its script.
struct Played {
    begun: Instant,
    script: Script,
    /// Answers that the call got, from any exchange.
    answers: Arc<AtomicUsize>,
    /// Events that were received.
    heard: usize,
    /// `None` for requests that are not recorded.
    number: Option<usize>,
    seen: Arc<watch::Sender<Vec<Saw>>>,
}

impl Played {
    fn record(&self, saw: impl FnOnce(usize) -> Saw) {
        if let Some(number) = self.number {
            self.seen.send_modify(|seen| seen.push(saw(number)));
        }
    }
}

#[async_trait]
impl Exchange for Played {
    async fn next(&mut self) -> ExchangeEvent {
        let Some((after, happens)) = self.script.events.front() else { return std::future::pending().await };
        if matches!(happens, Happens::Floods) {
            tokio::task::consume_budget().await;
            return ExchangeEvent::Progress(Progress { progress: Payload::of(&1), total: None, message: None });
        }
        if let Happens::Heard(count) = happens {
            if self.answers.load(Ordering::SeqCst) < *count {
                return std::future::pending().await;
            }
            self.heard += 1;
            self.script.events.pop_front();
            return Box::pin(self.next()).await;
        }
        tokio::time::sleep_until(self.begun + *after).await;
        self.heard += 1;
        match self.script.events.pop_front().unwrap().1 {
            Happens::Progress(progress, message) => ExchangeEvent::Progress(Progress {
                progress: Payload::of(&progress),
                total: Some(Payload::of(&10)),
                message: (!message.is_empty()).then(|| Arc::from(message)),
            }),
            Happens::Log(level) => {
                let params = Payload::of(&json!({ "level": level, "data": "said" }));
                ExchangeEvent::Notification((Arc::from("notifications/message"), Some(params)))
            }
            Happens::Asks(method) => asked("ask-1", method, r#"{"message":"?"}"#),
            Happens::Elicits(name) => asked(name, "elicitation/create", r#"{"message":"?"}"#),
            Happens::AsksFor(method, params) => asked("ask-1", method, params),
            Happens::Withdraws(name) => ExchangeEvent::Withdrawn { ask: Payload::of(name) },
            Happens::Returns(result) => ExchangeEvent::Returned(payload(&result)),
            Happens::Faults(code, message) => ExchangeEvent::Faulted(RpcError::new(code, message)),
            Happens::FaultsWith(code, data) => {
                ExchangeEvent::Faulted(RpcError { data: Some(payload(data)), ..RpcError::new(code, "m") })
            }
            Happens::Loses(reason, executed) => ExchangeEvent::Lost(ExchangeError(GatewayFault::new(reason, executed))),
            Happens::States(words) => ExchangeEvent::Status(Arc::from(words)),
            Happens::Names(names) => ExchangeEvent::Subtasks(names.iter().map(|name| Arc::from(*name)).collect()),
            Happens::Cancels => ExchangeEvent::Cancelled,
            Happens::Panics => panic!("a transport with a bug"),
            Happens::Floods | Happens::Heard(_) => unreachable!("stays in front"),
        }
    }

    async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        let answer = match answer {
            Answer::Result(result) => result.as_str().to_owned(),
            Answer::Error(error) => error.code.to_string(),
        };
        self.answers.fetch_add(1, Ordering::SeqCst);
        self.record(|call| Saw::Answer { call, ask: ask.as_str().to_owned(), answer });
        tokio::time::sleep(self.script.answer_takes).await;
        match self.script.deaf {
            true => Err(ExchangeError(GatewayFault::new(Reason::UpstreamUnreachable, Executed::No))),
            false => Ok(()),
        }
    }

    async fn cancel(&mut self, _: &str) {
        self.record(Saw::Cancel);
        tokio::time::sleep(self.script.cancel_takes).await;
    }

    fn resume_token(&self) -> Option<ResumeToken> {
        let call = self.number.filter(|_| self.script.resumes.is_some())?;
        Some(ResumeToken(Payload::of(&(call, self.heard))))
    }

    fn subtask_token(&self, _: &Arc<str>) -> Option<ResumeToken> {
        Some(ResumeToken(Payload::of(&(self.number?, self.heard))))
    }
}

fn asked(name: &str, method: &str, params: &str) -> ExchangeEvent {
    ExchangeEvent::Asked { ask: Payload::of(name), method: Arc::from(method), params: Some(payload(params)) }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.record(Saw::Drop);
    }
}
