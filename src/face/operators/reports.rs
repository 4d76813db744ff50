//! Defines an operator's view of tasks, replicas and held calls.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::dialect::faults::gateway_error;
use crate::died_programs;
use crate::engine::SubtaskTree;
use crate::replica::{BootTime, Incarnation};
use crate::store::TaskStore as _;
use crate::store::postgres::{PostgresStore, ReplicaForgetting, ReplicaView, StoredReplica};
use crate::system::since_boot;
use crate::task::reference::principal_reference;
use crate::task::{Draft, Failure, Outcome, ShortReference, Summary, SummaryPhase, Task, TaskKey};
use crate::upstream::limits::CallPermitsByName;

/// One task: `taskgate tasks` reads what this module writes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct OperatorTask {
    #[serde(rename = "ref")]
    pub reference: String,
    pub principal: String,
    pub upstream: String,
    pub tool: String,
    pub state: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    pub created_at: String,
    pub updated_at: String,
    pub expires_at: String,
    /// The draft extension that created the task, if rows store it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flavour: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<usize>,
    /// The replica that holds it, if several share the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_incarnation: Option<u64>,
    /// This and all that follow: only in the response about one task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Cow<'static, str>>,
    /// The start of its call, which may precede its creation as a task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began_at: Option<String>,
    /// The text of a gateway's fault that the client gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The last lines of the program with which it failed, if the configuration shows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Arc<[String]>>,
    /// The upstream's last progress message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Arc<str>>,
    /// The bytes that the task takes in the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<usize>,
    /// The number of attempts, including a pending one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Fewer than `children` if there were too many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subtasks: Vec<Self>,
}

impl OperatorTask {
    pub(super) fn of(task: &Summary) -> Self {
        let (state, reason) = state(task.phase);
        Self {
            reference: ShortReference::of(&task.key).to_string(),
            principal: principal_reference(&task.key.owner),
            upstream: task.origin.upstream.to_string(),
            tool: task.origin.tool.to_string(),
            state: state.into(),
            reason: reason.map(Cow::Borrowed),
            created_at: task.created_at.to_string(),
            updated_at: task.updated_at.to_string(),
            expires_at: task.expires_at().to_string(),
            flavour: task.chosen.as_ref().map(|_| Draft::Sep1686.as_str().into()),
            parent: task.tree.parent.map(|id| {
                let parent = TaskKey { owner: task.key.owner.clone(), id };
                ShortReference::of(&parent).to_string()
            }),
            children: Some(task.tree.children.len()).filter(|count| *count > 0),
            ..Self::default()
        }
    }

    /// An incarnation without a known row has no name.
    pub(super) fn held_by(&mut self, name: Option<String>, incarnation: Incarnation) {
        (self.holder, self.holder_incarnation) = (name, Some(incarnation.0));
    }

    pub(super) fn with_details(self, task: &Task, below: &[SubtaskTree]) -> Self {
        let why = match task.outcome() {
            Some(Outcome::Faulted(Failure::Gateway(fault))) => Some(gateway_error(fault).message),
            // A text of a tool or its server may be a secret (B165).
            Some(Outcome::Faulted(Failure::Upstream(_)) | Outcome::Returned { .. } | Outcome::Cancelled) | None => None,
        };
        Self {
            client: Some(task.origin.client.key().into()),
            began_at: Some(task.began_at().to_string()),
            why,
            stderr: died_programs::lines(&task.key),
            progress: task.status_message.clone(),
            bytes: Some(task.stored_bytes()),
            attempt: Some(task.attempt.0),
            subtasks: below.iter().map(Self::of_tree).collect(),
            ..self
        }
    }

    fn of_tree(tree: &SubtaskTree) -> Self {
        Self { subtasks: tree.below.iter().map(Self::of_tree).collect(), ..Self::of(&tree.task) }
    }
}

/// The name of the state, and the reason of a gateway's fault.
pub(super) const fn state(phase: SummaryPhase) -> (&'static str, Option<&'static str>) {
    match phase {
        SummaryPhase::Queued => ("queued", None),
        SummaryPhase::Working => ("working", None),
        SummaryPhase::AwaitingInput => ("input_required", None),
        SummaryPhase::Returned { is_error: false } => ("completed", None),
        SummaryPhase::Returned { is_error: true } => ("failed", Some("tool_error")),
        SummaryPhase::Refused => ("failed", Some("upstream_error")),
        SummaryPhase::Faulted(fault) => ("failed", Some(fault.reason.key())),
        SummaryPhase::Cancelled => ("cancelled", None),
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OperatorReplica {
    pub name: String,
    /// The incarnation's number, which is never reused.
    pub incarnation: u64,
    /// `this one`, `living`, `leaving` or `dead`.
    pub state: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    pub version: String,
    /// The time since its heartbeat changed; for this replica, since its last acknowledged heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_age_seconds: Option<f64>,
    pub record_format: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct OperatorReplicaList {
    pub(super) replicas: Vec<OperatorReplica>,
}

impl OperatorReplica {
    /// All incarnations in the store, in the order in which they began.
    pub fn all(store: &PostgresStore) -> Vec<Self> {
        let (view, own, now) = (store.replicas(), store.holder(), BootTime(since_boot()));
        view.rows.iter().map(|one| Self::of(one, &view, own, now)).collect()
    }

    fn of(one: &StoredReplica, view: &ReplicaView, own: Incarnation, now: BootTime) -> Self {
        let row = &one.row;
        let is_own = row.incarnation == own;
        let state = match (is_own, row.is_dead, row.is_leaving) {
            (_, true, _) => "dead",
            (true, false, _) => "this one",
            (false, false, true) => "leaving",
            (false, false, false) => "living",
        };
        let since = if is_own { Some(view.heartbeat_sent) } else { view.heartbeats.get(&row.incarnation).copied() };
        let tenths = |seconds: f64| (seconds * 10.0).round() / 10.0;
        Self {
            name: row.name.clone(),
            incarnation: row.incarnation.0,
            state: state.into(),
            address: row.address.clone(),
            version: one.version.clone(),
            heartbeat_age_seconds: since.map(|since| tenths(now.since(since).as_secs_f64())),
            record_format: row.record_reads,
        }
    }
}

impl fmt::Display for OperatorReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, incarnation, state, address, version, heartbeat_age_seconds, record_format } = self;
        write!(f, "replica {name} (incarnation {incarnation}): {state}, version {version}, records {record_format}")?;
        if let Some(address) = address {
            write!(f, ", at {address}")?;
        }
        heartbeat_age_seconds.map_or(Ok(()), |age| write!(f, ", heartbeat {age} s ago"))
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ForgottenReplica {
    forgotten: String,
    incarnations: usize,
}

impl ForgottenReplica {
    /// Fails with the status and the reason if the replica was not forgotten.
    pub(super) fn of(name: &str, outcome: ReplicaForgetting) -> Result<Self, (StatusCode, String)> {
        let because = |why: String| Err((StatusCode::CONFLICT, why));
        match outcome {
            ReplicaForgetting::Forgotten(incarnations) => Ok(Self { forgotten: name.to_owned(), incarnations }),
            ReplicaForgetting::Unknown => Err((StatusCode::NOT_FOUND, "no replica has this name".to_owned())),
            ReplicaForgetting::Alive => {
                because("the replica is alive; only a dead replica can be forgotten".to_owned())
            }
            ReplicaForgetting::Holding(count) => {
                let tasks = if count == 1 { "task" } else { "tasks" };
                because(format!("the replica still has {count} {tasks}; wait until other replicas have taken over"))
            }
            ReplicaForgetting::Unfinished => because("the replica's last write is unresolved; try again".to_owned()),
        }
    }
}

/// The most calls in the list, and on the page: the oldest.
const LISTED_MAX: usize = 1_000;
const SHOWN_MAX: usize = 20;

/// Calls that clients wait for, which no store has.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HeldCalls {
    pub count: usize,
    /// The oldest calls first; possibly not all.
    pub calls: Vec<HeldCallReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct HeldCallReport {
    pub upstream: String,
    pub tool: String,
    pub principal: String,
    pub age_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sign_seconds: Option<u64>,
}

impl HeldCalls {
    pub fn of(permits: &CallPermitsByName) -> Self {
        let (held, now) = (permits.held_calls(), Instant::now());
        let since = |then: Instant| now.duration_since(then).as_secs();
        let count = held.len();
        let calls = held.into_iter().take(LISTED_MAX).map(|(upstream, call)| HeldCallReport {
            upstream: upstream.to_string(),
            tool: call.tool.to_string(),
            principal: principal_reference(&call.owner),
            age_seconds: since(call.began),
            last_sign_seconds: call.last_sign.map(since),
        });
        Self { count, calls: calls.collect() }
    }
}

impl fmt::Display for HeldCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "calls: {} held for clients without tasks", self.count)?;
        self.calls.iter().take(SHOWN_MAX).try_for_each(|call| writeln!(f, "  {call}"))?;
        match self.count.checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
            Some(more) => writeln!(f, "  and {more} more, see /calls"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for HeldCallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upstream, tool, principal, age_seconds, last_sign_seconds } = self;
        write!(f, "{upstream}  {}  {principal}  {age_seconds} s", tool.escape_debug())?;
        match last_sign_seconds {
            Some(seconds) => write!(f, ", last sign of life {seconds} s ago"),
            None => write!(f, ", no sign of life yet"),
        }
    }
}
