//! Defines what `taskgate call` is to do, and how it ended.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use http::HeaderValue;

use crate::upstream::UpstreamTaskMode;
use crate::wire::Payload;

/// One call to make.
#[derive(Debug)]
pub struct CallCommand {
    pub tool: String,
    /// An object.
    pub arguments: Payload,
    /// `None`: the best that the server offers.
    pub flavour: Option<Flavour>,
    /// The call's own name, for gateways that make a named call once.
    pub idempotency_key: Option<String>,
    pub wait: Wait,
    pub input: QuestionPolicy,
    pub retry: RetryPolicy,
    /// Whom to trust instead of the system's authorities.
    pub ca: Option<PathBuf>,
    /// What to show the server, if it asks who comes; marked as sensitive.
    pub authorization: Option<HeaderValue>,
}

/// How long to stay with a call that became a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    ToTheEnd,
    /// Print the handle and leave.
    ForTheHandle,
}

/// What happens to a server's questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionPolicy {
    /// The user is asked.
    Asked,
    /// They are declined, unseen.
    Declined,
}

/// How often to try again when the server cannot be reached: the task outlives a restart, so does the wait. Polls have
/// pauses of their own.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    pub attempts_max: u32,
    /// The first pause between wishes to cancel; each further one is twice as long.
    pub pause: Duration,
    pub pause_max: Duration,
}

impl Default for RetryPolicy {
    /// Gives a restarting server about half a minute.
    fn default() -> Self {
        Self { attempts_max: 9, pause: Duration::from_millis(250), pause_max: Duration::from_secs(8) }
    }
}

impl RetryPolicy {
    /// The pause behind the attempt of this number, counted from 1.
    #[must_use]
    pub fn pause_after(&self, attempt: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
        self.pause.saturating_mul(doubled).min(self.pause_max)
    }
}

/// How the call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallExit {
    /// A result, or a handle where only that was wanted.
    Returned,
    /// A result that says it failed.
    ToolFailed,
    /// A JSON-RPC error.
    Faulted,
    Cancelled,
    /// A result, but one that came about without an answer to a question.
    Declined,
    /// The server could not be reached or not be understood.
    Lost,
}

impl CallExit {
    /// The exit code of the process.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Returned => 0,
            Self::ToolFailed => 1,
            Self::Faulted => 2,
            Self::Cancelled => 3,
            Self::Declined => 4,
            Self::Lost => 69,
        }
    }
}

/// A flavour of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flavour {
    /// The tasks extension of 2026-07-28.
    Extension,
    /// The tasks of 2025-11-25.
    Core,
    /// A plain call, of 2026-07-28 or in a session.
    None,
}

/// What a call is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallMode {
    pub(super) flavour: Flavour,
    pub(super) in_session: bool,
}

impl CallMode {
    pub(super) const EXTENSION: Self = Self { flavour: Flavour::Extension, in_session: false };
    pub(super) const STATELESS: Self = Self { flavour: Flavour::None, in_session: false };

    /// What is said of tasks.
    pub(super) const fn native_task(self) -> UpstreamTaskMode {
        match self.flavour {
            Flavour::Extension | Flavour::Core => UpstreamTaskMode::Watched,
            Flavour::None => UpstreamTaskMode::Undeclared,
        }
    }
}
