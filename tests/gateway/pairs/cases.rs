//! The cases, and their expected outcomes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep};

use super::server::{self, Ledger};
use super::speaker::{self, CallReport, Ending, PairClient, UserBehaviour};
use super::upstream::{ScriptedServer, WAIT_MAX};

/// The tool that has the only place, where there is but one.
const HOLDING: &str = "wait";
/// How long a case may take.
const CASE_MAX: Duration = WAIT_MAX.saturating_mul(3);
/// How long a server may wait for a cancel. Longer than a busy machine takes: a cancel that is sent at all is sent at
/// once.
const TOLD_MAX: Duration = WAIT_MAX;
/// The pause between two looks at a state.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Result,
    ToolError,
    RpcError,
    Slow,
    CancelQueued,
    CancelWorking,
    CancelAsked,
    CancelSettled,
    OneQuestion,
    TwoQuestions,
    Refused,
    TimedOut,
    ClientGone,
    ServerGone,
}

impl Case {
    pub(crate) const ALL: [Self; 14] = [
        Self::Result,
        Self::ToolError,
        Self::RpcError,
        Self::Slow,
        Self::CancelQueued,
        Self::CancelWorking,
        Self::CancelAsked,
        Self::CancelSettled,
        Self::OneQuestion,
        Self::TwoQuestions,
        Self::Refused,
        Self::TimedOut,
        Self::ClientGone,
        Self::ServerGone,
    ];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::ToolError => "isError",
            Self::RpcError => "JSON-RPC error",
            Self::Slow => "slow",
            Self::CancelQueued => "cancel while queued",
            Self::CancelWorking => "cancel while working",
            Self::CancelAsked => "cancel while asked",
            Self::CancelSettled => "cancel when settled",
            Self::OneQuestion => "one question",
            Self::TwoQuestions => "two questions",
            Self::Refused => "question refused",
            Self::TimedOut => "question timed out",
            Self::ClientGone => "client gone",
            Self::ServerGone => "server gone",
        }
    }

    const fn tool(self) -> &'static str {
        match self {
            Self::Result | Self::CancelQueued => "result",
            Self::ToolError => "tool_error",
            Self::RpcError => "rpc_error",
            Self::Slow | Self::CancelSettled | Self::ClientGone => "slow",
            Self::CancelWorking => "wait",
            Self::CancelAsked | Self::OneQuestion | Self::Refused | Self::TimedOut => "ask",
            Self::TwoQuestions => "ask_two",
            Self::ServerGone => "die",
        }
    }

    /// Whether the server answers at once, so that no call becomes a task for its time.
    pub(crate) const fn is_quick(self) -> bool {
        matches!(self, Self::Result | Self::ToolError | Self::RpcError | Self::ServerGone)
    }

    const fn manner(self) -> UserBehaviour {
        match self {
            Self::CancelWorking => UserBehaviour::Cancelling,
            Self::CancelQueued => UserBehaviour::CancellingQueued,
            Self::CancelAsked => UserBehaviour::CancellingWhenAsked,
            Self::Refused => UserBehaviour::Declining,
            Self::TimedOut => UserBehaviour::Silent,
            Self::ClientGone => UserBehaviour::Leaving,
            Self::Result
            | Self::ToolError
            | Self::RpcError
            | Self::Slow
            | Self::CancelSettled
            | Self::OneQuestion
            | Self::TwoQuestions
            | Self::ServerGone => UserBehaviour::Patient,
        }
    }
}

/// The result of a case.
#[derive(Debug)]
pub(crate) enum Cell {
    Right(Way),
    Wrong(String),
    NotApplicable(&'static str),
}

/// How the answer travelled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Plain,
    Task,
}

impl Cell {
    /// Goes through a case, for as long as one may take.
    pub(crate) async fn of(run: impl Future<Output = Result<Way, String>>) -> Self {
        match tokio::time::timeout(CASE_MAX, run).await {
            Ok(Ok(way)) => Self::Right(way),
            Ok(Err(why)) => Self::Wrong(why),
            Err(_) => Self::Wrong("it took too long".to_owned()),
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Self::Right(Way::Plain) => "ok".to_owned(),
            Self::Right(Way::Task) => "ok (task)".to_owned(),
            Self::Wrong(why) => format!("FAIL {}", why.replace(['|', '\n'], " ")),
            Self::NotApplicable(why) => format!("n/a: {why}"),
        }
    }
}

/// Why a case says nothing about a pair.
pub(crate) const fn why_not(client: speaker::Kind, server: server::Kind, case: Case) -> Option<&'static str> {
    match (client, server, case) {
        (speaker::Kind::Session | speaker::Kind::Stateless, _, Case::CancelSettled) => Some("no task to cancel"),
        // In front of a server without sessions it is the gateway that waits.
        // So it does for a tool that is a task at the server alone.
        (
            speaker::Kind::Session,
            server::Kind::Session | server::Kind::CoreTasks | server::Kind::Gateway,
            Case::TimedOut,
        ) => Some("client and server wait for each other as they like"),
        (speaker::Kind::Stateless, server::Kind::Stateless | server::Kind::ExtensionTasks, Case::TimedOut) => {
            Some("nothing waits")
        }
        (speaker::Kind::Stateless, _, Case::CancelAsked) => Some("a client that stays away lets the time pass"),
        _ => None,
    }
}

/// The outcome that a client must see.
fn expected(client: speaker::Kind, case: Case) -> Ending {
    let said = |text: &str| Ending::Result(text.to_owned());
    match case {
        Case::Result | Case::Slow | Case::CancelSettled => said("done"),
        Case::ToolError => Ending::ToolError("it broke".to_owned()),
        Case::RpcError => Ending::Error(4711),
        Case::CancelQueued | Case::CancelWorking | Case::CancelAsked => Ending::Cancelled,
        Case::OneQuestion => said("accept Ada"),
        Case::TwoQuestions => said("accept Ada, accept Grace"),
        Case::Refused => said("decline"),
        Case::TimedOut => said("cancel"),
        Case::ClientGone => match client {
            speaker::Kind::Session | speaker::Kind::Stateless => Ending::Left,
            speaker::Kind::CoreTasks
            | speaker::Kind::ExtensionTasks
            | speaker::Kind::ChosenIds
            | speaker::Kind::FilteredTasks
            | speaker::Kind::Subtasks => said("done"),
        },
        Case::ServerGone => Ending::Error(-32603),
    }
}

/// Goes through one case.
pub(crate) async fn run(
    case: Case,
    client: speaker::Kind,
    kind: server::Kind,
    speaker: &mut PairClient,
    ledger: &Arc<Ledger>,
    upstream: &ScriptedServer,
) -> Result<Way, String> {
    let tool = case.tool();
    if case == Case::CancelSettled {
        speaker.cancel_settled().await?;
        return once(ledger, tool).map(|()| Way::Task);
    }
    let story = speaker.call(tool, case.manner()).await?;
    check_story(case, client, &story)?;
    once(ledger, tool)?;
    let must_stop = matches!(case, Case::CancelWorking | Case::CancelAsked)
        || (case == Case::ClientGone && client == speaker::Kind::Stateless);
    // A question of a stateless server is its answer: there is nothing left that could be called off.
    let is_over = case == Case::CancelAsked && kind == server::Kind::Stateless;
    if must_stop && !is_over {
        told(ledger, tool).await?;
    } else if ledger.cancelled(tool) > 0 {
        return Err("the server got a cancel".to_owned());
    }
    no_secrets(upstream)?;
    Ok(if story.is_task { Way::Task } else { Way::Plain })
}

/// Cancels a call that waits while others have the only permit of each gateway. `held` counts the calls that gateways hold for
/// clients without tasks.
pub(crate) async fn run_queued(
    client: speaker::Kind,
    (speaker, blockers): (&mut PairClient, &mut [PairClient]),
    ledger: &Arc<Ledger>,
    held: impl AsyncFn() -> usize,
) -> Result<Way, String> {
    let case = Case::CancelQueued;
    let places = blockers.len();
    let is_held = matches!(client, speaker::Kind::Session | speaker::Kind::Stateless);
    let until_held = async |count: usize| {
        let begun = Instant::now();
        while is_held && held().await != count {
            if begun.elapsed() > TOLD_MAX {
                return Err(format!("the gateway never holds {count} calls"));
            }
            sleep(LOOK).await;
        }
        Ok(())
    };
    let holding = try_join_all(blockers.iter_mut().map(|blocker| blocker.call(HOLDING, UserBehaviour::Patient)));
    let cancelling = async {
        let begun = Instant::now();
        while ledger.runs(HOLDING) < places {
            if begun.elapsed() > TOLD_MAX {
                return Err("the first call never began".to_owned());
            }
            sleep(LOOK).await;
        }
        let queued = speaker.queued();
        let noticing = async { until_held(places + 1).await.map(|()| queued.notify_one()) };
        let story = tokio::try_join!(speaker.call(case.tool(), case.manner()), noticing);
        // A client that leaves sends nothing: the gateway has to notice it before the permit is free.
        let left = until_held(places).await;
        ledger.release(HOLDING);
        let (story, ()) = story?;
        left?;
        check_story(case, client, &story)?;
        // A call that still waited would have had the permit before this one.
        let next = speaker.call(Case::ToolError.tool(), UserBehaviour::Patient).await?;
        if next.ending != expected(client, Case::ToolError) {
            return Err(format!("the next call: {:?}", next.ending));
        }
        match (ledger.runs(case.tool()), ledger.cancelled(HOLDING)) {
            (0, 0) => Ok(if story.is_task { Way::Task } else { Way::Plain }),
            (0, _) => Err("the server got a cancel of a running call".to_owned()),
            (runs, _) => Err(format!("a cancelled call ran {runs} times")),
        }
    };
    let (held, way) = tokio::join!(holding, cancelling);
    match held?.into_iter().find(|held| !matches!(held.ending, Ending::Result(_))) {
        None => way,
        Some(held) => Err(format!("a call that had a place: {:?}", held.ending)),
    }
}

fn check_story(case: Case, client: speaker::Kind, story: &CallReport) -> Result<(), String> {
    let expected = expected(client, case);
    if story.ending != expected {
        return Err(format!("{expected:?} expected, not {:?}", story.ending));
    }
    let questions = match case {
        // The client that waits in silence may poll several times; the key stays the same.
        Case::OneQuestion | Case::CancelAsked | Case::Refused | Case::TimedOut => 1,
        Case::TwoQuestions => 2,
        Case::Result
        | Case::ToolError
        | Case::RpcError
        | Case::Slow
        | Case::CancelQueued
        | Case::CancelWorking
        | Case::CancelSettled
        | Case::ClientGone
        | Case::ServerGone => 0,
    };
    if story.questions != questions {
        return Err(format!("{questions} questions expected, not {}", story.questions));
    }
    let is_task = match client {
        speaker::Kind::Session | speaker::Kind::Stateless => false,
        speaker::Kind::CoreTasks
        | speaker::Kind::ChosenIds
        | speaker::Kind::FilteredTasks
        | speaker::Kind::Subtasks => true,
        speaker::Kind::ExtensionTasks => !case.is_quick(),
    };
    if story.is_task == is_task { Ok(()) } else { Err(format!("a task: {}", story.is_task)) }
}

/// Nothing is run twice (L4).
pub(crate) fn once(ledger: &Ledger, tool: &str) -> Result<(), String> {
    match ledger.runs(tool) {
        1 => Ok(()),
        runs => Err(format!("{tool} was run {runs} times")),
    }
}

async fn told(ledger: &Ledger, tool: &str) -> Result<(), String> {
    let begun = Instant::now();
    while ledger.cancelled(tool) == 0 {
        if begun.elapsed() > TOLD_MAX {
            return Err("the server was not told to stop".to_owned());
        }
        sleep(LOOK).await;
    }
    Ok(())
}

/// Headers of the client's hop do not reach the server.
fn no_secrets(upstream: &ScriptedServer) -> Result<(), String> {
    let seen = upstream.world.all(|seen| seen.header("authorization").is_some());
    if seen.is_empty() { Ok(()) } else { Err("the server was sent credentials".to_owned()) }
}
