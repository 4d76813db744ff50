//! Summaries of tasks for lists: all fields except the payloads of client and upstream.

use std::sync::Arc;
use std::time::Duration;

use super::{
    CallOrigin, ChosenId, Failure, GatewayFault, Outcome, Phase, Task, TaskKey, TaskVisibility, Timestamp, TreeLinks,
};
use crate::wire::one_line::{first_text, status_text};

/// A task without arguments, questions, answers and outcome. Takes a few kilobytes, plus 16 bytes for each child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub key: TaskKey,
    pub visibility: TaskVisibility,
    pub origin: CallOrigin,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub ttl: Duration,
    pub poll_interval: Duration,
    pub phase: SummaryPhase,
    pub status_message: Option<Arc<str>>,
    /// A failed outcome's text in one line; `None` for the gateway's own faults.
    pub failure: Option<Arc<str>>,
    pub chosen: Option<ChosenId>,
    pub tree: TreeLinks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryPhase {
    Queued,
    Working,
    AwaitingInput,
    Returned {
        is_error: bool,
    },
    /// The upstream answered with a JSON-RPC error.
    Refused,
    Faulted(GatewayFault),
    Cancelled,
}

/// [`SummaryPhase`] without its data, which lists filter by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PhaseKind {
    Queued = 0,
    Working = 1,
    AwaitingInput = 2,
    Returned = 3,
    ReturnedError = 4,
    Refused = 5,
    Faulted = 6,
    Cancelled = 7,
}

impl PhaseKind {
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Working,
        Self::AwaitingInput,
        Self::Returned,
        Self::ReturnedError,
        Self::Refused,
        Self::Faulted,
        Self::Cancelled,
    ];

    /// The number that stores keep; numbers are never reused.
    pub const fn number(self) -> u8 {
        self as u8
    }

    pub const fn is_settled(self) -> bool {
        !matches!(self, Self::Queued | Self::Working | Self::AwaitingInput)
    }
}

impl SummaryPhase {
    pub const fn kind(self) -> PhaseKind {
        match self {
            Self::Queued => PhaseKind::Queued,
            Self::Working => PhaseKind::Working,
            Self::AwaitingInput => PhaseKind::AwaitingInput,
            Self::Returned { is_error: false } => PhaseKind::Returned,
            Self::Returned { is_error: true } => PhaseKind::ReturnedError,
            Self::Refused => PhaseKind::Refused,
            Self::Faulted(_) => PhaseKind::Faulted,
            Self::Cancelled => PhaseKind::Cancelled,
        }
    }

    pub const fn of(phase: &Phase) -> Self {
        match phase {
            Phase::Queued => Self::Queued,
            Phase::Working => Self::Working,
            Phase::AwaitingInput(_) => Self::AwaitingInput,
            Phase::Settled(Outcome::Returned { is_error, .. }) => Self::Returned { is_error: *is_error },
            Phase::Settled(Outcome::Faulted(Failure::Upstream(_))) => Self::Refused,
            Phase::Settled(Outcome::Faulted(Failure::Gateway(fault))) => Self::Faulted(*fault),
            Phase::Settled(Outcome::Cancelled) => Self::Cancelled,
        }
    }

    pub const fn is_settled(self) -> bool {
        self.kind().is_settled()
    }
}

/// A failed outcome's text. Takes time in proportion to a failed outcome, and none for others.
pub fn failure_line(task: &Task) -> Option<Arc<str>> {
    match task.outcome()? {
        Outcome::Returned { result, is_error: true } => status_text(&first_text(result)?),
        Outcome::Faulted(Failure::Upstream(error)) => status_text(&error.message),
        Outcome::Returned { is_error: false, .. } | Outcome::Faulted(Failure::Gateway(_)) | Outcome::Cancelled => None,
    }
}

impl Summary {
    pub fn of(task: &Task) -> Self {
        Self::with_failure(task, failure_line(task))
    }

    pub fn with_failure(task: &Task, failure: Option<Arc<str>>) -> Self {
        Self {
            key: task.key.clone(),
            visibility: task.visibility,
            origin: task.origin.clone(),
            created_at: task.created_at,
            updated_at: task.updated_at,
            ttl: task.ttl,
            poll_interval: task.poll_interval,
            phase: SummaryPhase::of(&task.phase),
            status_message: task.status_message.clone(),
            failure,
            chosen: task.chosen.clone(),
            tree: task.tree.clone(),
        }
    }

    pub fn expires_at(&self) -> Timestamp {
        self.created_at.after(self.ttl)
    }

    pub const fn is_settled(&self) -> bool {
        self.phase.is_settled()
    }

    pub fn is_gone(&self, now: Timestamp) -> bool {
        self.is_settled() && self.expires_at() <= now
    }

    pub fn bytes(&self) -> usize {
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        let origin = self.origin.upstream.len() + self.origin.tool.len();
        let own = size_of::<Self>() + self.key.owner.as_str().len() + self.tree.bytes();
        let chosen = self.chosen.as_ref().map_or(0, |chosen| chosen.text.len());
        own + origin + chosen + text(&self.status_message) + text(&self.failure)
    }
}
