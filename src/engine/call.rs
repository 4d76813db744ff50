//! Defines a call's input from a face, and the events that the face receives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{SetOnce, mpsc};

use crate::answer_budget::FREE_BYTES;
use crate::dialect::negotiate::declared_by;
use crate::task::{
    Answer, CallOrigin, ChosenId, ClientKind, Idempotency, InputKey, Outcome, Plan, Principal, StoredCall,
    SubtaskLimits, Task, TaskKey, TaskTimes, TaskVisibility, Timestamp, ToolPolicy,
};
use crate::upstream::limits::{CallInProgress, CallPermits};
use crate::upstream::{CallContext, Progress, ServerNotification, Upstream, UpstreamRequest, UpstreamTaskMode};
use crate::wire::{Payload, method};

/// Events queued for a client that reads slowly; when full, the runner stops reading from the upstream.
pub(super) const EVENTS_MAX: usize = 32;

#[derive(Clone)]
pub struct CallSpec {
    pub owner: Principal,
    pub client: ClientKind,
    pub upstream: Arc<dyn Upstream>,
    /// Permits at the upstream; `None` for methods that need none.
    pub permits: Option<Arc<CallPermits>>,
    /// How long a call without a handle waits for a permit.
    pub queue_deadline: Duration,
    pub request: UpstreamRequest,
    pub context: CallContext,
    /// The tool's name as the client wrote it.
    pub tool: Arc<str>,
    pub policy: ToolPolicy,
    pub plan: Plan,
    /// The client's idempotency key: a repeated call gets the first call's task or outcome: `runner::idempotent_call`.
    pub idempotency: Option<Idempotency>,
    /// The task id that the client chose, with [`Plan::Task`] and no idempotency key. A second call with it is refused.
    pub chosen: Option<ChosenId>,
    /// When the request arrived; the grace period starts here.
    pub arrived: tokio::time::Instant,
    pub is_repeatable: bool,
    pub questions: QuestionFilter,
    pub rounds: RoundSupport,
    /// Receives the task's progress and log messages; `None` where no client could receive them.
    pub notice_sink: Option<TaskNoticeSink>,
    /// Whether the client reads subtasks directly (SEP-2268); else their parent forwards their questions (T-40).
    pub sees_subtasks: bool,
    pub subtask_limits: SubtaskLimits,
}

impl CallSpec {
    /// Counts and lists the call at its upstream from now on; `None` for methods that need no permit.
    pub(super) fn call_begins(&self) -> Option<CallInProgress> {
        let permits = self.permits.as_ref()?;
        Some(permits.call_begins(Arc::clone(&self.tool), self.owner.clone()))
    }

    /// Whether the client can find the task by a name that it chose.
    pub(super) const fn is_named(&self) -> bool {
        self.idempotency.is_some() || self.chosen.is_some()
    }

    /// Whether a client with an idempotency key waits for the response: the call has a row, but no handle during grace.
    pub(super) const fn is_held_by_key(&self) -> bool {
        self.idempotency.is_some() && !matches!(self.plan, Plan::Task)
    }

    /// The call as a later process may have to send it, given whether it was not sent yet. Omits unusable fields.
    pub(super) fn stored(&self, is_waiting: bool) -> Option<StoredCall> {
        let call = StoredCall {
            params: self.upstream.stored(self.request.params.as_ref()?),
            capabilities: self.context.client.capabilities.clone(),
            progress: self.context.progress,
            log_level: self.context.log_level.clone(),
            is_repeatable: self.is_repeatable,
            is_native: self.context.native_task != UpstreamTaskMode::Never,
        };
        let may_be_sent = is_waiting || self.policy.after_crash.may_rerun(call.is_repeatable);
        Some(if may_be_sent { call } else { call.without_params() })
    }

    /// A queued task for the call, or for a part of it: not sent, and without resume data.
    pub(super) fn new_task(&self, key: TaskKey, visibility: TaskVisibility, now: Timestamp) -> Task {
        let (upstream, tool) = (Arc::clone(self.upstream.name()), Arc::clone(&self.tool));
        let origin = CallOrigin { upstream, tool, client: self.client };
        let ToolPolicy { ttl, keep_result_min, poll_interval, .. } = self.policy;
        Task::queued(key, visibility, origin, now, TaskTimes { ttl, keep_result_min, poll_interval })
    }
}

/// Receives a running task's notices. The call's runner calls it in order, before it stores the end; it must not block.
pub type TaskNoticeSink = Arc<dyn Fn(&TaskKey, TaskNotice<'_>) + Send + Sync>;

#[derive(Debug)]
pub enum TaskNotice<'a> {
    Progress(&'a Progress),
    Notification(&'a ServerNotification),
}

debug_members!(CallSpec, |spec| tool: spec.tool, plan: spec.plan);

/// Decides whether a client supports a question, as the peer dialect has parsed it.
pub type QuestionFilter = Arc<dyn Fn(&Payload) -> Askable + Send + Sync>;

pub fn declared_questions(capabilities: &Payload) -> QuestionFilter {
    let is_declared = declared_by(capabilities);
    Arc::new(move |question| if is_declared(question) { Askable::Declared } else { Askable::Undeclared })
}

/// Whether a client without a handle can receive questions: in a response, after which it repeats its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundSupport {
    Allowed,
    /// Its protocol version or this method does not support rounds.
    Unknown,
}

impl RoundSupport {
    pub fn of(name: &str) -> Self {
        if method::may_ask(name) { Self::Allowed } else { Self::Unknown }
    }
}

/// The client's input when it repeats a held call's request.
pub struct RoundRetry {
    /// Answers to questions; keys that are not open are ignored.
    pub answers: BTreeMap<InputKey, Answer>,
    pub plan: Plan,
    pub questions: QuestionFilter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryRefusal {
    /// This process has no runner for it.
    NotHere,
    TooMany,
}

debug_members!(RoundRetry, |retry| answers: retry.answers.len(), plan: retry.plan);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Askable {
    Declared,
    /// The client did not; the question is refused and the call continues.
    Undeclared,
    /// The client did not, and a plain call cannot continue without it: a `ClientCapabilities` object (MOD-10).
    Required(Payload),
}

#[derive(Clone, Debug)]
pub enum CallEvent {
    Progress(Progress),
    Notification(ServerNotification),
    /// The call can no longer become a task. Sent at most once, before all visible events.
    StaysPlain,
    /// The call became a task, or repeats one that did; the task may have settled since. Last event.
    Created(Arc<Task>),
    /// The upstream's questions; a hidden task holds the call until it is repeated. Rounds count from 1. Last event.
    InputRequired {
        task: Arc<Task>,
        round: u32,
    },
    Ended(CallEnd),
}

#[derive(Clone, Debug)]
pub enum CallEnd {
    Outcome(Outcome),
    /// The held call no longer exists, and has no outcome.
    CallLost,
    /// The client used this key or task id for another call before. Nothing was sent.
    IdempotencyMismatch,
    /// The upstream requires a capability that the client did not declare: a `ClientCapabilities` object (MOD-10).
    NeedsCapability(Payload),
}

/// The client's end of a call in progress. Dropping it means that the client left.
#[derive(Debug)]
pub struct CallStream {
    events: mpsc::Receiver<Box<CallEvent>>,
    /// Set once the caller received the task's handle: until then no client knows the task (T-27).
    claimed: Arc<SetOnce<()>>,
}

impl CallStream {
    pub(super) fn new() -> (CallStreamSender, Self) {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let claimed = Arc::default();
        (CallStreamSender { events: sender, claimed: Arc::clone(&claimed) }, Self { events, claimed })
    }

    /// The next event; `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Option<CallEvent> {
        let event = self.events.recv().await.map(|event| *event);
        if matches!(event, Some(CallEvent::Created(_) | CallEvent::InputRequired { .. })) {
            let _ = self.claimed.set(());
        }
        event
    }
}

#[derive(Clone, Debug)]
pub(super) struct CallStreamSender {
    /// Boxed, since the channel reserves slots for dozens of events: an idle call then takes little memory.
    pub(super) events: mpsc::Sender<Box<CallEvent>>,
    pub(super) claimed: Arc<SetOnce<()>>,
}

impl CallStreamSender {
    /// Sends an event; waits while the client reads slowly. An event for a client that left is dropped.
    pub(super) async fn send(&self, event: CallEvent) {
        // One large message at a time: one call may exceed the answer budget (B190).
        if let CallEvent::Notification((_, Some(params))) = &event
            && params.len() > FREE_BYTES
        {
            let _ = self.events.reserve_many(EVENTS_MAX).await;
        }
        let _ = self.events.send(Box::new(event)).await;
    }
}
