//! Reads and checks the keys of an upstream that is a program.

use std::path::PathBuf;
use std::sync::Arc;

use wildmatch::WildMatch;

use super::RawUpstream;
use crate::config::error::{ConfigLocation, MistakeCollector};
use crate::config::section::{LocatedValue, Section};
use crate::config::value::{ENV_FILE, ENV_VALUE, FOLDER, SIZE, WORD_OF_COMMAND};
use crate::task::ToolNames;
use crate::upstream::http::HttpTransport;
use crate::upstream::transport::adapter::dedicated_process::DedicatedProcessRules;
use crate::upstream::transport::stdio::StdioUpstreamSettings;
use crate::wire::ProtocolVersion;

/// The default number of concurrent processes of one upstream.
const PROCESSES_MAX: u32 = 64;
const VARIABLE_NAME_LEN_MAX: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) enum RawTransport {
    Auto,
    StreamableHttp,
    Sse,
    Stdio,
}

/// The keys of an upstream that is a program.
#[derive(Debug, Default)]
pub(in crate::config) struct RawCommand {
    pub(in crate::config) transport: Option<LocatedValue<RawTransport>>,
    /// The program, with its arguments if written as an array.
    pub(in crate::config) command: Option<LocatedValue<Vec<String>>>,
    args: Vec<String>,
    env: Vec<LocatedValue<(String, String)>>,
    env_files: Vec<LocatedValue<(String, PathBuf)>>,
    cwd: Option<LocatedValue<PathBuf>>,
    processes_max: Option<LocatedValue<u32>>,
    descriptors_max: Option<LocatedValue<u32>>,
    memory_max: Option<LocatedValue<usize>>,
}

pub(in crate::config) fn read(section: &mut Section<'_, '_>) -> RawCommand {
    let transports = [
        ("auto", Some(RawTransport::Auto)),
        ("streamable-http", Some(RawTransport::StreamableHttp)),
        ("sse", Some(RawTransport::Sse)),
        ("stdio", Some(RawTransport::Stdio)),
    ];
    RawCommand {
        transport: section.word("transport", &transports),
        command: section.one_or_all("command", &WORD_OF_COMMAND),
        args: section.read_all("args", &WORD_OF_COMMAND),
        env: section.texts("env", &ENV_VALUE),
        env_files: section.texts("env_files", &ENV_FILE),
        cwd: section.read("cwd", &FOLDER),
        processes_max: section.count("processes_max", 1),
        descriptors_max: section.count("descriptors_max", 16),
        memory_max: section.read("memory_max", &SIZE),
    }
}

/// Notes the keys that do not fit the transport.
pub(in crate::config) fn check(raw: &RawUpstream, report: &mut MistakeCollector) {
    let RawCommand { transport, command, processes_max, descriptors_max, memory_max, cwd, .. } = &raw.command;
    if let (Some(transport), Some(_), None) = (transport, &raw.url, command)
        && transport.value == RawTransport::Stdio
    {
        report.mistake(&transport.place, "needs a `command` instead of the `url`");
    }
    if let (Some(transport), None, Some(_)) = (transport, &raw.url, command)
        && matches!(transport.value, RawTransport::StreamableHttp | RawTransport::Sse)
    {
        report.mistake(&transport.place, "needs a `url` instead of the `command`");
    }
    if let (Some(transport), Some(protocol)) = (transport, &raw.settings.protocol)
        && transport.value == RawTransport::Sse
        && protocol.value.is_some_and(ProtocolVersion::is_stateless)
    {
        report.mistake(&protocol.place, "no such version goes over HTTP+SSE; write an older one, or \"auto\"");
    }
    let variables = raw.command.env.iter().map(|env| (&env.place, &env.value.0));
    let variables = variables.chain(raw.command.env_files.iter().map(|env| (&env.place, &env.value.0)));
    for (place, name) in variables {
        if name.is_empty() || name.len() > VARIABLE_NAME_LEN_MAX || name.contains(['=', '\0']) {
            report.mistake(place, "is no name of a variable; write one without = and at most 256 bytes long");
        }
    }
    for (place, name) in raw.command.env_files.iter().map(|file| (&file.place, &file.value.0)) {
        if raw.command.env.iter().any(|env| env.value.0 == *name) {
            report.mistake(place, "is in `env`, too; leave one of them out");
        }
    }
    if let Some(command) = command {
        if command.value.first().is_some_and(String::is_empty) {
            report.mistake(&command.place, "names no program");
        }
        if let [line] = command.value.as_slice()
            && is_command_line(line)
        {
            report.mistake(
                &command.place,
                "is one string with blanks; write an array, such as [\"npx\", \"-y\", \"server\"]",
            );
        }
        check_headers(raw, report);
    }
    if command.is_some() || raw.url.is_none() {
        return;
    }
    for tool in &raw.tools {
        if let Some(apart) = tool.process_per_call.as_ref().filter(|apart| apart.value) {
            report.mistake(&apart.place, "is for an upstream with a `command`; leave it out beside a `url`");
        }
    }
    let counts = [processes_max, descriptors_max].into_iter().flatten().map(|count| &count.place);
    let others = memory_max.iter().map(|size| &size.place).chain(cwd.iter().map(|folder| &folder.place));
    let variables = raw.command.env.iter().map(|env| &env.place);
    for place in counts.chain(others).chain(variables).chain(raw.command.env_files.iter().map(|env| &env.place)) {
        report.mistake(place, "is for an upstream with a `command`; leave it out beside a `url`");
    }
    if !raw.command.args.is_empty() {
        let place = ConfigLocation::own(raw.place.line, format!("{}.args", raw.place.key));
        report.mistake(&place, "is for an upstream with a `command`; leave it out beside a `url`");
    }
}

/// Whether a text is a program with arguments, and not a path with a space.
#[must_use]
pub fn is_command_line(text: &str) -> bool {
    let first = text.split_once(char::is_whitespace).map(|(first, _)| first);
    first.is_some_and(|first| !first.contains('/') || text.contains(" -"))
}

/// Notes keys about headers and connections, which a program does not have.
fn check_headers(raw: &RawUpstream, report: &mut MistakeCollector) {
    let message = "is for an upstream with a `url`; leave it out beside a `command`";
    let edges = &raw.edges;
    let auth = edges.auth.iter().map(|auth| &auth.place);
    let connecting = raw.settings.connect_max.iter().map(|written| &written.place);
    let forwarding = edges.forward_authorization.iter().map(|written| &written.place);
    let proxy = raw.settings.proxy.iter().map(|written| &written.place);
    let proxy = proxy.chain(raw.settings.proxy_credentials_file.iter().map(|written| &written.place));
    for place in auth.chain(forwarding).chain(connecting).chain(proxy) {
        report.mistake(place, message);
    }
    if !edges.forward_headers.is_empty() {
        let key = format!("{}.forward_headers", raw.place.key);
        report.mistake(&ConfigLocation::own(raw.place.line, key), message);
    }
}

/// The transport to an upstream with a `url`.
pub(in crate::config) fn transport(raw: &RawUpstream) -> HttpTransport {
    match raw.command.transport.as_ref().map(|transport| transport.value) {
        Some(RawTransport::StreamableHttp) => HttpTransport::Streamable,
        Some(RawTransport::Sse) => HttpTransport::Sse,
        // `Stdio` here is a mistake that is noted elsewhere.
        Some(RawTransport::Auto | RawTransport::Stdio) | None => HttpTransport::Auto,
    }
}

/// The settings of a program; `None` for other upstreams.
pub(in crate::config) fn resolve(
    raw: &RawUpstream,
    name: &Arc<str>,
    protocol: Option<ProtocolVersion>,
    line_bytes_max: usize,
    names: &ToolNames,
) -> Option<StdioUpstreamSettings> {
    let own = &raw.command;
    let mut words = own.command.as_ref()?.value.iter().chain(&own.args).cloned();
    Some(StdioUpstreamSettings {
        name: Arc::clone(name),
        program: words.next()?,
        arguments: words.collect(),
        env: own.env.iter().map(|env| env.value.clone()).collect(),
        env_files: own.env_files.iter().map(|env| env.value.clone()).collect(),
        folder: own.cwd.as_ref().map(|folder| folder.value.clone()),
        processes_max: own.processes_max.as_ref().map_or(PROCESSES_MAX, |count| count.value),
        descriptors_max: own.descriptors_max.as_ref().map(|count| count.value),
        memory_bytes_max: own.memory_max.as_ref().map(|size| size.value),
        line_bytes_max,
        protocol,
        apart: calls_apart(raw, names),
        unusable: None,
    })
}

/// The first block that matches a tool decides. As in all rules, the tool has its new name.
fn calls_apart(raw: &RawUpstream, names: &ToolNames) -> DedicatedProcessRules {
    let rules = raw.tools.iter().filter_map(|tool| {
        let name = tool.rename.as_ref().or(tool.pattern.as_ref())?;
        let is_apart = tool.process_per_call.as_ref().is_some_and(|apart| apart.value);
        let is_hidden = tool.hide.as_ref().is_some_and(|hide| hide.value);
        (!is_hidden).then(|| (WildMatch::new(&name.value), is_apart))
    });
    DedicatedProcessRules::new(rules.collect(), names.clone())
}
