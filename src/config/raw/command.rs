//! Checks the keys of an upstream that is a program.

use std::sync::Arc;

use wildmatch::WildMatch;

use super::{RawTransport, RawUpstream};
use crate::config::error::MistakeCollector;
use crate::config::keys::{KeyField as _, KeyTable as _};
use crate::config::section::LocatedValue;
use crate::task::ToolNames;
use crate::upstream::http::HttpTransport;
use crate::upstream::transport::adapter::dedicated_process::DedicatedProcessRules;
use crate::upstream::transport::stdio::StdioUpstreamSettings;
use crate::wire::ProtocolVersion;

const VARIABLE_NAME_LEN_MAX: usize = 256;

/// Notes the keys that do not fit the transport.
pub(in crate::config) fn check(raw: &RawUpstream, report: &mut MistakeCollector) {
    let (url, command) = (raw.own.url.location(), raw.own.command.location());
    let transport = raw.own.transport.value;
    if let Some(location) = raw.own.transport.location() {
        let is_for_urls = matches!(transport, RawTransport::StreamableHttp | RawTransport::Sse);
        if transport == RawTransport::Stdio && url.is_some() && command.is_none() {
            report.mistake(location, "needs a `command` instead of the `url`");
        }
        if is_for_urls && url.is_none() && command.is_some() {
            report.mistake(location, "needs a `url` instead of the `command`");
        }
    }
    if let Some(location) = raw.own.protocol.location()
        && transport == RawTransport::Sse
        && raw.own.protocol.value.is_some_and(ProtocolVersion::is_stateless)
    {
        report.mistake(location, "no such version goes over HTTP+SSE; write an older one, or \"auto\"");
    }
    check_variables(raw, report);
    let dedicated = raw.tools.iter().map(|tool| &tool.own.process_per_call).filter(|flag| flag.value);
    let dedicated = dedicated.filter_map(|flag| flag.location());
    if let Some(command) = &raw.own.command {
        if raw.program.processes_max.value == 1 {
            let message =
                "no call gets a process: the client has the only one (`processes_max`), which must be 2 or more";
            dedicated.for_each(|location| report.warning(location, message));
        }
        if command.value.first().is_some_and(String::is_empty) {
            report.mistake(&command.location, "names no program");
        }
        if let [line] = command.value.as_slice()
            && is_command_line(line)
        {
            report.mistake(
                &command.location,
                "is one string with blanks; write an array, such as [\"npx\", \"-y\", \"server\"]",
            );
        }
        let issued = raw.issued.iter().map(|issued| &issued.location);
        for location in raw.auth.iter().map(|auth| &auth.location).chain(issued).chain(raw.url.locations()) {
            report.mistake(location, "is for an upstream with a `url`; leave it out beside a `command`");
        }
    } else if url.is_some() {
        for location in dedicated.chain(raw.program.locations()) {
            report.mistake(location, "is for an upstream with a `command`; leave it out beside a `url`");
        }
    }
}

fn check_variables(raw: &RawUpstream, report: &mut MistakeCollector) {
    let env: Vec<_> = each(raw.program.env.as_ref()).map(|one| (&one.location, &one.value.0)).collect();
    let files: Vec<_> = each(raw.program.env_files.as_ref()).map(|one| (&one.location, &one.value.0)).collect();
    for (location, name) in env.iter().chain(&files) {
        if name.is_empty() || name.len() > VARIABLE_NAME_LEN_MAX || name.contains(['=', '\0']) {
            report.mistake(location, "is not the name of a variable; write one without = and at most 256 bytes long");
        }
    }
    for (location, name) in files {
        if env.iter().any(|(_, other)| *other == name) {
            report.mistake(location, "is in `env`, too; leave one of them out");
        }
    }
}

fn each<T>(list: Option<&LocatedValue<Vec<T>>>) -> impl Iterator<Item = &T> {
    list.into_iter().flat_map(|list| &list.value)
}

/// Whether a text is a program with arguments, and not a path with a space.
pub fn is_command_line(text: &str) -> bool {
    let first = text.split_once(char::is_whitespace).map(|(first, _)| first);
    first.is_some_and(|first| !first.contains('/') || text.contains(" -"))
}

pub(in crate::config) fn transport(raw: &RawUpstream) -> HttpTransport {
    match raw.own.transport.value {
        RawTransport::StreamableHttp => HttpTransport::Streamable,
        RawTransport::Sse => HttpTransport::Sse,
        // `Stdio` here is a mistake that is noted elsewhere.
        RawTransport::Auto | RawTransport::Stdio => HttpTransport::Auto,
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
    let own = &raw.program;
    let mut words = raw.own.command.as_ref()?.value.iter().chain(&own.args.value).cloned();
    Some(StdioUpstreamSettings {
        name: Arc::clone(name),
        program: words.next()?,
        arguments: words.collect(),
        env: each(own.env.as_ref()).map(|env| env.value.clone()).collect(),
        env_files: each(own.env_files.as_ref()).map(|env| env.value.clone()).collect(),
        folder: own.cwd.as_ref().map(|folder| folder.value.clone()),
        processes_max: own.processes_max.value,
        descriptors_max: own.descriptors_max.as_ref().map(|count| count.value),
        memory_bytes_max: own.memory_max.as_ref().map(|size| size.value),
        line_bytes_max,
        protocol,
        dedicated: dedicated_processes(raw, names),
        stderr_use: own.stderr.value,
        unusable: None,
    })
}

/// The first block that matches a tool decides. As in all rules, the tool has its new name.
fn dedicated_processes(raw: &RawUpstream, names: &ToolNames) -> DedicatedProcessRules {
    let rules = raw.tools.iter().map(|tool| &tool.own).filter_map(|tool| {
        let name = tool.rename.as_ref().or(tool.pattern.as_ref())?;
        (!tool.hide.value).then(|| (WildMatch::new(&name.value), tool.process_per_call.value))
    });
    DedicatedProcessRules::new(rules.collect(), names.clone())
}
