//! The canonical task: facts only. Each dialect derives its own status word.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::digest::{Digest, digest};
use super::time::millis;
use super::{TaskId, TaskKey, Timestamp};
use crate::wire::{Payload, RpcError};

/// Minimum size that a row counts as (`stored_bytes_max`).
pub const ROW_BYTES_MIN: usize = 1024;

/// How long a hidden task's outcome is kept, for a client that repeats its request.
pub const LINGER: Duration = Duration::from_secs(5 * 60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub key: TaskKey,
    pub visibility: TaskVisibility,
    pub origin: CallOrigin,
    pub created_at: Timestamp,
    /// Never goes backwards, even if the clock does.
    pub updated_at: Timestamp,
    /// Counted from `created_at`. Grows if an outcome needs time to be read; never shrinks once there is a handle.
    pub ttl: Duration,
    pub keep_result_min: Duration,
    pub poll_interval: Duration,
    /// The current try at the upstream; events of older ones are stale.
    pub attempt: Attempt,
    pub phase: Phase,
    /// The next question's key. Keys are never reused (EXT-34 to EXT-36).
    pub next_key: InputKey,
    /// The upstream's last progress message.
    pub status_message: Option<Arc<str>>,
    pub recovery: Recovery,
    pub idempotency: Option<Idempotency>,
    pub chosen: Option<ChosenId>,
    pub tree: TreeLinks,
}

/// A task's retention times and poll interval, from its tool's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskTimes {
    pub ttl: Duration,
    pub keep_result_min: Duration,
    pub poll_interval: Duration,
}

impl Task {
    /// A new task: not sent, without idempotency key, relatives, or recovery state.
    pub fn queued(
        key: TaskKey,
        visibility: TaskVisibility,
        origin: CallOrigin,
        made: Timestamp,
        times: TaskTimes,
    ) -> Self {
        // As stored: a row that is read back must equal the task that was written.
        let whole = |span| Duration::from_millis(millis(span));
        Self {
            key,
            visibility,
            origin,
            created_at: made,
            updated_at: made,
            ttl: whole(times.ttl),
            keep_result_min: whole(times.keep_result_min),
            poll_interval: whole(times.poll_interval),
            attempt: Attempt::FIRST,
            phase: Phase::Queued,
            next_key: InputKey::default(),
            status_message: None,
            recovery: Recovery::default(),
            idempotency: None,
            chosen: None,
            tree: TreeLinks::default(),
        }
    }
}

impl Task {
    /// The key of a subtask's parent, which has the same owner.
    pub fn parent_key(&self) -> Option<TaskKey> {
        self.tree.parent.map(|id| TaskKey { owner: self.key.owner.clone(), id })
    }
}

/// The session in which a client chose an id. Other sessions may use the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionScope(pub u128);

/// A client-chosen id (SEP-1686). The task's key follows from both fields and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenId {
    pub session: SessionScope,
    pub text: Arc<str>,
}

impl ChosenId {
    /// Deterministic, and unpredictable without the session's number, which only the gateway reads from its id.
    pub fn task_id(&self) -> TaskId {
        let Digest(bytes) = digest([b"chosen task id", &self.session.0.to_be_bytes(), self.text.as_bytes()]);
        let (bits, _) = bytes.split_first_chunk().expect("a digest is longer than an id");
        TaskId::from_bits(u128::from_be_bytes(*bits))
    }
}

/// A task's parent and children, all of one owner (SEP-2268). A child is stored before its parent names it, and settles
/// before its parent does (SUB-13). A child without a parent that names it counts as removed (SUB-05, SUB-17).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeLinks {
    pub parent: Option<TaskId>,
    /// In order. Children are never removed.
    pub children: Arc<[TaskId]>,
}

impl TreeLinks {
    /// Its size in memory, besides the struct.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.children)
    }

    /// Appends new children; returns whether there were any (SUB-03).
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

/// The state that a later process needs to continue a call (GW-39, GW-41). Settling removes the parts no longer needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The call as sent, while it may have to be sent.
    pub call: Option<StoredCall>,
    /// The newest resumption token of the transport.
    pub resume: Option<Payload>,
    /// When the last try was sent; its deadline counts from here, also in a later process.
    pub dispatched_at: Option<Timestamp>,
    /// Consecutive processes that resumed the call and ended before the upstream gave a sign.
    pub crashes: u8,
    /// Accepted answers by the exchange's name of the question. Each is removed before it is sent: it is sent once.
    pub undelivered: Vec<(Payload, Answer)>,
    pub pending_effects: PendingEffects,
}

bitflags::bitflags! {
    /// Effects that are still to be performed, if need be by a later process, for which stores then hold the row.
    /// Stores keep one number; a new effect needs a new version of the format, as an older gateway cannot perform it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PendingEffects: u8 {
        /// Notify the upstream that the result is unwanted: the task settled without it.
        const NOTIFY_UPSTREAM = 1;
    }
}

impl Recovery {
    pub fn must_notify_upstream(&self) -> bool {
        self.pending_effects.contains(PendingEffects::NOTIFY_UPSTREAM)
    }

    fn bytes(&self) -> usize {
        let call = self.call.as_ref().map_or(0, |call| call.params.len() + call.capabilities.len());
        let answers = self.undelivered.iter().map(|(ask, answer)| ask.len() + answer.bytes());
        call + self.resume.as_ref().map_or(0, Payload::len) + answers.sum::<usize>()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCall {
    /// The parameters for the upstream; an empty object once they are no longer needed.
    pub params: Payload,
    /// The `ClientCapabilities` that are declared to the upstream.
    pub capabilities: Payload,
    pub progress: bool,
    /// Minimum severity of log messages, as the client wrote it.
    pub log_level: Option<Arc<str>>,
    /// Whether the tool's annotations call a repetition harmless.
    pub is_repeatable: bool,
    /// Whether the upstream may run it as its own task.
    pub is_native: bool,
}

impl StoredCall {
    pub fn can_be_sent(&self) -> bool {
        self.params.as_str() != Payload::empty_object().as_str()
    }

    /// The rest of the call once it is certain that it is not sent again.
    #[must_use]
    pub fn without_params(self) -> Self {
        Self { params: Payload::empty_object(), ..self }
    }
}

/// A client's idempotency key. Unique for its owner while the task exists; a task that ended without its call has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// SHA-256 of the client's text.
    pub key: Digest,
    /// SHA-256 of upstream, tool and canonical arguments: the same key with another call is an error.
    pub call: Digest,
}

impl Task {
    pub fn expires_at(&self) -> Timestamp {
        self.created_at.after(self.ttl)
    }

    /// When its call was first sent, which may be before it became a task.
    pub fn began_at(&self) -> Timestamp {
        self.recovery.dispatched_at.map_or(self.created_at, |sent| sent.min(self.created_at))
    }

    pub const fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Settled(_))
    }

    pub fn open_questions(&self) -> impl Iterator<Item = (InputKey, &Question)> + Clone {
        let open = if let Phase::AwaitingInput(open) = &self.phase { Some(open) } else { None };
        open.into_iter().flatten().map(|(key, question)| (*key, question))
    }

    /// Whether the task ended without its call: it then holds no idempotency key, and a repeated call runs.
    pub const fn certainly_did_not_run(&self) -> bool {
        let Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))) = &self.phase else { return false };
        matches!(fault.executed, Executed::No)
    }

    pub const fn outcome(&self) -> Option<&Outcome> {
        if let Phase::Settled(outcome) = &self.phase { Some(outcome) } else { None }
    }

    pub fn stored_bytes(&self) -> usize {
        let payload = match &self.phase {
            Phase::Queued | Phase::Working => 0,
            Phase::AwaitingInput(open) => open.values().map(|q| q.ask.len() + q.request.len()).sum(),
            Phase::Settled(outcome) => outcome.bytes(),
        };
        let message = self.status_message.as_ref().map_or(0, |text| text.len());
        let chosen = self.chosen.as_ref().map_or(0, |chosen| chosen.text.len());
        (payload + message + chosen + self.tree.bytes() + self.recovery.bytes()).max(ROW_BYTES_MIN)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskVisibility {
    /// Its owner holds the handle.
    Handle,
    /// None: it carries a held call between two rounds of questions.
    Hidden,
    /// None: it is a subtask of a task that asks its questions and returns its result (T-40).
    Part,
}

impl TaskVisibility {
    /// Whether the call continues without its client, since the owner has its handle or its parent's.
    pub const fn outlives_client(self) -> bool {
        !matches!(self, Self::Hidden)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOrigin {
    pub upstream: Arc<str>,
    pub tool: Arc<str>,
    pub client: ClientKind,
}

named_variants! {
    pub enum ClientKind, key {
        Session = "session",
        Stateless = "stateless",
    }
}

/// The number of a try at the upstream, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u32);

impl Attempt {
    pub const FIRST: Self = Self(1);
}

/// The number of a question, unique within its task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct InputKey(pub u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for a permit of the upstream: certainly not sent.
    Queued,
    /// May have been sent.
    Working,
    /// Invariant: never empty.
    AwaitingInput(BTreeMap<InputKey, Question>),
    /// Final. No event changes it.
    Settled(Outcome),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The exchange's name of the question.
    pub ask: Payload,
    /// `{method, params}` as the client sees it.
    pub request: Payload,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Result(Payload),
    /// A refusal, if the client's protocol version can express one.
    Error(RpcError),
}

impl Answer {
    fn bytes(&self) -> usize {
        match self {
            Self::Result(result) => result.len(),
            Self::Error(error) => error.bytes(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Returned { result: Payload, is_error: bool },
    Faulted(Failure),
    Cancelled,
}

impl Outcome {
    /// The end of a call that has no result because of the gateway.
    pub const fn lost(fault: GatewayFault) -> Self {
        Self::Faulted(Failure::Gateway(fault))
    }

    pub const fn result(&self) -> Option<&Payload> {
        if let Self::Returned { result, .. } = self { Some(result) } else { None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    Upstream(RpcError),
    Gateway(GatewayFault),
}

/// Why the gateway has no answer, and whether the call may have run. Equality compares the stored fields alone.
#[derive(Clone, Copy, Debug)]
pub struct GatewayFault {
    pub reason: Reason,
    pub executed: Executed,
    pub http_status: Option<u16>,
    pub retry_after: Option<Duration>,
    pub exit: Option<ProcessExit>,
    /// The number of the process that ended, if its last lines may be shown (`died_programs`). Not stored.
    pub process: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    Code(i32),
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

impl PartialEq for GatewayFault {
    fn eq(&self, other: &Self) -> bool {
        let stored = |fault: &Self| {
            let Self { reason, executed, http_status, retry_after, exit, process: _ } = *fault;
            (reason, executed, http_status, retry_after.map(millis), exit)
        };
        stored(self) == stored(other)
    }
}

impl Eq for GatewayFault {}

impl GatewayFault {
    pub const fn new(reason: Reason, executed: Executed) -> Self {
        Self { reason, executed, http_status: None, retry_after: None, exit: None, process: None }
    }
}

named_variants! {
    /// Whether the upstream may have run the call (GW-38), with its name in `data.executed`.
    pub enum Executed, key {
        /// Certainly not: nothing was sent, and a repetition is safe.
        No = "no",
        Unknown = "unknown",
        Yes = "yes",
    }
}

impl Reason {
    pub const fn is_end_of_gateway(self) -> bool {
        matches!(self, Self::GatewayRestart | Self::ReplicaLost | Self::StoreLost)
    }
}

/// Declares [`Reason`], each with the number that stores keep, and its machine-readable name.
macro_rules! gateway_reasons {
    ($($(#[$why:meta])* $reason:ident = $number:literal, $key:literal;)*) => {
        /// Why the gateway itself failed a call. Numbers are never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$why])* $reason = $number,)*
        }

        impl Reason {
            pub const ALL: &[Self] = &[$(Self::$reason,)*];

            /// The machine-readable name; also a metric label and a log field.
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$reason => $key,)*
                }
            }
        }
    };
}

gateway_reasons! {
    UpstreamUnreachable = 0, "upstream_unreachable";
    UpstreamTls = 1, "upstream_tls";
    UpstreamHttpStatus = 2, "upstream_http_status";
    UpstreamAuth = 3, "upstream_auth";
    UpstreamRedirect = 4, "upstream_redirect";
    UpstreamMalformed = 5, "upstream_malformed";
    UpstreamClosed = 6, "upstream_closed";
    UpstreamSessionLost = 7, "upstream_session_lost";
    /// The upstream's idle or first-byte limit passed.
    UpstreamTimeout = 8, "upstream_timeout";
    /// The upstream rejected the gateway's handshake.
    UpstreamRefused = 9, "upstream_refused";
    DeadlineExceeded = 10, "deadline_exceeded";
    ResultTooLarge = 11, "result_too_large";
    TtlExpired = 12, "ttl_expired";
    GatewayRestart = 13, "gateway_restart";
    TooManyTasks = 14, "too_many_tasks";
    /// The principal, or all principals together, have the maximum number of open notification streams.
    TooManyListeners = 15, "too_many_listeners";
    /// The task has the maximum number of waiting requests.
    TooManyWaiters = 16, "too_many_waiters";
    StoreFull = 17, "store_full";
    StoreFailed = 18, "store_failed";
    QueueFull = 19, "queue_full";
    QueueDeadline = 20, "queue_deadline";
    Draining = 21, "draining";
    Internal = 22, "internal";
    StoreCorrupt = 23, "store_corrupt";
    /// The process ended repeatedly while the call was in flight.
    Poison = 24, "poison";
    /// Recent failures have paused new requests to the upstream.
    UpstreamCircuitOpen = 25, "upstream_circuit_open";
    /// The principal's stored tasks have the maximum size.
    TooMuchStored = 26, "too_much_stored";
    /// The principal sends too many requests, or too many for missing tasks.
    RateLimited = 27, "rate_limited";
    /// The session's owner cannot be reached, or ended before it answered.
    ReplicaUnavailable = 28, "replica_unavailable";
    /// The replica that ran the call has ended or was declared dead, and the others cannot continue the call.
    ReplicaLost = 29, "replica_lost";
    /// The shared store lost acknowledged writes.
    StoreLost = 30, "store_lost";
    /// Unread answers to the principal have the maximum size.
    TooMuchUnread = 31, "too_much_unread";
    AnswersFull = 32, "answers_full";
    /// The audit file does not take the record without which no call is sent.
    AuditUnavailable = 33, "audit_unavailable";
    /// The upstream's credential is made from the client's token, and the request came without one.
    CredentialMissing = 34, "credential_missing";
    /// The authorization server refused a credential for the upstream.
    CredentialRefused = 35, "credential_refused";
    /// The source of the upstream's credential gives no answer now.
    CredentialUnavailable = 36, "credential_unavailable";
    /// The source of the upstream's credential gave an unusable answer.
    CredentialMalformed = 37, "credential_malformed";
    /// The client's token is bound to its key or certificate, and is not exchanged without a proof.
    CredentialBound = 38, "credential_bound";
    /// The upstream's answer to `initialize` exceeds its bound, which no key changes.
    InitializeResultTooLarge = 39, "initialize_result_too_large";
}

impl Task {
    /// Copies payloads out of shared buffers: a kibibyte of payload must not keep a read buffer of 256 alive.
    #[must_use]
    pub fn exact(mut self) -> Self {
        self.each_payload(&mut own);
        self
    }

    /// Whether the task holds only the memory that it counts (see [`Task::stored_bytes`]), which stores require.
    pub fn is_exact(&self) -> bool {
        let mut is_exact = true;
        self.clone().each_payload(&mut |payload: &mut Payload| is_exact &= payload.is_exact());
        is_exact
    }

    fn each_payload(&mut self, visit: &mut dyn FnMut(&mut Payload)) {
        match &mut self.phase {
            Phase::Queued | Phase::Working => (),
            Phase::AwaitingInput(open) => {
                for Question { ask, request } in open.values_mut() {
                    visit(ask);
                    visit(request);
                }
            }
            Phase::Settled(outcome) => outcome.each_payload(visit),
        }
        if let Some(StoredCall { params, capabilities, .. }) = &mut self.recovery.call {
            visit(params);
            visit(capabilities);
        }
        self.recovery.resume.iter_mut().for_each(&mut *visit);
        for (ask, answer) in &mut self.recovery.undelivered {
            visit(ask);
            match answer {
                Answer::Result(result) => visit(result),
                Answer::Error(error) => error.data.iter_mut().for_each(&mut *visit),
            }
        }
    }
}

impl Outcome {
    #[must_use]
    pub fn exact(mut self) -> Self {
        self.each_payload(&mut own);
        self
    }

    fn each_payload(&mut self, visit: &mut dyn FnMut(&mut Payload)) {
        match self {
            Self::Returned { result, .. } => visit(result),
            Self::Faulted(Failure::Upstream(error)) => error.data.iter_mut().for_each(visit),
            Self::Faulted(Failure::Gateway(_)) | Self::Cancelled => (),
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Self::Returned { result, .. } => result.len(),
            Self::Faulted(Failure::Upstream(error)) => error.bytes(),
            Self::Faulted(Failure::Gateway(_)) | Self::Cancelled => 0,
        }
    }

    pub fn is_exact(&self) -> bool {
        match self {
            Self::Returned { result, .. } => result.is_exact(),
            Self::Faulted(Failure::Upstream(error)) => error.data.as_ref().is_none_or(Payload::is_exact),
            Self::Faulted(Failure::Gateway(_)) | Self::Cancelled => true,
        }
    }
}

fn own(payload: &mut Payload) {
    if !payload.is_exact() {
        *payload = payload.detached();
    }
}
