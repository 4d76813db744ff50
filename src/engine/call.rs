//! Defines what a face hands to the engine for one call, and what the face gets back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::dialect::UpstreamDialect;
use crate::dialect::negotiate::declared_by;
use crate::task::{
    Answer, CallOrigin, ChosenId, ClientKind, Idempotency, InputKey, Outcome, Plan, Principal, SubtaskLimits, Task,
    TaskKey, TaskTimes, TaskVisibility, Timestamp, ToolPolicy,
};
use crate::upstream::limits::{CallInProgress, CallPermits};
use crate::upstream::{CallContext, Progress, Upstream, UpstreamRequest};
use crate::wire::{Payload, method};

/// Events on their way to a client that reads slowly; above that the upstream is read no further.
pub(super) const EVENTS_MAX: usize = 32;

/// One call, with everything that is known before it begins.
#[derive(Clone)]
pub struct CallSpec {
    pub owner: Principal,
    pub maker: ClientKind,
    pub upstream: Arc<dyn Upstream>,
    /// Places at the upstream; `None` for methods that need none.
    pub permits: Option<Arc<CallPermits>>,
    /// How long a call without a handle waits for a place.
    pub queue_deadline: Duration,
    pub peer: Arc<dyn UpstreamDialect>,
    pub request: UpstreamRequest,
    pub context: CallContext,
    /// The tool's name as the client wrote it.
    pub tool: Arc<str>,
    pub policy: ToolPolicy,
    pub plan: Plan,
    /// The client's idempotency key for the call. A call that was made under it before is not made again. With
    /// [`Plan::Task`] a repetition gets the task of the first call, else its outcome: see `runner::idempotent_call`.
    pub idempotency: Option<Idempotency>,
    /// The id that the client chose for its task; means something to [`Plan::Task`] alone, and takes no idempotency key
    /// beside it. While a task has it, another call under it is not made.
    pub chosen: Option<ChosenId>,
    /// When the request arrived; a grace period counts from here.
    pub arrived: tokio::time::Instant,
    /// Whether the tool's annotations say that calling it again does no harm.
    pub is_repeatable: bool,
    /// What this client can be asked.
    pub questions: QuestionFilter,
    pub rounds: RoundSupport,
    /// Who hears what a task says beside its state; `None` where nobody could be told.
    pub asides: Option<TaskNoticeSink>,
    /// Whether its client reads subtasks by themselves (SEP-2268); else their parent asks their questions (T-40).
    pub sees_subtasks: bool,
    /// How far the subtasks of its server are followed, where the context says that they are.
    pub subtask_limits: SubtaskLimits,
}

impl CallSpec {
    /// Counts and lists the call at its upstream from now on; nothing of methods that need no place there.
    pub(super) fn call_begins(&self) -> Option<CallInProgress> {
        let permits = self.permits.as_ref()?;
        Some(permits.call_begins(Arc::clone(&self.tool), self.owner.clone()))
    }

    /// Whether the client can find the task by a name that it gave.
    pub(super) const fn is_named(&self) -> bool {
        self.idempotency.is_some() || self.chosen.is_some()
    }

    /// Whether the call is kept under an idempotency key while its client waits for the answer: a row like a task's, and
    /// no handle, or none before the grace period's end.
    pub(super) const fn is_held_by_key(&self) -> bool {
        self.idempotency.is_some() && !matches!(self.plan, Plan::Task)
    }

    /// A task for the call, or for a part of it: not sent, and without anything to go on with.
    pub(super) fn new_task(&self, key: TaskKey, shown: TaskVisibility, now: Timestamp) -> Task {
        let origin =
            CallOrigin { upstream: Arc::clone(self.upstream.name()), tool: Arc::clone(&self.tool), maker: self.maker };
        let ToolPolicy { ttl, keep_result_min, poll_interval, .. } = self.policy;
        Task::queued(key, shown, origin, now, TaskTimes { ttl, keep_result_min, poll_interval })
    }
}

/// Hears a running task. Called in order by the call's runner, before the task's end is stored; must not block.
pub type TaskNoticeSink = Arc<dyn Fn(&TaskKey, TaskNotice<'_>) + Send + Sync>;

/// What a running task says beside its state.
#[derive(Debug)]
pub enum TaskNotice<'a> {
    Progress(&'a Progress),
    /// `notifications/message`: its params.
    Log(&'a Payload),
}

impl std::fmt::Debug for CallSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallSpec").field("tool", &self.tool).field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// Says of a question, as the peer dialect has read it, whether this client can be asked.
pub type QuestionFilter = Arc<dyn Fn(&Payload) -> Askable + Send + Sync>;

/// Asks a client what it declared: the rest is refused.
#[must_use]
pub fn declared_questions(capabilities: &Payload) -> QuestionFilter {
    let is_declared = declared_by(capabilities);
    Arc::new(move |question| match is_declared(question) {
        true => Askable::Declared,
        false => Askable::Undeclared,
    })
}

/// Whether a client without a handle can be asked: by an answer that holds the questions, after which it makes its
/// request again with what it says to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundSupport {
    Allowed,
    /// Its version or this method knows no such thing.
    Unknown,
}

impl RoundSupport {
    /// For a client that knows rounds.
    #[must_use]
    pub fn of(name: &str) -> Self {
        if method::may_ask(name) { Self::Allowed } else { Self::Unknown }
    }
}

/// What a client sends along when it makes a held call's request again.
pub struct RoundRetry {
    /// What it says to questions; keys that are not open are ignored.
    pub answers: BTreeMap<InputKey, Answer>,
    /// How this request may be answered.
    pub plan: Plan,
    /// What it can be asked from now on.
    pub questions: QuestionFilter,
}

/// Why a held call is not gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryRefusal {
    /// Nobody in this process runs it.
    NotHere,
    /// Too many come back for it at once.
    TooMany,
}

impl std::fmt::Debug for RoundRetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Retry").field("answers", &self.answers.len()).field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// Whether a client can be asked something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Askable {
    /// It declared that it can.
    Declared,
    /// It did not; the question is refused and the call goes on.
    Undeclared,
    /// It did not, and a plain call cannot be served without: a `ClientCapabilities` object (MOD-10).
    Required(Payload),
}

/// What a client sees of a call, in order.
#[derive(Clone, Debug)]
pub enum CallEvent {
    Progress(Progress),
    /// `notifications/message`: its params.
    Log(Payload),
    /// The call cannot become a task any more: it is held to its end. At most once, before all that is shown.
    StaysPlain,
    /// The call became a task, or is the repetition of one that did; the task may have settled since. Nothing follows.
    Created(Arc<Task>),
    /// The upstream asks something, and the call is held under this hidden task until the client makes its request
    /// again. Rounds are counted from 1. Nothing follows.
    InputRequired {
        task: Arc<Task>,
        round: u32,
    },
    /// The call ended. Nothing follows.
    Ended(CallEnd),
}

/// How a call that stayed plain ended.
#[derive(Clone, Debug)]
pub enum CallEnd {
    Outcome(Outcome),
    /// The held call is there no more, and has no outcome.
    Gone,
    /// The client gave this name, or the id that it chose, to another call before. Nothing was sent.
    Misnamed,
    /// The upstream asked for what the client did not declare: a `ClientCapabilities` object (MOD-10).
    NeedsCapability(Payload),
}

/// A call in progress, as its client sees it. Dropping it means that the client left.
#[derive(Debug)]
pub struct CallStream {
    events: mpsc::Receiver<Box<CallEvent>>,
    /// Set once what refers to a task was taken over: until then nobody knows it (T-27).
    claimed: CancellationToken,
}

impl CallStream {
    /// A stream and the seat that fills it.
    pub(super) fn new() -> (CallStreamSender, Self) {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let claimed = CancellationToken::new();
        (CallStreamSender { events: sender, claimed: claimed.clone() }, Self { events, claimed })
    }

    /// The next event; `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Option<CallEvent> {
        let event = self.events.recv().await.map(|event| *event);
        if matches!(event, Some(CallEvent::Created(_) | CallEvent::InputRequired { .. })) {
            self.claimed.cancel();
        }
        event
    }
}

/// The runner's end of a [`CallStream`].
#[derive(Clone, Debug)]
pub(super) struct CallStreamSender {
    /// A queue has room for dozens at once: of pointers, so that a call that has nothing to say takes little.
    pub(super) events: mpsc::Sender<Box<CallEvent>>,
    pub(super) claimed: CancellationToken,
}

impl CallStreamSender {
    /// Waits for room where the client reads slowly. One that left is told nothing.
    pub(super) async fn tell(&self, event: CallEvent) {
        let _ = self.events.send(Box::new(event)).await;
    }
}
