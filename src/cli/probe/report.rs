//! Formats the findings of a probe as text and as JSON.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::printable::{printable, shortened};
use super::super::server_address;
use super::ProbeCommand;
use crate::config::{ServerTarget, fitting_name, key_variable, quoted};
use crate::upstream::Handshake;
use crate::upstream::era::QuestionRoute;
use crate::wire::{Object, Payload, ProtocolVersion, RpcError};

#[derive(Debug)]
pub struct ProbeReport {
    /// The address or the command, without secrets.
    pub target: String,
    pub transport: ProbedTransport,
    /// Newest first.
    pub versions: Vec<ProbedVersion>,
    /// The route of `protocol = "auto"` for clients that answer questions, if the server supports both eras.
    pub questions: Option<QuestionRoute>,
    /// The server's description in a session of the newest version that it supports, else at the version without sessions.
    pub server: Arc<Handshake>,
    pub tools: ProbedTools,
    pub called: Option<ProbedCall>,
    pub toml: String,
}

named_variants! {
    /// Each with the configuration's name for it.
    pub enum ProbedTransport, key {
        StreamableHttp = "streamable-http",
        Sse = "sse",
        Stdio = "stdio",
    }
}

impl ProbedTransport {
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
    /// Fails with the reason why it is not.
    pub served: Result<(), String>,
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

fn named(server: &Handshake, key: &str) -> Option<String> {
    Object::of(server.server_info.as_ref()?)?.get_string(key)
}

fn task_support(tool: &Object) -> Option<String> {
    tool.get_object("execution")?.get_string("taskSupport")
}

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
        let ProbedCallOutcome::Returned(result) = &self.ended else { return false };
        let is_error = Object::of(result).and_then(|result| result.get("isError"));
        is_error.is_some_and(|value| value.as_str() == "true")
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

impl ProbeReport {
    pub fn verdict(&self) -> ProbeExit {
        let Some(called) = &self.called else { return ProbeExit::Done };
        match &called.ended {
            ProbedCallOutcome::Returned(_) if called.is_tool_error() => ProbeExit::ToolFailed,
            ProbedCallOutcome::Returned(_) => ProbeExit::Done,
            ProbedCallOutcome::Faulted(_) => ProbeExit::Faulted,
            ProbedCallOutcome::Lost(_) | ProbedCallOutcome::Late => ProbeExit::Lost,
        }
    }

    pub fn json(&self) -> Value {
        let versions = self.versions.iter().map(|version| match &version.served {
            Ok(()) => json!({ "version": version.version.as_str(), "served": true }),
            Err(why) => json!({ "version": version.version.as_str(), "served": false, "why": why }),
        });
        let mut report = json!({
            "target": self.target,
            "transport": self.transport.key(),
            "versions": versions.collect::<Vec<_>>(),
            "version": self.server.version.as_str(),
            "serverInfo": self.server.server_info.as_ref().map(value),
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
        let (name, version) = (named(&self.server, "name"), named(&self.server, "version"));
        if let Some(name) = name {
            writeln!(to, "server        {} {}", printable(&name), printable(&version.unwrap_or_default()))?;
        }
        for (index, version) in self.versions.iter().enumerate() {
            let title = if index == 0 { "versions" } else { "" };
            match &version.served {
                Ok(()) => writeln!(to, "{title:<14}{}  yes", version.version)?,
                Err(why) => writeln!(to, "{title:<14}{}  no: {}", version.version, printable(why))?,
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
    if words.is_empty() { Ok(()) } else { writeln!(to, "  {}", shortened(&words)) }
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
    format!("{}{notes}  {}", printable(&name), shortened(description)).trim_end().to_owned()
}

fn value(payload: &Payload) -> Value {
    payload.read().unwrap_or(Value::Null)
}

/// The TOML block that would serve the server; a test parses it.
pub(super) fn toml_block(
    probe: &ProbeCommand,
    transport: ProbedTransport,
    server: &Handshake,
    tools: &ProbedTools,
) -> String {
    let name = name_of(&probe.target, server);
    let mut block = format!("[upstreams.{name}]\n");
    let _ = match &probe.target {
        ServerTarget::Url(url) => {
            writeln!(block, "url = {}\ntransport = {}", quoted(url.as_str()), quoted(transport.key()))
        }
        ServerTarget::Program(words) => {
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            writeln!(block, "command = [{}]", words.join(", "))
        }
    };
    if !probe.env.is_empty() {
        let env: Vec<String> = probe.env.iter().map(|name| format!("{name} = \"${{{name}}}\"")).collect();
        let _ = writeln!(block, "env = {{ {} }}", env.join(", "));
    }
    if let Some(ca) = &probe.ca {
        let _ = write!(block, "\n[upstreams.{name}.tls]\nca = {}\n", quoted(&ca.display().to_string()));
    }
    if probe.authorization.is_some() {
        let variable = key_variable(&name);
        let _ = write!(block, "\n[upstreams.{name}.auth]\nauthorization = \"Bearer ${{{variable}}}\"\n");
    }
    let all: Vec<Object> = tools.all.iter().filter_map(Object::of).collect();
    let may_repeat = |tool: &&Object| is_annotated(tool, "readOnlyHint") || is_annotated(tool, "idempotentHint");
    let safe = all.iter().filter(may_repeat).count();
    if safe > 0 {
        let _ = write!(
            block,
            "\n[upstreams.{name}.tasks]\n# {safe} of {} tools say that they may run twice: after a crash they could be called again.\n\
             #after_crash = \"rerun-if-safe\"\n",
            all.len(),
        );
    }
    block
}

pub(super) fn shown_target(target: &ServerTarget) -> String {
    match target {
        ServerTarget::Url(url) => server_address::shown(url),
        ServerTarget::Program(words) => words.join(" "),
    }
}

/// A valid upstream name: the server's own, else one from its address.
fn name_of(target: &ServerTarget, server: &Handshake) -> String {
    let own = named(server, "name").and_then(|name| fitting_name(name.rsplit('/').next().unwrap_or_default()));
    own.unwrap_or_else(|| target.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(name: &str) -> Handshake {
        Handshake {
            version: ProtocolVersion::V2025_11_25,
            server_info: Some(Payload::of(&serde_json::json!({ "name": name }))),
            capabilities: Payload::empty_object(),
            instructions: None,
            has_session: true,
        }
    }

    fn probe(target: ServerTarget) -> ProbeCommand {
        ProbeCommand {
            target,
            call: None,
            env: Vec::new(),
            timeout: Duration::ZERO,
            ca: None,
            authorization: None,
            headers: Vec::new(),
        }
    }

    #[test]
    fn the_gateways_parser_reads_back_a_block_with_any_values() {
        let tool = Payload::of(&serde_json::json!({ "name": "t", "annotations": { "readOnlyHint": true } }));
        let tools = ProbedTools { all: vec![tool], incomplete: None };
        let env = |name: &str| (name == "EVERYTHING_KEY").then(|| "s3cr3t".to_owned());
        for word in [
            "plain",
            "two words",
            "\"quoted\" 'both'",
            "back\\slash",
            "${HOME}",
            "$${X}",
            "line\nbreak\ttab",
            "ü\u{7f}",
        ] {
            let target = ServerTarget::Program(vec!["npx".to_owned(), word.to_owned()]);
            let block = toml_block(&probe(target), ProbedTransport::Stdio, &server("Weird Näme!!"), &tools);
            let config =
                crate::config::parse("block.toml", &block, &env).unwrap_or_else(|error| panic!("{error}\n{block}"));
            let crate::config::ServerSettings::Stdio(stdio) = &config.config.upstreams[0].server else {
                panic!("{block}")
            };
            assert_eq!((stdio.program.as_str(), &*stdio.arguments), ("npx", &[word.to_owned()][..]), "{block}");
        }
        let url = "https://mcp.example/sse?key=${a}&b='c'".parse().unwrap();
        let mut probe = probe(ServerTarget::Url(url));
        probe.authorization = Some(http::HeaderValue::from_static("Bearer s3cr3t"));
        for transport in [ProbedTransport::Sse, ProbedTransport::StreamableHttp] {
            let block = toml_block(&probe, transport, &server("example-servers/everything"), &tools);
            assert!(!block.contains("s3cr3t"), "{block}");
            let config =
                crate::config::parse("block.toml", &block, &env).unwrap_or_else(|error| panic!("{error}\n{block}"));
            assert_eq!(&*config.config.upstreams[0].name, "everything");
        }
    }

    #[test]
    fn a_name_is_made_of_the_servers_name_else_of_its_address() {
        let url = || ServerTarget::Url("http://mcp.example:9000/mcp".parse().unwrap());
        let program = || ServerTarget::Program(vec!["/usr/bin/My Server".to_owned()]);
        for (target, own, expected) in [
            (url(), "Reports", "reports"),
            (url(), "example-servers/everything", "everything"),
            (url(), "a  --  b?", "a-b"),
            (url(), "報告", "mcp-example"),
            (program(), "", "my-server"),
            (ServerTarget::Program(vec!["報告".to_owned()]), "", "server"),
        ] {
            assert_eq!(name_of(&target, &server(own)), expected);
        }
        assert!(name_of(&url(), &server(&"x".repeat(100))).len() <= 32);
    }
}
