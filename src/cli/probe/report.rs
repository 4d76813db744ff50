//! Formats the findings of a probe as text and as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::printable::printable;
use crate::upstream::ServerFacts;
use crate::upstream::era::question_era::QuestionRoute;
use crate::wire::{Object, Payload, ProtocolVersion, RpcError};

const SHOWN_MAX: usize = 200;

#[derive(Debug)]
pub struct ProbeReport {
    /// The address or the command, without secrets.
    pub target: String,
    pub transport: ProbedTransport,
    /// Newest first.
    pub versions: Vec<ProbedVersion>,
    /// The route of `protocol = "auto"` for clients that answer questions, if the server supports both eras.
    pub questions: Option<QuestionRoute>,
    pub server: ServerDescription,
    pub tools: ProbedTools,
    pub called: Option<ProbedCall>,
    pub toml: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbedTransport {
    StreamableHttp,
    Sse,
    Stdio,
}

impl ProbedTransport {
    /// The configuration's name for it.
    pub const fn key(self) -> &'static str {
        match self {
            Self::StreamableHttp => "streamable-http",
            Self::Sse => "sse",
            Self::Stdio => "stdio",
        }
    }

    pub const fn words(self) -> &'static str {
        match self {
            Self::StreamableHttp => "streamable HTTP",
            Self::Sse => "HTTP+SSE",
            Self::Stdio => "stdio",
        }
    }
}

#[derive(Debug)]
pub struct ProbedVersion {
    pub version: ProtocolVersion,
    pub served: VersionSupport,
}

#[derive(Debug, PartialEq, Eq)]
pub enum VersionSupport {
    Yes,
    No(String),
}

#[derive(Debug)]
pub struct ServerDescription {
    /// The newest version that it supports in a session, else the version without.
    pub version: ProtocolVersion,
    pub info: Option<Payload>,
    pub capabilities: Payload,
    pub instructions: Option<Payload>,
}

impl ServerDescription {
    pub(super) fn of(facts: &ServerFacts) -> Self {
        Self {
            version: facts.version,
            info: facts.server_info.clone(),
            capabilities: facts.capabilities.clone(),
            instructions: facts.instructions.clone(),
        }
    }

    pub(super) fn has_tools(&self) -> bool {
        Object::of(&self.capabilities).is_some_and(|all| all.contains("tools"))
    }

    pub(super) fn named(&self, key: &str) -> Option<String> {
        Object::of(self.info.as_ref()?)?.get_string(key)
    }
}

#[derive(Debug)]
pub struct ProbedTools {
    pub all: Vec<Payload>,
    pub incomplete: Option<String>,
}

impl ProbedTools {
    pub(super) fn task_support(&self, name: &str) -> Option<String> {
        let tool = self.all.iter().filter_map(Object::of).find(|tool| tool.get_string("name").as_deref() == Some(name));
        task_support(&tool?)
    }
}

fn task_support(tool: &Object) -> Option<String> {
    tool.get_object("execution")?.get_string("taskSupport")
}

/// Whether one of a tool's annotations is `true`.
pub(super) fn is_annotated(tool: &Object, hint: &str) -> bool {
    let annotation = tool.get_object("annotations").and_then(|all| all.get(hint));
    annotation.is_some_and(|value| value.as_str() == "true")
}

#[derive(Debug)]
pub struct ProbedCall {
    pub tool: String,
    pub took: Duration,
    pub progress: usize,
    /// The number of questions, all refused.
    pub questions: usize,
    pub ended: ProbedCallOutcome,
}

#[derive(Debug)]
pub enum ProbedCallOutcome {
    Returned(Payload),
    Faulted(RpcError),
    /// Why there is no response.
    Lost(String),
    Late,
}

impl ProbedCall {
    pub(super) fn new(tool: &str) -> Self {
        Self { tool: tool.to_owned(), took: Duration::ZERO, progress: 0, questions: 0, ended: ProbedCallOutcome::Late }
    }

    fn is_tool_error(&self) -> bool {
        match &self.ended {
            ProbedCallOutcome::Returned(result) => Object::of(result)
                .and_then(|result| result.get("isError"))
                .is_some_and(|value| value.as_str() == "true"),
            ProbedCallOutcome::Faulted(_) | ProbedCallOutcome::Lost(_) | ProbedCallOutcome::Late => false,
        }
    }

    fn outcome(&self) -> &'static str {
        match self.ended {
            ProbedCallOutcome::Returned(_) if self.is_tool_error() => "tool_error",
            ProbedCallOutcome::Returned(_) => "result",
            ProbedCallOutcome::Faulted(_) => "error",
            ProbedCallOutcome::Lost(_) => "lost",
            ProbedCallOutcome::Late => "no_answer_in_time",
        }
    }

    fn words(&self) -> String {
        match &self.ended {
            ProbedCallOutcome::Returned(result) => {
                let content = Object::of(result).and_then(|result| result.get("content"));
                let texts =
                    content.iter().flat_map(Payload::items).filter_map(|item| Object::of(&item)?.get_string("text"));
                texts.collect::<Vec<_>>().join("\n")
            }
            ProbedCallOutcome::Faulted(error) => format!("{} {}", error.code, error.message),
            ProbedCallOutcome::Lost(why) => why.clone(),
            ProbedCallOutcome::Late => "the time was over; see --timeout".to_owned(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProbeExit {
    Done = 0,
    ToolFailed = 1,
    Faulted = 2,
    Lost = 69,
}

impl ProbeExit {
    pub const fn exit_code(self) -> u8 {
        self as u8
    }
}

impl ProbeReport {
    pub fn verdict(&self) -> ProbeExit {
        match &self.called {
            None => ProbeExit::Done,
            Some(called) => match &called.ended {
                ProbedCallOutcome::Returned(_) if called.is_tool_error() => ProbeExit::ToolFailed,
                ProbedCallOutcome::Returned(_) => ProbeExit::Done,
                ProbedCallOutcome::Faulted(_) => ProbeExit::Faulted,
                ProbedCallOutcome::Lost(_) | ProbedCallOutcome::Late => ProbeExit::Lost,
            },
        }
    }

    pub fn json(&self) -> Value {
        let versions = self.versions.iter().map(|version| match &version.served {
            VersionSupport::Yes => json!({ "version": version.version.as_str(), "served": true }),
            VersionSupport::No(why) => json!({ "version": version.version.as_str(), "served": false, "why": why }),
        });
        let mut report = json!({
            "target": self.target,
            "transport": self.transport.key(),
            "versions": versions.collect::<Vec<_>>(),
            "version": self.server.version.as_str(),
            "serverInfo": self.server.info.as_ref().map(value),
            "capabilities": value(&self.server.capabilities),
            "instructions": self.server.instructions.as_ref().map(value),
            "tools": self.tools.all.iter().map(value).collect::<Vec<_>>(),
            "toml": self.toml,
        });
        if let Some(route) = self.questions {
            let (era, why) = routed(route);
            report["questions"] = json!({ "era": era, "why": why });
        }
        if let Some(why) = &self.tools.incomplete {
            report["toolsIncomplete"] = json!(why);
        }
        if let Some(called) = &self.called {
            report["call"] = json!({
                "tool": called.tool,
                "seconds": called.took.as_secs_f64(),
                "outcome": called.outcome(),
                "progress": called.progress,
                "questions": called.questions,
            });
            match &called.ended {
                ProbedCallOutcome::Returned(result) => report["call"]["result"] = value(result),
                ProbedCallOutcome::Faulted(error) => {
                    report["call"]["error"] = json!({ "code": error.code, "message": error.message })
                }
                ProbedCallOutcome::Lost(why) => report["call"]["why"] = json!(why),
                ProbedCallOutcome::Late => (),
            }
        }
        report
    }

    /// The report as text, without terminal control characters.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).unwrap_or_default();
        text
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        writeln!(to, "{}\n", printable(&self.target))?;
        writeln!(to, "transport     {}", self.transport.words())?;
        let (name, version) = (self.server.named("name"), self.server.named("version"));
        if let Some(name) = name {
            writeln!(to, "server        {} {}", printable(&name), printable(&version.unwrap_or_default()))?;
        }
        for (index, version) in self.versions.iter().enumerate() {
            let title = if index == 0 { "versions" } else { "" };
            match &version.served {
                VersionSupport::Yes => writeln!(to, "{title:<14}{}  yes", version.version)?,
                VersionSupport::No(why) => writeln!(to, "{title:<14}{}  no: {}", version.version, printable(why))?,
            }
        }
        if let Some(route) = self.questions {
            let (era, why) = routed(route);
            let clients = "clients that declare elicitation, sampling or roots are served in it";
            writeln!(to, "questions     {era}: {why}; {clients} (key `protocol`)")?;
        }
        let capabilities = Object::of(&self.server.capabilities);
        let names: Vec<_> =
            capabilities.iter().flat_map(Object::keys).map(|name| printable(&name).into_owned()).collect();
        writeln!(to, "capabilities  {}", if names.is_empty() { "none".to_owned() } else { names.join(", ") })?;
        writeln!(to, "tools         {}", self.tools.all.len())?;
        for tool in self.tools.all.iter().filter_map(Object::of) {
            writeln!(to, "  {}", line_of(&tool))?;
        }
        if let Some(why) = &self.tools.incomplete {
            writeln!(to, "  The list may be longer: {}", printable(why))?;
        }
        if let Some(called) = &self.called {
            write_call(to, called)?;
        }
        write!(to, "\nThis would serve it:\n\n{}", self.toml)
    }
}

fn write_call(to: &mut String, called: &ProbedCall) -> std::fmt::Result {
    let took = called.took.as_secs_f64();
    write!(to, "call          {}: {} after {took:.3} s", printable(&called.tool), called.outcome().replace('_', " "))?;
    if called.progress > 0 {
        write!(to, ", {} times progress", called.progress)?;
    }
    if called.questions > 0 {
        write!(to, ", {} questions refused", called.questions)?;
    }
    writeln!(to)?;
    let words = called.words();
    if words.is_empty() { Ok(()) } else { writeln!(to, "  {}", short(&words)) }
}

/// The era for clients that answer questions, and the reason.
const fn routed(route: QuestionRoute) -> (&'static str, &'static str) {
    match route {
        QuestionRoute::Stateless(why) => (ProtocolVersion::STATELESS.as_str(), why.text()),
        QuestionRoute::Sessions | QuestionRoute::Handshake => {
            ("session", "only in a session can this server ask its client a question during a call")
        }
    }
}

fn line_of(tool: &Object) -> String {
    let hints = [
        ("readOnlyHint", "read-only"),
        ("destructiveHint", "destructive"),
        ("idempotentHint", "idempotent"),
        ("openWorldHint", "open world"),
    ];
    let hints = hints.into_iter().filter(|(hint, _)| is_annotated(tool, hint)).map(|(_, words)| words.to_owned());
    let tasks = task_support(tool).map(|support| format!("tasks {}", printable(&support)));
    let notes: Vec<String> = hints.chain(tasks).collect();
    let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
    let description = tool.get_string("description").unwrap_or_default();
    let description = description.lines().next().unwrap_or_default();
    let name = tool.get_string("name").unwrap_or_default();
    format!("{}{notes}  {}", printable(&name), short(description)).trim_end().to_owned()
}

fn short(text: &str) -> String {
    let text = printable(text);
    match text.char_indices().nth(SHOWN_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.into_owned(),
    }
}

fn value(payload: &Payload) -> Value {
    payload.read().unwrap_or(Value::Null)
}
