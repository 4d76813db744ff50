//! Follows tasks by their ids at the server (`taskgate task`).

use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::ValueEnum as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::call::{CallExit, CallMode, Flavour, FollowPolicy, InterruptPolicy, ResultForm, Wait};
use super::call_arguments::{FollowArguments, ResultArguments, interrupts};
use super::called_server::CalledServer;
use super::dialog::{CallDialog, NoResultError, leave};
use super::flavour::has_extension;
use super::follow::{self, UNKNOWN_TASK};
use super::printable::{ago, aligned_lines, in_short, printable};
use super::server_address::{ServerAddress, ServerArguments};
use super::terminal::Terminal;
use crate::dialect::relay_core_2025_11_25 as core;
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::task::{Clock as _, SystemClock, Timestamp};
use crate::wire::{Object, PagedList, Payload, RpcError, method, rpc_error};

const ID_BYTES_MAX: usize = 1024;

#[derive(Debug, clap::Subcommand)]
pub(super) enum TaskSubcommand {
    /// Shows the state of a task.
    Get {
        #[command(flatten)]
        handle: HandleArguments,
        /// Print the server's response as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Waits for a task's result, and asks you its questions. Ctrl-C exits; the task continues.
    Wait {
        #[command(flatten)]
        handle: HandleArguments,
        #[command(flatten)]
        following: FollowArguments,
    },
    /// Prints the result of a task that has ended.
    Result {
        #[command(flatten)]
        handle: HandleArguments,
        #[command(flatten)]
        result: ResultArguments,
    },
    /// Asks the server to cancel a task.
    Cancel {
        #[command(flatten)]
        handle: HandleArguments,
        /// Print the server's response as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Lists your tasks at a server with tasks of 2025-11-25; the extension of 2026-07-28 has no list.
    List {
        #[command(flatten)]
        server: ServerArguments,
        /// The tasks of 2025-11-25 are the only ones that can be listed.
        #[arg(long, value_parser = flavours_with_tasks())]
        flavour: Option<Flavour>,
        /// The largest number of tasks to show.
        #[arg(long, value_name = "COUNT", default_value_t = 100)]
        limit: usize,
        /// Print the tasks as the server has them, as a JSON list.
        #[arg(long)]
        json: bool,
    },
}

/// The task, and how to reach its server.
#[derive(Debug, clap::Args)]
pub(super) struct HandleArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// The task's id, as its handle has it.
    id: String,
    /// The flavour of the task, as it was created. By default the best that the server offers.
    #[arg(long, value_parser = flavours_with_tasks())]
    flavour: Option<Flavour>,
}

#[derive(Debug)]
struct TaskHandle {
    server: ServerAddress,
    id: String,
    flavour: Option<Flavour>,
}

impl HandleArguments {
    fn read(self) -> Result<TaskHandle, String> {
        let Self { server, id, flavour } = self;
        if id.is_empty() || id.len() > ID_BYTES_MAX || id.chars().any(char::is_control) {
            return Err(format!("an id has 1 to {ID_BYTES_MAX} bytes, and none of them breaks a line"));
        }
        if id.starts_with('{') {
            return Err("a task is named by the `taskId` of its handle alone".to_owned());
        }
        Ok(TaskHandle { server: server.read()?, id, flavour })
    }
}

fn flavours_with_tasks() -> impl TypedValueParser<Value = Flavour> {
    let flavours = [Flavour::Extension, Flavour::Core];
    PossibleValuesParser::new(flavours.iter().filter_map(Flavour::to_possible_value))
        .try_map(|name| Flavour::from_str(&name, false))
}

pub(super) async fn run(order: TaskSubcommand) -> ExitCode {
    let ended = match order {
        TaskSubcommand::Get { handle, json } => asked(handle, Ok(looking(json)), TaskInquiry::Get).await,
        TaskSubcommand::Cancel { handle, json } => asked(handle, Ok(looking(json)), TaskInquiry::Cancel).await,
        TaskSubcommand::Wait { handle, following } => {
            let policy = following.read("result");
            let policy = policy.map(|policy| FollowPolicy { interrupt: InterruptPolicy::Leaves, ..policy });
            asked(handle, policy, TaskInquiry::Follow).await
        }
        TaskSubcommand::Result { handle, result } => {
            let (wait, interrupt) = (Wait::ForNothing, InterruptPolicy::Leaves);
            let policy = result.read("result");
            let policy = policy.map(|result| FollowPolicy { wait, interrupt, result, ..FollowPolicy::to_the_end() });
            asked(handle, policy, TaskInquiry::Follow).await
        }
        TaskSubcommand::List { flavour: Some(Flavour::Extension), .. } => {
            Err("the extension of 2026-07-28 has no list of tasks; --flavour core has".to_owned())
        }
        TaskSubcommand::List { server, limit, json, .. } => match server.read() {
            Ok(server) => Ok(in_dialog(&server, &looking(json), TaskInquiry::List(limit)).await),
            Err(why) => Err(why),
        },
    };
    ended.map_or_else(super::refuse, |verdict| ExitCode::from(verdict as u8))
}

/// The policy for requests without a wait.
fn looking(is_json: bool) -> FollowPolicy {
    let result = ResultForm { is_json, out: None };
    FollowPolicy { interrupt: InterruptPolicy::Leaves, result, ..FollowPolicy::to_the_end() }
}

async fn asked(
    handle: HandleArguments,
    policy: Result<FollowPolicy, String>,
    order: impl FnOnce(TaskHandle) -> TaskInquiry,
) -> Result<CallExit, String> {
    let handle = handle.read()?;
    let server = handle.server.clone();
    Ok(in_dialog(&server, &policy?, order(handle)).await)
}

enum TaskInquiry {
    Get(TaskHandle),
    Cancel(TaskHandle),
    Follow(TaskHandle),
    /// With the most entries to print.
    List(usize),
}

async fn in_dialog(server: &ServerAddress, policy: &FollowPolicy, order: TaskInquiry) -> CallExit {
    let (mut ui, mut interrupts) = (Terminal::new(), interrupts());
    let mut dialog = CallDialog::new(policy, &mut ui, &mut interrupts);
    let ended = match CalledServer::new(server) {
        Ok(server) => Box::pin(at_server(&server, &mut dialog, order)).await,
        Err(lost) => Err(lost),
    };
    dialog.ended(ended)
}

async fn at_server(
    server: &CalledServer,
    dialog: &mut CallDialog<'_>,
    order: TaskInquiry,
) -> Result<CallExit, NoResultError> {
    let flavour = match &order {
        TaskInquiry::Get(handle) | TaskInquiry::Cancel(handle) | TaskInquiry::Follow(handle) => handle.flavour,
        TaskInquiry::List(_) => Some(Flavour::Core),
    };
    let given_up = |dialog: &mut CallDialog<'_>, why| match &order {
        TaskInquiry::Follow(handle) => leave(&server.address, &handle.id, handle.flavour, dialog, why),
        TaskInquiry::Get(_) | TaskInquiry::Cancel(_) | TaskInquiry::List(_) => dialog.given_up(why),
    };
    let mode = match dialog.or_interrupt(open(server, flavour)).await {
        Ok(mode) => mode?,
        Err(why) => return Ok(given_up(dialog, why)),
    };
    let request = async {
        match &order {
            TaskInquiry::Get(handle) => get(server, mode, &handle.id).await,
            TaskInquiry::Cancel(handle) => cancel(server, mode, &handle.id).await,
            TaskInquiry::List(limit) => list(server, mode, *limit).await,
            TaskInquiry::Follow(_) => Ok(TaskAnswer::NotAsked),
        }
    };
    let answer = match dialog.or_interrupt(request).await {
        Ok(answer) => answer?,
        Err(why) => return Ok(given_up(dialog, why)),
    };
    if let TaskInquiry::Follow(handle) = &order {
        return follow::task(server, mode, &handle.id, dialog).await;
    }
    server.end_session().await;
    Ok(shown(dialog, &answer))
}

async fn open(server: &CalledServer, flavour: Option<Flavour>) -> Result<CallMode, NoResultError> {
    match flavour {
        Some(Flavour::Extension) => return Ok(CallMode::EXTENSION),
        Some(Flavour::Core | Flavour::None) => (),
        None => {
            if server.discover().await?.is_some_and(|handshake| has_extension(&handshake)) {
                return Ok(CallMode::EXTENSION);
            }
        }
    }
    let handshake = server.open_session().await?;
    if !UpstreamTaskSupport::of(handshake.version, &handshake.capabilities).calls {
        server.end_session().await;
        let version = handshake.version;
        return Err(NoResultError(format!("the server has no tasks of 2025-11-25 (its session is of {version})")));
    }
    Ok(CallMode::CORE)
}

enum TaskAnswer {
    Task(Object),
    /// The task has not settled yet.
    Asked(Object),
    /// The task settled before the cancel.
    TooLate(Object),
    /// With `true` if there are more.
    List(Vec<Payload>, bool),
    Refused(RpcError),
    NotAsked,
}

async fn get(server: &CalledServer, mode: CallMode, id: &str) -> Result<TaskAnswer, NoResultError> {
    let answer = server.ask(mode, method::TASKS_GET, core::params_of(id)).await?;
    Ok(answer.map_or_else(TaskAnswer::Refused, TaskAnswer::Task))
}

/// The extension only acknowledges a cancel, and the core has one error for two causes: the status is read afterwards.
async fn cancel(server: &CalledServer, mode: CallMode, id: &str) -> Result<TaskAnswer, NoResultError> {
    let refused = match server.ask(mode, method::TASKS_CANCEL, core::params_of(id)).await? {
        Ok(answer) if mode.in_session => return Ok(TaskAnswer::Task(answer)),
        Ok(_) => None,
        Err(error) if error.code == rpc_error::INVALID_PARAMS => Some(error),
        Err(error) => return Ok(TaskAnswer::Refused(error)),
    };
    let task = match server.ask(mode, method::TASKS_GET, core::params_of(id)).await? {
        Ok(task) => task,
        Err(error) => return Ok(TaskAnswer::Refused(error)),
    };
    let status = task.get_string("status");
    Ok(match (status.as_deref(), refused) {
        (Some("completed" | "failed"), _) => TaskAnswer::TooLate(task),
        // An earlier cancel looks the same.
        (Some("cancelled"), _) => TaskAnswer::Task(task),
        (_, Some(error)) => TaskAnswer::Refused(error),
        (_, None) => TaskAnswer::Asked(task),
    })
}

async fn list(server: &CalledServer, mode: CallMode, limit: usize) -> Result<TaskAnswer, NoResultError> {
    let (mut all, mut has_more) = (Vec::new(), false);
    let listed = server.pages(mode, PagedList::Tasks, |page| {
        let tasks = page.get("tasks");
        all.extend(tasks.iter().flat_map(Payload::items));
        has_more = all.len() > limit || all.len() == limit && page.contains("nextCursor");
        if all.len() >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let listed = listed.await?;
    all.truncate(limit);
    Ok(listed.map_or_else(TaskAnswer::Refused, |()| TaskAnswer::List(all, has_more)))
}

fn shown(dialog: &mut CallDialog<'_>, answer: &TaskAnswer) -> CallExit {
    let now = SystemClock.now();
    match answer {
        TaskAnswer::Task(task) | TaskAnswer::Asked(task) | TaskAnswer::TooLate(task) => {
            let text = if dialog.policy.result.is_json {
                whole(dialog, task)
            } else {
                aligned_lines(&details(task, now)).trim_end().to_owned()
            };
            dialog.ui.output(&text);
        }
        TaskAnswer::List(tasks, has_more) => {
            if dialog.policy.result.is_json {
                let tasks: Vec<_> = tasks.iter().map(Payload::as_str).collect();
                dialog.ui.output(&format!("[{}]", tasks.join(",")));
            } else {
                let tasks: Vec<_> = tasks.iter().filter_map(Object::of).collect();
                dialog.ui.output(aligned_lines(&rows(&tasks, now)).trim_end());
            }
            if *has_more {
                dialog.note("there are more; raise --limit to show them");
            }
        }
        TaskAnswer::Refused(error) => {
            let verdict = dialog.fault(error);
            if error.code == rpc_error::INVALID_PARAMS {
                dialog.note(UNKNOWN_TASK);
            }
            return verdict;
        }
        TaskAnswer::NotAsked => (),
    }
    match answer {
        TaskAnswer::Asked(_) => dialog.note("the server was asked to cancel it; it has not ended yet"),
        TaskAnswer::TooLate(_) => {
            dialog.note("the task had ended before");
            return CallExit::Faulted;
        }
        TaskAnswer::Task(_) | TaskAnswer::List(..) | TaskAnswer::Refused(_) | TaskAnswer::NotAsked => (),
    }
    CallExit::Returned
}

/// A task as JSON, with the binary data of its result replaced.
fn whole(dialog: &mut CallDialog<'_>, task: &Object) -> String {
    match task.get_object("result") {
        Some(result) => {
            let result = dialog.fit_to_print(&result);
            task.edit().set("result", result).finish().as_str().to_owned()
        }
        None => task.payload().as_str().to_owned(),
    }
}

/// A printable text member of a task; another JSON value as it is.
fn member(task: &Object, names: &[&str]) -> String {
    let text = names.iter().find_map(|name| task.get_lossy(name).or_else(|| Some(task.get(name)?.as_str().to_owned())));
    printable(&text.unwrap_or_default()).into_owned()
}

fn details(task: &Object, now: Timestamp) -> Vec<Vec<String>> {
    let when = |name| {
        let written = member(task, &[name]);
        let ago = ago(&written, now);
        if ago.is_empty() { written } else { format!("{written} ({ago})") }
    };
    let millis = |names: &[&str]| {
        let millis = member(task, names).parse::<u64>().ok();
        millis.map(|millis| in_short(std::time::Duration::from_millis(millis))).unwrap_or_default()
    };
    let rows = [
        ("task", member(task, &["taskId"])),
        ("state", member(task, &["status"])),
        ("message", member(task, &["statusMessage"])),
        ("created", when("createdAt")),
        ("updated", when("lastUpdatedAt")),
        ("kept for", millis(&["ttl", "ttlMs"])),
    ];
    let said = rows.into_iter().filter(|(_, value)| !value.is_empty());
    said.map(|(name, value)| vec![name.to_owned(), value]).collect()
}

fn rows(tasks: &[Object], now: Timestamp) -> Vec<Vec<String>> {
    let head = ["TASK", "STATE", "CREATED", "UPDATED", "MESSAGE"].map(str::to_owned).to_vec();
    let row = |task: &Object| {
        let when = |name| ago(&member(task, &[name]), now);
        vec![
            member(task, &["taskId"]),
            member(task, &["status"]),
            when("createdAt"),
            when("lastUpdatedAt"),
            member(task, &["statusMessage"]),
        ]
    };
    std::iter::once(head).chain(tasks.iter().map(row)).collect()
}
