//! Defines an operator's view of a task.

use std::sync::Arc;

use serde::Serialize;

use crate::dialect::faults::{gateway_error, reason_key};
use crate::engine::SubtaskTree;
use crate::replica::Incarnation;
use crate::task::reference::principal_reference;
use crate::task::{ClientKind, Draft, Failure, Outcome, ShortReference, Summary, SummaryPhase, Task, TaskKey};

#[derive(Debug, Serialize)]
pub(super) struct OperatorTaskEntry {
    #[serde(rename = "ref")]
    reference: String,
    principal: String,
    upstream: String,
    tool: String,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    created_at: String,
    updated_at: String,
    expires_at: String,
    /// The draft extension that created the task, if rows store it.
    #[serde(skip_serializing_if = "Option::is_none")]
    flavour: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<usize>,
    /// The replica that holds it, if several share the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_life: Option<u64>,
}

impl OperatorTaskEntry {
    pub(super) fn of(task: &Summary) -> Self {
        let (state, reason) = state(task.phase);
        Self {
            reference: ShortReference::of(&task.key).to_string(),
            principal: principal_reference(&task.key.owner),
            upstream: task.origin.upstream.to_string(),
            tool: task.origin.tool.to_string(),
            state,
            reason,
            created_at: task.created_at.to_string(),
            updated_at: task.updated_at.to_string(),
            expires_at: task.expires_at().to_string(),
            flavour: task.chosen.as_ref().map(|_| Draft::Sep1686.as_str()),
            parent: task.tree.parent.map(|id| {
                let parent = TaskKey { owner: task.key.owner.clone(), id };
                ShortReference::of(&parent).to_string()
            }),
            children: Some(task.tree.children.len()).filter(|count| *count > 0),
            holder: None,
            holder_life: None,
        }
    }

    /// An incarnation without a known row has no name.
    pub(super) fn held_by(&mut self, name: Option<String>, life: Incarnation) {
        (self.holder, self.holder_life) = (name, Some(life.0));
    }
}

#[derive(Debug, Serialize)]
pub(super) struct OperatorTaskDetails {
    #[serde(flatten)]
    entry: OperatorTaskEntry,
    client: &'static str,
    /// The start of its call, which may precede its creation as a task.
    began_at: String,
    /// The text of a gateway's fault that the client gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// The upstream's last progress message.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Arc<str>>,
    /// The bytes that the task takes in the store.
    bytes: usize,
    /// The number of attempts, including a pending one.
    attempt: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subtasks: Vec<OperatorSubtask>,
}

impl OperatorTaskDetails {
    pub(super) fn of(task: &Task, entry: OperatorTaskEntry, below: &[SubtaskTree]) -> Self {
        let client = match task.origin.maker {
            ClientKind::Session => "session",
            ClientKind::Stateless => "stateless",
        };
        let subtasks = below.iter().map(OperatorSubtask::of).collect();
        let why = match task.outcome() {
            Some(Outcome::Faulted(Failure::Gateway(fault))) => Some(gateway_error(fault).message),
            // A text of a tool or its server may be a secret (B165).
            Some(Outcome::Faulted(Failure::Upstream(_)) | Outcome::Returned { .. } | Outcome::Cancelled) | None => None,
        };
        Self {
            entry,
            client,
            began_at: task.began_at().to_string(),
            why,
            progress: task.status_message.clone(),
            bytes: task.stored_bytes(),
            attempt: task.attempt.0,
            subtasks,
        }
    }
}

/// Has fewer `subtasks` than `children` if there were too many.
#[derive(Debug, Serialize)]
struct OperatorSubtask {
    #[serde(flatten)]
    entry: OperatorTaskEntry,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subtasks: Vec<Self>,
}

impl OperatorSubtask {
    fn of(tree: &SubtaskTree) -> Self {
        Self { entry: OperatorTaskEntry::of(&tree.task), subtasks: tree.below.iter().map(Self::of).collect() }
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
        SummaryPhase::Faulted(fault) => ("failed", Some(reason_key(fault.reason))),
        SummaryPhase::Cancelled => ("cancelled", None),
    }
}
