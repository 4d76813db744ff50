//! Defines the canonical task: facts only. Which status word a client reads is its dialect's business.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::digest::{Digest, digest};
use super::{TaskId, TaskKey, Timestamp};
use crate::wire::{Payload, RpcError};

/// Smallest size that a row is counted as, whatever it holds (`stored_bytes_max`).
pub const ROW_BYTES_MIN: usize = 1024;

/// How long the outcome of a hidden task stays, for a client that asks again for what it was answered.
pub const LINGER: Duration = Duration::from_secs(5 * 60);

/// One call that a client may come back for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub key: TaskKey,
    pub shown: TaskVisibility,
    pub origin: CallOrigin,
    pub created_at: Timestamp,
    /// Never goes backwards, whatever the clock does.
    pub updated_at: Timestamp,
    /// Counted from `created_at`. Grows when an outcome needs room to be read; never shrinks once there is a handle.
    pub ttl: Duration,
    /// How long an outcome stays readable at least, counted from the moment it is there.
    pub keep_result_min: Duration,
    pub poll_interval: Duration,
    /// Which try at the upstream is under way; events of older ones are stale.
    pub attempt: Attempt,
    pub phase: Phase,
    /// The key of the next question. Keys are never reused (EXT-34 to EXT-36).
    pub next_key: InputKey,
    /// The last thing the upstream said about its progress.
    pub status_message: Option<Arc<str>>,
    /// What a later life of the process needs to go on.
    pub recovery: Recovery,
    /// How the client named the call that made the task, if it did.
    pub idempotency: Option<Idempotency>,
    /// The id that the client chose for the task, if it did (SEP-1686).
    pub chosen: Option<ChosenId>,
    /// Where the task stands in a tree of subtasks (SEP-2268).
    pub tree: TreePlace,
}

/// How long a task is kept, and how often it is asked for, as its tool's policy says at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskTimes {
    /// As in [`Task`], counted from when the task is made.
    pub ttl: Duration,
    pub keep_result_min: Duration,
    pub poll_interval: Duration,
}

impl Task {
    /// A task that is made at a time: its call is not sent, has no name, stands in no tree, and has nothing to go on with.
    #[must_use]
    pub fn queued(key: TaskKey, shown: TaskVisibility, origin: CallOrigin, made: Timestamp, times: TaskTimes) -> Self {
        Self {
            key,
            shown,
            origin,
            created_at: made,
            updated_at: made,
            ttl: times.ttl,
            keep_result_min: times.keep_result_min,
            poll_interval: times.poll_interval,
            attempt: Attempt::FIRST,
            phase: Phase::Queued,
            next_key: InputKey::default(),
            status_message: None,
            recovery: Recovery::default(),
            idempotency: None,
            chosen: None,
            tree: TreePlace::default(),
        }
    }
}

/// The session that a client chose an id in. Another session may choose the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionScope(pub u128);

/// An id that a client chose for its task. The task's key follows from both members and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenId {
    pub session: SessionScope,
    pub text: Arc<str>,
}

impl ChosenId {
    /// The id in the task's key: the same for the same words in the same session. Nobody can tell it who does not know
    /// the session's number, which the gateway alone reads out of the session's id.
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        let Digest(bytes) = digest([b"chosen task id", &self.session.0.to_be_bytes(), self.text.as_bytes()]);
        let (bits, _) = bytes.split_first_chunk().expect("a digest is longer than an id");
        TaskId::from_bits(u128::from_be_bytes(*bits))
    }
}

/// The task that made this one, and those that it made: tasks of the same owner.
///
/// A child is in the store before its parent names it, and settles before its parent does (SUB-13). A child whose parent
/// is gone, or does not name it, is gone too (SUB-05, SUB-17).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreePlace {
    pub parent: Option<TaskId>,
    /// In their order. None is ever taken away.
    pub children: Arc<[TaskId]>,
}

impl TreePlace {
    /// What it takes in memory beside itself.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.children)
    }

    /// Appends children that are not there yet; whether there were any (SUB-03).
    pub fn add(&mut self, children: &[TaskId]) -> bool {
        let mut known: HashSet<TaskId> = self.children.iter().copied().collect();
        let new: Vec<TaskId> = children.iter().copied().filter(|child| known.insert(*child)).collect();
        if new.is_empty() {
            return false;
        }
        self.children = self.children.iter().copied().chain(new).collect();
        true
    }
}

/// What a later life of the process needs to go on with a call (GW-39, GW-41). What nobody can need any
/// more is taken out when the task settles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The call as it is sent, while it may have to be sent.
    pub call: Option<StoredCall>,
    /// Where the exchange can be taken up again: the newest token that the transport gave for it.
    pub resume: Option<Payload>,
    /// When the last try was sent; its deadline counts from here, in a later life too.
    pub dispatched_at: Option<Timestamp>,
    /// How many lives of the process took the call up and ended before the upstream gave a sign, one after the other.
    pub crashes: u8,
    /// Answers that were accepted and are still to be handed over: how the exchange names the question. One is taken
    /// out before it is sent, so what is not here may have arrived and is never sent again.
    pub undelivered: Vec<(Payload, Answer)>,
    /// The task settled without its upstream, which has not been told yet that nobody wants the result.
    pub is_untold: bool,
}

impl Recovery {
    fn bytes(&self) -> usize {
        let call = self.call.as_ref().map_or(0, |call| call.params.len() + call.capabilities.len());
        let answers = self.undelivered.iter().map(|(ask, answer)| ask.len() + answer.bytes());
        call + self.resume.as_ref().map_or(0, Payload::len) + answers.sum::<usize>()
    }
}

/// A `tools/call` as it was made for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCall {
    /// As the upstream is to see them; an empty object once nothing can need them any more.
    pub params: Payload,
    /// The `ClientCapabilities` that are declared upstream for it.
    pub capabilities: Payload,
    /// Whether progress is wanted.
    pub progress: bool,
    /// Least severity of log messages, as the client wrote it.
    pub log_level: Option<Arc<str>>,
    /// Whether the tool's annotations say that a repetition does no harm.
    pub is_repeatable: bool,
    /// Whether the upstream may make a task of its own of it.
    pub is_native: bool,
}

impl StoredCall {
    /// Whether it can be sent: a call without a tool's name is none.
    #[must_use]
    pub fn can_be_sent(&self) -> bool {
        self.params.as_str() != Payload::empty_object().as_str()
    }

    /// What is left of it once it is certain that it is not sent again.
    #[must_use]
    pub fn without_params(self) -> Self {
        Self { params: Payload::empty_object(), ..self }
    }
}

/// A client's own name for a call, so that a repetition finds the task that it made: unique for its owner while the
/// task lives. A task that ended without its call has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// SHA-256 of what the client wrote.
    pub key: Digest,
    /// SHA-256 of upstream, tool and arguments in their canonical form: the same key with others is a mistake.
    pub call: Digest,
}

impl Task {
    /// The moment from which the task is gone.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        self.created_at.after(self.ttl)
    }

    /// When its call began: it may have been sent before it became a task.
    #[must_use]
    pub fn began_at(&self) -> Timestamp {
        self.recovery.dispatched_at.map_or(self.created_at, |sent| sent.min(self.created_at))
    }

    #[must_use]
    pub const fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Settled(_))
    }

    /// Whether the task ended without its call: then no idempotency key is held by it, and a repetition is made.
    #[must_use]
    pub const fn certainly_did_not_run(&self) -> bool {
        let Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))) = &self.phase else { return false };
        matches!(fault.executed, Executed::No)
    }

    /// How the call ended, if it did.
    #[must_use]
    pub const fn outcome(&self) -> Option<&Outcome> {
        match &self.phase {
            Phase::Settled(outcome) => Some(outcome),
            Phase::Queued | Phase::Working | Phase::AwaitingInput(_) => None,
        }
    }

    /// What the row counts towards stored bytes.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        let payload = match &self.phase {
            Phase::Queued | Phase::Working => 0,
            Phase::AwaitingInput(open) => open.values().map(|q| q.ask.len() + q.request.len()).sum(),
            Phase::Settled(Outcome::Returned { result, .. }) => result.len(),
            Phase::Settled(Outcome::Faulted(Failure::Upstream(error))) => {
                error.message.len() + error.data.as_ref().map_or(0, Payload::len)
            }
            Phase::Settled(Outcome::Faulted(Failure::Gateway(_)) | Outcome::Cancelled) => 0,
        };
        let message = self.status_message.as_ref().map_or(0, |text| text.len());
        let chosen = self.chosen.as_ref().map_or(0, |chosen| chosen.text.len());
        (payload + message + chosen + self.tree.bytes() + self.recovery.bytes()).max(ROW_BYTES_MIN)
    }
}

/// Who may see the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskVisibility {
    /// Its owner holds the handle.
    Handle,
    /// Nobody: it carries a held call between two rounds of questions.
    Hidden,
    /// Nobody: it is a subtask whose client knows none. Its parent asks its questions and returns its result (T-40).
    Part,
}

impl TaskVisibility {
    /// Whether the call goes on without the client that made it: its owner has the handle, or that of its parent.
    #[must_use]
    pub const fn outlives_client(self) -> bool {
        match self {
            Self::Handle | Self::Part => true,
            Self::Hidden => false,
        }
    }
}

/// Which call the task stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOrigin {
    pub upstream: Arc<str>,
    pub tool: Arc<str>,
    pub maker: ClientKind,
}

/// What kind of client made the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKind {
    /// One with a session.
    Session,
    /// One whose requests stand alone.
    Stateless,
}

/// Number of a try at the upstream, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u32);

impl Attempt {
    pub const FIRST: Self = Self(1);
}

/// Number of a question; unique for the task's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct InputKey(pub u32);

/// Where a task stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for a place at the upstream: certainly not sent.
    Queued,
    /// May have been sent.
    Working,
    /// Invariant: never empty.
    AwaitingInput(BTreeMap<InputKey, Question>),
    /// Final. No event changes it.
    Settled(Outcome),
}

/// A question of the upstream that its owner has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// How the exchange names the question.
    pub ask: Payload,
    /// `{method, params}` as the client is to see it.
    pub request: Payload,
}

/// What a client says to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Result(Payload),
    /// A refusal, where the client's flavour can express one.
    Error(RpcError),
}

impl Answer {
    fn bytes(&self) -> usize {
        match self {
            Self::Result(result) => result.len(),
            Self::Error(error) => error.message.len() + error.data.as_ref().map_or(0, Payload::len),
        }
    }
}

/// How the call ended. Facts only: each dialect chooses its own status word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Returned { result: Payload, is_error: bool },
    Faulted(Failure),
    Cancelled,
}

/// Whose failure it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The upstream answered a JSON-RPC error.
    Upstream(RpcError),
    /// The gateway has no answer, and says why.
    Gateway(GatewayFault),
}

/// Why the gateway has no answer, and what that means for a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayFault {
    pub reason: Reason,
    pub executed: Executed,
    /// The upstream's HTTP status, where that was the reason.
    pub http_status: Option<u16>,
    /// When a repetition has a chance, where that is known.
    pub retry_after: Option<Duration>,
    /// How the upstream's process ended, where that was the reason.
    pub exit: Option<ProcessExit>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

impl std::fmt::Display for ProcessExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "with exit status {code}"),
            Self::Signal(signal) => write!(f, "by signal {signal}"),
        }
    }
}

impl GatewayFault {
    #[must_use]
    pub const fn new(reason: Reason, executed: Executed) -> Self {
        Self { reason, executed, http_status: None, retry_after: None, exit: None }
    }
}

/// Whether the upstream may have run the call (GW-38).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// Certainly not: nothing was sent, a repetition is safe.
    No,
    Unknown,
    Yes,
}

impl Reason {
    /// Whether a call ended with the gateway that ran it.
    #[must_use]
    pub const fn is_end_of_gateway(self) -> bool {
        matches!(self, Self::GatewayRestart | Self::ReplicaLost | Self::StoreLost)
    }
}

/// The gateway's own reasons for having no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    UpstreamUnreachable,
    UpstreamTls,
    UpstreamHttpStatus,
    UpstreamAuth,
    UpstreamRedirect,
    UpstreamMalformed,
    UpstreamClosed,
    UpstreamSessionLost,
    /// The upstream's idle or first-byte limit passed.
    UpstreamTimeout,
    /// The upstream refused the gateway's own handshake.
    UpstreamRefused,
    /// It failed so often of late that nothing new is sent to it for a moment.
    UpstreamCircuitOpen,
    DeadlineExceeded,
    ResultTooLarge,
    TtlExpired,
    GatewayRestart,
    /// The gateway that ran the call is gone, or was taken for dead by the others, which cannot go on with it.
    ReplicaLost,
    /// The process ended again and again while the call was in flight.
    Poison,
    TooManyTasks,
    /// The principal, or all of them, have as many streams of notifications open as they may.
    TooManyListeners,
    /// As many wait for one task as may.
    TooManyWaiters,
    /// What the principal has in the store takes as much room as it may.
    TooMuchStored,
    /// Answers to the principal hold as many bytes as they may until they are read.
    TooMuchUnread,
    /// Answers to all principals hold as many bytes as they may.
    AnswersFull,
    /// The principal asks too often, or too often for tasks that are not there.
    RateLimited,
    StoreFull,
    StoreFailed,
    /// What was stored of the task is damaged.
    StoreCorrupt,
    QueueFull,
    QueueDeadline,
    Draining,
    /// The replica where the session is at home cannot be reached, or ended before it answered.
    ReplicaAway,
    /// What all gateways keep their tasks in lost what it had acknowledged.
    StoreLost,
    /// A bug in the gateway ended the call.
    Internal,
}
