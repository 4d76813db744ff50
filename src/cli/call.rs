//! Defines the options of `taskgate call`, and the outcome of a call.

use std::time::Duration;

use clap::ValueEnum;

use super::media::MediaFolder;
use super::tool_arguments::ToolArguments;
use crate::upstream::UpstreamTaskMode;

#[derive(Debug)]
pub struct CallCommand {
    pub tool: String,
    pub arguments: ToolArguments,
    /// `None`: the best that the server supports.
    pub flavour: Option<Flavour>,
    pub idempotency_key: Option<String>,
    pub following: FollowPolicy,
}

#[derive(Clone, Debug)]
pub struct FollowPolicy {
    pub wait: Wait,
    pub input: QuestionPolicy,
    pub interrupt: InterruptPolicy,
    pub retry: RetryPolicy,
    /// The time limit of the whole call.
    pub timeout: Option<Duration>,
    pub result: ResultForm,
}

impl FollowPolicy {
    /// Without a time limit: the user is asked, and Ctrl-C cancels.
    pub fn to_the_end() -> Self {
        Self {
            wait: Wait::ToTheEnd,
            input: QuestionPolicy::Asked,
            interrupt: InterruptPolicy::Cancels,
            retry: RetryPolicy::default(),
            timeout: None,
            result: ResultForm::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    ToTheEnd,
    ForTheHandle,
    /// Print an existing result, and leave a task without one.
    ForNothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionPolicy {
    Asked,
    /// Questions are declined, unseen.
    Declined,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptPolicy {
    Cancels,
    /// The task continues.
    Leaves,
}

#[derive(Clone, Debug, Default)]
pub struct ResultForm {
    /// The whole result as JSON; otherwise text as text.
    pub is_json: bool,
    pub out: Option<MediaFolder>,
}

/// How often to retry an unreachable server: a task survives a restart, so the wait does, too. Polls have separate pauses.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    pub attempts_max: u32,
    /// How long an unreachable server is asked about a task.
    pub outage_max: Duration,
    /// The first pause between attempts to cancel; each further one is twice as long.
    pub pause: Duration,
    pub pause_max: Duration,
}

impl Default for RetryPolicy {
    /// Enough for a server that restarts within a minute.
    fn default() -> Self {
        Self {
            attempts_max: 9,
            outage_max: Duration::from_secs(60),
            pause: Duration::from_millis(250),
            pause_max: Duration::from_secs(8),
        }
    }
}

impl RetryPolicy {
    /// The pause after the attempt of this number, counted from 1.
    pub fn pause_after(&self, attempt: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
        self.pause.saturating_mul(doubled).min(self.pause_max)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CallExit {
    /// A result, or a handle if only that was requested.
    Returned = 0,
    /// A result with `isError`.
    ToolFailed = 1,
    Faulted = 2,
    Cancelled = 3,
    /// A result, although a question was declined.
    Declined = 4,
    /// No result within the time limit; the task's state is unchanged.
    Unfinished = 5,
    /// The request was invalid for the server: the tool has no such argument.
    Misused = 64,
    /// The server was unreachable, or its response invalid.
    Lost = 69,
    /// A result that could not be written.
    Unwritten = 70,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flavour {
    /// The tasks extension of 2026-07-28.
    Extension,
    /// The tasks of 2025-11-25.
    Core,
    /// A plain call, of 2026-07-28 or in a session.
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallMode {
    pub(super) flavour: Flavour,
    pub(super) in_session: bool,
}

impl CallMode {
    pub(super) const EXTENSION: Self = Self { flavour: Flavour::Extension, in_session: false };
    pub(super) const STATELESS: Self = Self { flavour: Flavour::None, in_session: false };
    pub(super) const CORE: Self = Self { flavour: Flavour::Core, in_session: true };
    pub(super) const SESSION: Self = Self { flavour: Flavour::None, in_session: true };

    pub(super) const fn native_task(self) -> UpstreamTaskMode {
        match self.flavour {
            Flavour::Extension | Flavour::Core => UpstreamTaskMode::Watched,
            Flavour::None => UpstreamTaskMode::Undeclared,
        }
    }
}
