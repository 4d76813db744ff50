//! Defines the options of `taskgate call`, and the outcome of a call.

use std::time::Duration;

use clap::ValueEnum;

use super::media::MediaFolder;
use super::tool_arguments::ToolArguments;
use crate::upstream::UpstreamTaskMode;

/// One call to make.
#[derive(Debug)]
pub struct CallCommand {
    pub tool: String,
    pub arguments: ToolArguments,
    /// `None`: the best that the server offers.
    pub flavour: Option<Flavour>,
    /// The call's own name, for gateways that make a named call once.
    pub idempotency_key: Option<String>,
    pub following: FollowPolicy,
}

/// How to follow a call or a task.
#[derive(Clone, Debug)]
pub struct FollowPolicy {
    pub wait: Wait,
    pub input: QuestionPolicy,
    pub interrupt: InterruptPolicy,
    pub retry: RetryPolicy,
    /// The most that all of it may take.
    pub timeout: Option<Duration>,
    pub result: ResultForm,
}

impl FollowPolicy {
    /// To the end, however long that takes: the user is asked, and Ctrl-C cancels.
    #[must_use]
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

/// How long to follow a call that became a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    ToTheEnd,
    /// Print the handle and leave.
    ForTheHandle,
    /// Take the result that is there, and leave a task that has none yet.
    ForNothing,
}

/// How to answer a server's questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionPolicy {
    /// The user is asked.
    Asked,
    /// They are declined, unseen.
    Declined,
}

/// The effect of Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptPolicy {
    Cancels,
    /// The task goes on.
    Leaves,
}

/// The output format of a result.
#[derive(Clone, Debug, Default)]
pub struct ResultForm {
    /// Whole, as JSON; else text as text.
    pub is_json: bool,
    /// Where images and sounds go.
    pub out: Option<MediaFolder>,
}

/// How often to retry an unreachable server: a task survives a restart, so the wait does, too. Polls have separate pauses.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    pub attempts_max: u32,
    /// How long a task is asked for by a server that cannot be reached.
    pub away_max: Duration,
    /// The first pause between wishes to cancel; each further one is twice as long.
    pub pause: Duration,
    pub pause_max: Duration,
}

impl Default for RetryPolicy {
    /// Gives a restarting server a minute.
    fn default() -> Self {
        Self {
            attempts_max: 9,
            away_max: Duration::from_secs(60),
            pause: Duration::from_millis(250),
            pause_max: Duration::from_secs(8),
        }
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

/// The outcome of a call.
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
    /// No result in time, or not yet; nothing was decided about the task.
    Unfinished,
    /// What was wanted makes no sense to the server: the tool has no such argument.
    Misused,
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
            Self::Unfinished => 5,
            Self::Misused => 64,
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

/// The era and flavour of a call.
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

    /// What is said of tasks.
    pub(super) const fn native_task(self) -> UpstreamTaskMode {
        match self.flavour {
            Flavour::Extension | Flavour::Core => UpstreamTaskMode::Watched,
            Flavour::None => UpstreamTaskMode::Undeclared,
        }
    }
}
