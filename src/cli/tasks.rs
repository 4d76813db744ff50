//! Shows and cancels tasks of a running gateway (`taskgate tasks`), over its admin listener.

use std::fmt::Write as _;

use http::Method;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::admin_client::{AdminAnswer, AdminClient, AdminOutput, AdminRequestError, JSON, read, refused};
use super::printable::{ago, aligned_lines, in_short, printable, printable_json, since};
use super::say;
use super::terminal::confirmed;
use crate::face::operators::OperatorTask;
use crate::task::{Clock as _, SystemClock, TaskId, Timestamp};

const PAGE: usize = 1_000;
const UNSETTLED: [&str; 3] = ["queued", "working", "input_required"];
/// The most requests for a lookup by id: the gateway examines some of its tasks in each.
const LOOKS_MAX: usize = 10_000;

/// The request to the gateway.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
pub enum TasksCommand {
    /// Lists the newest tasks.
    List {
        /// Only tasks of this upstream.
        #[arg(long, value_name = "NAME")]
        upstream: Option<String>,
        /// Only tasks of this principal: the id of its API key, the digest that lists and the log show, or its name in the audit.
        #[arg(long, value_name = "NAME")]
        principal: Option<String>,
        /// Only tasks in this state.
        #[arg(long, value_parser = ["queued", "working", "input_required", "completed", "failed", "cancelled"])]
        state: Option<String>,
        /// Only tasks that the gateway failed for this reason, such as `poison` or `deadline_exceeded`.
        #[arg(long)]
        reason: Option<String>,
        /// The largest number of tasks to show.
        #[arg(long, value_name = "COUNT", default_value_t = 100)]
        limit: usize,
        /// Print a JSON list.
        #[arg(long)]
        json: bool,
    },
    /// Shows one task.
    Show {
        /// The task's reference, or its id.
        #[arg(value_name = "REF|ID")]
        reference: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Cancels tasks, as their clients can: those that are named, or all of a principal or an upstream that have not ended.
    Cancel {
        /// The references of tasks, or their ids.
        #[arg(value_name = "REF|ID", required_unless_present_any = ["principal", "upstream"])]
        references: Vec<String>,
        /// All tasks of this principal that have not ended; named as for `list`.
        #[arg(long, value_name = "NAME", conflicts_with = "references")]
        principal: Option<String>,
        /// All tasks of this upstream that have not ended; with --principal, only tasks of that principal.
        #[arg(long, value_name = "NAME", conflicts_with = "references")]
        upstream: Option<String>,
        /// Cancel without asking for confirmation.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Deserialize)]
struct TaskListPage {
    tasks: Vec<Box<RawValue>>,
    next: Option<String>,
}

pub async fn run(admin: &AdminClient, order: &TasksCommand) -> Result<AdminOutput, AdminRequestError> {
    match order {
        TasksCommand::List { upstream, principal, state, reason, limit, json } => {
            let wanted = [("upstream", upstream), ("principal", principal), ("state", state), ("reason", reason)];
            list(admin, &filters(wanted), *limit, *json).await
        }
        TasksCommand::Show { reference, json } => {
            let answer = if is_id(reference) {
                ask_by_id(admin, reference).await?
            } else {
                admin.ask(Method::GET, &["tasks", reference], &[]).await?
            };
            if *json && answer.status.is_success() {
                return Ok(AdminOutput::Done(printable_json(&String::from_utf8_lossy(&answer.body))));
            }
            shown(&answer)
        }
        TasksCommand::Cancel { references, .. } if references.len() == 1 => cancel(admin, &references[0]).await,
        TasksCommand::Cancel { references, .. } if references.len() > 1 => cancel_each(admin, references).await,
        TasksCommand::Cancel { principal, upstream, yes, .. } => {
            cancel_all(admin, &filters([("upstream", upstream), ("principal", principal)]), *yes).await
        }
    }
}

fn filters<'f, const N: usize>(wanted: [(&'f str, &'f Option<String>); N]) -> Vec<(&'f str, &'f str)> {
    wanted.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))).collect()
}

async fn cancel(admin: &AdminClient, name: &str) -> Result<AdminOutput, AdminRequestError> {
    let mut reference = name.to_owned();
    if is_id(name) {
        let found = ask_by_id(admin, name).await?;
        if !found.status.is_success() {
            return shown(&found);
        }
        reference = read::<OperatorTask>(&found.body)?.reference;
    }
    shown(&admin.ask(Method::POST, &["tasks", &reference, "cancel"], &[]).await?)
}

/// A task that has ended meanwhile is named on standard error.
async fn cancel_each(admin: &AdminClient, names: &[String]) -> Result<AdminOutput, AdminRequestError> {
    let mut cancelled = 0;
    for name in names {
        match cancel(admin, name).await? {
            AdminOutput::Refused(why) => say(format_args!("{}: {why}", printable(name))),
            AdminOutput::Done(_) | AdminOutput::Part(_) => cancelled += 1,
        }
    }
    Ok(match names.len() - cancelled {
        0 => AdminOutput::Done(format!("cancelled: {cancelled}\n")),
        _ => AdminOutput::Refused(format!("{cancelled} of {} tasks were cancelled", names.len())),
    })
}

/// Cancels the tasks that the gateway has now and that have not ended, once they are confirmed.
async fn cancel_all(
    admin: &AdminClient,
    wanted: &[(&str, &str)],
    is_confirmed: bool,
) -> Result<AdminOutput, AdminRequestError> {
    let mut unsettled = Vec::<OperatorTask>::new();
    for state in UNSETTLED {
        match listed(admin, &[wanted, &[("state", state)]].concat(), usize::MAX).await? {
            // Subtasks end with their parents.
            Ok(found) => unsettled.extend(found.entries()?.into_iter().filter(|task| task.parent.is_none())),
            Err(why) => return Ok(why),
        }
    }
    if unsettled.is_empty() {
        return Ok(AdminOutput::Refused("no such task is unsettled; nothing was cancelled".to_owned()));
    }
    let table = table(&unsettled, SystemClock.now());
    let question = format!("{table}Cancel these {} tasks? (yes/no) [no]: ", unsettled.len());
    if !is_confirmed && !confirmed(&question).map_err(AdminRequestError::Unconfirmed)? {
        return Ok(AdminOutput::Refused("nothing was cancelled".to_owned()));
    }
    let references: Vec<String> = unsettled.into_iter().map(|task| task.reference).collect();
    cancel_each(admin, &references).await
}

fn shown(answer: &AdminAnswer) -> Result<AdminOutput, AdminRequestError> {
    match answer.status.is_success() {
        true => Ok(AdminOutput::Done(details(&read(&answer.body)?, SystemClock.now()))),
        false => refused(&answer.body),
    }
}

fn is_id(name: &str) -> bool {
    TaskId::parse(name).is_some()
}

/// Looks a task up by its id, which may be a secret and therefore is in no URL.
async fn ask_by_id(admin: &AdminClient, id: &str) -> Result<AdminAnswer, AdminRequestError> {
    #[derive(Deserialize)]
    struct TaskFinding {
        next: Option<String>,
    }
    let mut after = None;
    for _ in 0..LOOKS_MAX {
        let body = serde_json::json!({ "id": id, "after": after }).to_string();
        let answer = admin.send(Method::POST, JSON, body.into(), &["tasks", "find"], &[]).await?;
        after = if answer.status.is_success() { read::<TaskFinding>(&answer.body)?.next } else { None };
        if after.is_none() {
            return Ok(answer);
        }
    }
    Err(AdminRequestError::Late)
}

struct ListedTasks {
    all: Vec<Box<RawValue>>,
    has_more: bool,
}

impl ListedTasks {
    fn entries(&self) -> Result<Vec<OperatorTask>, AdminRequestError> {
        self.all.iter().map(|task| read(task.get().as_bytes())).collect()
    }
}

async fn listed(
    admin: &AdminClient,
    wanted: &[(&str, &str)],
    limit: usize,
) -> Result<Result<ListedTasks, AdminOutput>, AdminRequestError> {
    let (mut all, mut after) = (Vec::<Box<RawValue>>::new(), None::<String>);
    while all.len() < limit {
        let page = PAGE.min(limit - all.len()).to_string();
        let mut query = vec![("limit", page.as_str())];
        query.extend(wanted);
        query.extend(after.as_deref().map(|after| ("after", after)));
        let AdminAnswer { status, body } = admin.ask(Method::GET, &["tasks"], &query).await?;
        if !status.is_success() {
            return refused(&body).map(Err);
        }
        let page: TaskListPage = read(&body)?;
        all.extend(page.tasks);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(Ok(ListedTasks { all, has_more: after.is_some() }))
}

async fn list(
    admin: &AdminClient,
    wanted: &[(&str, &str)],
    limit: usize,
    is_json: bool,
) -> Result<AdminOutput, AdminRequestError> {
    let found = match listed(admin, wanted, limit).await? {
        Ok(found) => found,
        Err(why) => return Ok(why),
    };
    // A misspelt name must not pass for a gateway without tasks.
    if found.all.is_empty() && !wanted.is_empty() {
        let wanted: Vec<_> = wanted.iter().map(|(filter, value)| format!("{filter} {value:?}")).collect();
        say(format_args!("there is no task with {}", wanted.join(", ")));
    }
    let text = if is_json {
        let tasks: Vec<_> = found.all.iter().map(|task| printable_json(task.get())).collect();
        format!("[{}]\n", tasks.join(","))
    } else {
        table(&found.entries()?, SystemClock.now())
    };
    Ok(if found.has_more { AdminOutput::Part(text) } else { AdminOutput::Done(text) })
}

fn state(task: &OperatorTask) -> String {
    match &task.reason {
        Some(reason) => format!("{} ({})", printable(&task.state), printable(reason)),
        None => printable(&task.state).into_owned(),
    }
}

/// The name of the replica that holds the task, or its state.
fn holder(task: &OperatorTask) -> String {
    match (&task.holder, task.holder_incarnation) {
        (Some(name), _) => printable(name).into_owned(),
        (None, Some(incarnation)) => format!("incarnation {incarnation}"),
        (None, None) => String::new(),
    }
}

/// A column of a table: its header and its cell.
type Column = (&'static str, fn(&OperatorTask, Timestamp) -> String);

const COLUMNS: [Column; 7] = [
    ("REF", |task, _| printable(&task.reference).into_owned()),
    ("STATE", |task, _| state(task)),
    ("UPSTREAM", |task, _| printable(&task.upstream).into_owned()),
    ("TOOL", |task, _| printable(&task.tool).into_owned()),
    ("PRINCIPAL", |task, _| printable(&task.principal).into_owned()),
    ("CREATED", |task, now| ago(&task.created_at, now)),
    ("UPDATED", |task, now| ago(&task.updated_at, now)),
];
/// Columns that are shown only if a task has a value.
const RARE_COLUMNS: [Column; 3] = [
    ("HOLDER", |task, _| holder(task)),
    ("PARENT", |task, _| task.parent.as_deref().map(|parent| printable(parent).into_owned()).unwrap_or_default()),
    ("SUBTASKS", |task, _| task.children.map(|count| count.to_string()).unwrap_or_default()),
];

fn table(tasks: &[OperatorTask], now: Timestamp) -> String {
    let rare = RARE_COLUMNS.into_iter().filter(|(_, cell)| tasks.iter().any(|task| !cell(task, now).is_empty()));
    let columns: Vec<Column> = COLUMNS.into_iter().chain(rare).collect();
    let head: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
    let row = |task: &OperatorTask| columns.iter().map(|(_, cell)| cell(task, now)).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(tasks.iter().map(row)).collect();
    aligned_lines(&rows)
}

fn details(task: &OperatorTask, now: Timestamp) -> String {
    let text = |text: &str| Some(printable(text).into_owned());
    let at = |written: &str| Some(format!("{} ({})", printable(written), ago(written, now)));
    let has_ended = ["completed", "failed", "cancelled"].contains(&&*task.state);
    let began_at = task.began_at.as_ref().unwrap_or(&task.created_at);
    let took = since(began_at, now).zip(since(&task.updated_at, now)).filter(|_| has_ended);
    let mut all = String::new();
    for (name, value) in [
        ("ref", text(&task.reference)),
        ("state", Some(state(task))),
        ("why", task.why.as_deref().and_then(text)),
        ("progress", task.progress.as_deref().and_then(text)),
        ("upstream", text(&task.upstream)),
        ("tool", text(&task.tool)),
        ("principal", text(&task.principal)),
        ("holder", Some(holder(task)).filter(|holder| !holder.is_empty())),
        ("created", at(&task.created_at)),
        ("updated", at(&task.updated_at)),
        ("took", took.map(|(began, ended)| in_short(began.saturating_sub(ended)))),
        ("expires", text(&task.expires_at)),
        ("size", task.bytes.map(|bytes| format!("{bytes} bytes"))),
        ("attempt", task.attempt.filter(|attempt| *attempt > 1).map(|attempt| attempt.to_string())),
        ("client", task.client.as_deref().and_then(text)),
        ("flavour", task.flavour.as_deref().and_then(text)),
        ("parent", task.parent.as_deref().and_then(text)),
    ] {
        if let Some(value) = value {
            let _ = writeln!(all, "{name:<10}{}", value.trim_end_matches(" ()"));
        }
    }
    if let Some(stderr) = task.stderr.as_ref().filter(|lines| !lines.is_empty()) {
        all.push_str("stderr\n");
        stderr.iter().for_each(|line| all.extend(["  ", &printable(line), "\n"]));
    }
    if let Some(count) = task.children {
        let _ = writeln!(all, "{:<10}{count}", "subtasks");
        tree(task, 1, &mut all);
    }
    all
}

/// A task's subtasks, a line each, indented by depth.
fn tree(task: &OperatorTask, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    for child in &task.subtasks {
        let (reference, tool) = (printable(&child.reference), printable(&child.tool));
        let _ = writeln!(text, "{indent}{reference}  {}  {tool}", state(child));
        tree(child, depth + 1, text);
    }
    let left_out = task.children.unwrap_or_default().saturating_sub(task.subtasks.len());
    if left_out > 0 {
        let _ = writeln!(text, "{indent}and {left_out} more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(3_661_000);

    fn entry(tool: &str) -> OperatorTask {
        OperatorTask {
            reference: "00000000000a".to_owned(),
            principal: "b".to_owned(),
            upstream: "up".to_owned(),
            tool: tool.to_owned(),
            state: "failed".into(),
            reason: Some("ttl_expired".into()),
            created_at: "1970-01-01T00:00:00.000Z".to_owned(),
            updated_at: "1970-01-01T00:01:00.000Z".to_owned(),
            expires_at: "e".to_owned(),
            ..OperatorTask::default()
        }
    }

    #[test]
    fn a_tree_is_printed_below_its_task_with_the_number_of_omitted_ones() {
        let child = |tool| OperatorTask { reason: None, state: "working".into(), ..entry(tool) };
        let middle = OperatorTask { children: Some(1), subtasks: vec![child("leaf")], ..child("middle") };
        let top = OperatorTask {
            client: Some("session".into()),
            flavour: Some("sep-1686".into()),
            children: Some(9),
            subtasks: vec![middle, child("\u{1b}[2J")],
            ..entry("top")
        };
        let text = details(&top, NOW);
        let (_, below) = text.split_once("expires   e\n").unwrap();
        assert_eq!(
            below,
            "client    session\nflavour   sep-1686\nsubtasks  9\n\
             \x20 00000000000a  working  middle\n\
             \x20   00000000000a  working  leaf\n\
             \x20 00000000000a  working   [2J\n\
             \x20 and 7 more\n"
        );
        let listed = table(
            &[
                OperatorTask { children: Some(9), ..entry("top") },
                OperatorTask { parent: Some("p".to_owned()), ..entry("t") },
            ],
            NOW,
        );
        let ends: Vec<_> = listed.lines().map(|line| line.split_whitespace().skip(12).collect::<Vec<_>>()).collect();
        assert_eq!(ends, [vec![], vec!["9"], vec!["p"]]);
    }

    #[test]
    fn a_task_is_told_with_all_that_is_known_of_it() {
        let task = OperatorTask {
            why: Some("The task's time to live ended".to_owned()),
            progress: Some("page\u{1b} 2".into()),
            bytes: Some(2_048),
            attempt: Some(2),
            began_at: Some("1970-01-01T00:00:00.000Z".to_owned()),
            created_at: "1970-01-01T00:00:02.000Z".to_owned(),
            holder: Some("a".to_owned()),
            holder_incarnation: Some(7),
            stderr: Some(["Traceback:".to_owned(), "  \u{1b}[31mfault".to_owned()].into()),
            ..entry("t")
        };
        assert_eq!(
            details(&task, NOW),
            "ref       00000000000a\nstate     failed (ttl_expired)\nwhy       The task's time to live ended\n\
             progress  page  2\nupstream  up\ntool      t\nprincipal b\nholder    a\n\
             created   1970-01-01T00:00:02.000Z (1h 0m ago)\nupdated   1970-01-01T00:01:00.000Z (1h 0m ago)\n\
             took      1m 0s\nexpires   e\nsize      2048 bytes\nattempt   2\n\
             stderr\n  Traceback:\n     [31mfault\n"
        );
    }

    #[test]
    fn a_table_is_straight_and_obeys_no_name() {
        let text = table(&[entry("grüße"), entry("\u{1b}[2J")], NOW);
        assert_eq!(
            text,
            "REF           STATE                 UPSTREAM  TOOL   PRINCIPAL  CREATED    UPDATED\n\
             00000000000a  failed (ttl_expired)  up        grüße  b          1h 1m ago  1h 0m ago\n\
             00000000000a  failed (ttl_expired)  up         [2J   b          1h 1m ago  1h 0m ago\n"
        );
        let held = OperatorTask { holder_incarnation: Some(7), ..entry("t") };
        let text = table(
            &[
                OperatorTask { holder: Some("a".to_owned()), ..held },
                OperatorTask { holder_incarnation: Some(8), ..entry("t") },
            ],
            NOW,
        );
        let ends: Vec<_> = text.lines().map(|line| line.rsplit("  ").next().unwrap_or_default()).collect();
        assert_eq!(ends, ["HOLDER", "a", "incarnation 8"]);
    }
}
