//! The calls of each client at each upstream, and their expected outcomes: data only.

use std::fmt::Write as _;

/// A case of a client and an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Fast,
    Slow,
    Cancel,
    ToolError,
    ProtocolError,
    /// The tool asks the user, who answers.
    Elicitation,
    /// The tool asks the user, who declines.
    Declined,
    /// The tool asks the client's model.
    Sampling,
    /// A tool that the upstream runs as a task of its own and in no other way.
    OnlyAsTask,
}

impl Case {
    pub(crate) const ALL: [Self; 9] = [
        Self::Fast,
        Self::Slow,
        Self::Cancel,
        Self::ToolError,
        Self::ProtocolError,
        Self::Elicitation,
        Self::Declined,
        Self::Sampling,
        Self::OnlyAsTask,
    ];

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Fast => "fast call",
            Self::Slow => "slow call",
            Self::Cancel => "cancel",
            Self::ToolError => "tool error",
            Self::ProtocolError => "protocol error",
            Self::Elicitation => "elicitation",
            Self::Declined => "declined elicitation",
            Self::Sampling => "sampling",
            Self::OnlyAsTask => "tool that needs a task",
        }
    }
}

/// How a call ended, in the words of the client drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// A result whose text contains this.
    Result(&'static str),
    ToolError(&'static str),
    /// A JSON-RPC error with this code, whose message contains this.
    ProtocolError(i64, &'static str),
    Cancelled,
}

/// How the answer travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// In the answer to the call itself.
    Plain,
    /// A handle first, then polls.
    Task,
}

/// One call and its expected outcome.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) tool: &'static str,
    pub(crate) arguments: &'static str,
    pub(crate) expected: Expected,
    pub(crate) way: Way,
    /// Whether the user declines questions.
    pub(crate) declines: bool,
    /// Whether the upstream is to make a task of its own of it.
    pub(crate) native: bool,
}

/// An upstream's declaration about its own tasks, for all its tools but those of [`Case::OnlyAsTask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Native {
    Never,
    /// It leaves them to the caller.
    Optional,
}

/// Outlived by slow calls. The tools of fast ones have a longer one ([`tasks`]), so that no answer depends on the machine's speed.
const GRACE: &str = "1s";
const POLL_INTERVAL: &str = "200ms";
/// A tool that no server has.
pub(crate) const NO_TOOL: &str = "nobody";

/// The keys of an upstream's tasks, with rules for the tools that answer at once. `tools` is whose tools it has.
pub(crate) fn tasks(upstream: &str, tools: &str) -> String {
    let mut keys = format!("[upstreams.{upstream}.tasks]\npoll_interval = \"{POLL_INTERVAL}\"\ngrace = \"{GRACE}\"\n");
    for tool in [Fast, ToolError, ProtocolError].into_iter().filter_map(|case| call(tools, case)).map(|call| call.tool)
    {
        // A name that no list has is the server's to answer, unless it is hidden (T-72).
        let hide = tool == NO_TOOL;
        let _ = write!(keys, "[[upstreams.{upstream}.tools]]\nmatch = \"{tool}\"\ngrace = \"30s\"\nhide = {hide}\n");
    }
    keys
}

use Case::{Cancel, Declined, Elicitation, Fast, OnlyAsTask, ProtocolError, Sampling, Slow, ToolError};

/// Upstream, case, tool, arguments, outcome. Slow calls take twice [`GRACE`]; those to be cancelled would take
/// longer than any test.
const ROWS: [(&str, Case, &str, &str, Expected); 43] = [
    ("demo", Fast, "greet", r#"{"name":"Ada"}"#, Expected::Result("Hello, Ada!")),
    (
        "demo",
        Slow,
        "slow_report",
        r#"{"seconds":2,"steps":4}"#,
        Expected::Result("The report is ready: 4 sections in 2 s."),
    ),
    ("demo", Cancel, "slow_report", r#"{"seconds":600,"steps":600}"#, Expected::Cancelled),
    ("demo", ToolError, "fail", "{}", Expected::ToolError("This tool always fails.")),
    ("demo", ProtocolError, "crash", "{}", Expected::ProtocolError(-32603, "the tool crashed")),
    ("everything", Fast, "echo", r#"{"message":"Ada"}"#, Expected::Result("Echo: Ada")),
    (
        "everything",
        Slow,
        "trigger-long-running-operation",
        r#"{"duration":2,"steps":4}"#,
        Expected::Result("Long running operation completed. Duration: 2 seconds, Steps: 4."),
    ),
    ("everything", Cancel, "trigger-long-running-operation", r#"{"duration":600,"steps":600}"#, Expected::Cancelled),
    (
        "everything",
        ToolError,
        "get-resource-reference",
        r#"{"resourceType":"Text","resourceId":-1}"#,
        Expected::ToolError("Invalid resourceId: -1."),
    ),
    // Neither this server nor the next one has a tool that ends with a JSON-RPC error.
    ("everything", ProtocolError, NO_TOOL, "{}", Expected::ProtocolError(-32602, "Unknown tool")),
    ("fastmcp", Fast, "greet", r#"{"name":"Ada"}"#, Expected::Result("Hello, Ada!")),
    ("fastmcp", Slow, "slow", r#"{"seconds":2}"#, Expected::Result("worked 2 s in 4 steps")),
    ("fastmcp", Cancel, "slow", r#"{"seconds":600,"steps":600}"#, Expected::Cancelled),
    ("fastmcp", ToolError, "fail", "{}", Expected::ToolError("it broke")),
    ("fastmcp", ProtocolError, NO_TOOL, "{}", Expected::ProtocolError(-32602, "Unknown tool")),
    ("demo", Elicitation, "confirm_delete", r#"{"path":"a.txt"}"#, Expected::Result("Deleted a.txt.")),
    ("demo", Declined, "confirm_delete", r#"{"path":"a.txt"}"#, Expected::Result("Kept a.txt.")),
    ("demo", Sampling, "summarise", r#"{"text":"long"}"#, Expected::Result("Summary: said by the model")),
    ("everything", Elicitation, "trigger-elicitation-request", "{}", Expected::Result("- Name: Ada")),
    ("everything", Declined, "trigger-elicitation-request", "{}", Expected::Result("User declined")),
    (
        "everything",
        Sampling,
        "trigger-sampling-request",
        r#"{"prompt":"hi","maxTokens":50}"#,
        Expected::Result("said by the model"),
    ),
    ("fastmcp", Elicitation, "ask", r#"{"question":"Who?"}"#, Expected::Result("accept: Ada")),
    ("fastmcp", Declined, "ask", r#"{"question":"Who?"}"#, Expected::Result("decline: None")),
    ("fastmcp", Sampling, "complete", r#"{"prompt":"hi"}"#, Expected::Result("model: said by the model")),
    ("fastmcp_tasks", Fast, "greet", r#"{"name":"Ada"}"#, Expected::Result("Hello, Ada!")),
    ("fastmcp_tasks", Slow, "slow", r#"{"seconds":2}"#, Expected::Result("worked 2 s in 4 steps")),
    ("fastmcp_tasks", Cancel, "slow", r#"{"seconds":600,"steps":600}"#, Expected::Cancelled),
    ("fastmcp_tasks", ToolError, "fail", "{}", Expected::ToolError("it broke")),
    ("fastmcp_tasks", ProtocolError, NO_TOOL, "{}", Expected::ProtocolError(-32602, "Unknown tool")),
    ("fastmcp_tasks", OnlyAsTask, "only_as_task", r#"{"seconds":2}"#, Expected::Result("worked 2 s as a task")),
    // Of both eras: these cases work in sessions alone.
    ("fastmcp4", Fast, "greet", r#"{"name":"Ada"}"#, Expected::Result("Hello, Ada!")),
    ("fastmcp4", Elicitation, "ask", r#"{"question":"Who?"}"#, Expected::Result("accept: Ada")),
    ("fastmcp4", Declined, "ask", r#"{"question":"Who?"}"#, Expected::Result("decline: None")),
    ("fastmcp4", Sampling, "complete", r#"{"prompt":"hi"}"#, Expected::Result("model: said by the model")),
    ("listened", Fast, "greet", r#"{"name":"Ada"}"#, Expected::Result("Hello, Ada!")),
    ("listened", Elicitation, "ask", r#"{"question":"Who?"}"#, Expected::Result("accept: Ada")),
    ("listened", Declined, "ask", r#"{"question":"Who?"}"#, Expected::Result("decline: None")),
    ("listened", Sampling, "complete", r#"{"prompt":"hi"}"#, Expected::Result("model: said by the model")),
    ("ts2", Fast, "greet", r#"{"name":"Ada"}"#, Expected::Result("Hello, Ada!")),
    ("ts2", Elicitation, "ask", r#"{"question":"Who?"}"#, Expected::Result("accept: Ada")),
    ("ts2", Declined, "ask", r#"{"question":"Who?"}"#, Expected::Result("decline: undefined")),
    ("ts2", Sampling, "complete", r#"{"prompt":"hi"}"#, Expected::Result("model: said by the model")),
    // It takes about four seconds.
    (
        "everything",
        OnlyAsTask,
        "simulate-research-query",
        r#"{"topic":"tea"}"#,
        Expected::Result("Research Report: tea"),
    ),
];

/// Of these the matrix tells whether their questions arrive.
const OF_BOTH_ERAS: [&str; 3] = ["fastmcp4", "listened", "ts2"];

fn native(upstream: &str) -> Native {
    if upstream == "fastmcp_tasks" { Native::Optional } else { Native::Never }
}

/// The call of `case`, for a client that knows tasks; `None` if the upstream has no tool for it.
///
/// # Panics
/// If the upstream lacks a case that every upstream has.
pub(crate) fn call(upstream: &str, case: Case) -> Option<Call> {
    let row = ROWS.iter().find(|row| row.0 == upstream && row.1 == case);
    let is_optional =
        matches!(case, OnlyAsTask | Elicitation | Declined | Sampling) || OF_BOTH_ERAS.contains(&upstream);
    assert!(row.is_some() || is_optional, "{case:?} is given for every upstream");
    let &(_, _, tool, arguments, expected) = row?;
    // Sampling tools ask before they give a handle: a client of tasks need not be able to sample in one.
    let is_task = matches!(case, Slow | Cancel | OnlyAsTask | Elicitation | Declined);
    let way = if is_task { Way::Task } else { Way::Plain };
    let is_called = case != ProtocolError || native(upstream) == Native::Never;
    let native = case == OnlyAsTask || (native(upstream) == Native::Optional && is_called);
    let declines = case == Declined;
    Some(Call { tool, arguments, expected, way, declines, native })
}

/// The call of `case`, for a client without tasks; `None` for a cancel too. A call is a task only where the tool works in no
/// other way.
pub(crate) fn plain_call(upstream: &str, case: Case) -> Option<Call> {
    let call = call(upstream, case).filter(|_| case != Cancel)?;
    Some(Call { way: Way::Plain, native: case == OnlyAsTask, ..call })
}
