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
    let (url, command) = (raw.own.url.place(), raw.own.command.place());
    let transport = raw.own.transport.value;
    if let Some(place) = raw.own.transport.place() {
        let is_for_urls = matches!(transport, RawTransport::StreamableHttp | RawTransport::Sse);
        if transport == RawTransport::Stdio && url.is_some() && command.is_none() {
            report.mistake(place, "needs a `command` instead of the `url`");
        }
        if is_for_urls && url.is_none() && command.is_some() {
            report.mistake(place, "needs a `url` instead of the `command`");
        }
    }
    if let Some(place) = raw.own.protocol.place()
        && transport == RawTransport::Sse
        && raw.own.protocol.value.is_some_and(ProtocolVersion::is_stateless)
    {
        report.mistake(place, "no such version goes over HTTP+SSE; write an older one, or \"auto\"");
    }
    check_variables(raw, report);
    if let Some(command) = &raw.own.command {
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
        for place in raw.auth.iter().map(|auth| &auth.place).chain(raw.url.places()) {
            report.mistake(place, "is for an upstream with a `url`; leave it out beside a `command`");
        }
    } else if url.is_some() {
        let apart = raw.tools.iter().map(|tool| &tool.own.process_per_call).filter(|apart| apart.value);
        for place in apart.filter_map(|apart| apart.place()).chain(raw.program.places()) {
            report.mistake(place, "is for an upstream with a `command`; leave it out beside a `url`");
        }
    }
}

fn check_variables(raw: &RawUpstream, report: &mut MistakeCollector) {
    let env: Vec<_> = each(raw.program.env.as_ref()).map(|one| (&one.place, &one.value.0)).collect();
    let files: Vec<_> = each(raw.program.env_files.as_ref()).map(|one| (&one.place, &one.value.0)).collect();
    for (place, name) in env.iter().chain(&files) {
        if name.is_empty() || name.len() > VARIABLE_NAME_LEN_MAX || name.contains(['=', '\0']) {
            report.mistake(place, "is no name of a variable; write one without = and at most 256 bytes long");
        }
    }
    for (place, name) in files {
        if env.iter().any(|(_, other)| *other == name) {
            report.mistake(place, "is in `env`, too; leave one of them out");
        }
    }
}

fn each<T>(list: Option<&LocatedValue<Vec<T>>>) -> impl Iterator<Item = &T> {
    list.into_iter().flat_map(|list| &list.value)
}

/// Whether a text is a program with arguments, and not a path with a space.
#[must_use]
pub fn is_command_line(text: &str) -> bool {
    let first = text.split_once(char::is_whitespace).map(|(first, _)| first);
    first.is_some_and(|first| !first.contains('/') || text.contains(" -"))
}

/// The transport to an upstream with a `url`.
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
        apart: calls_apart(raw, names),
        unusable: None,
    })
}

/// The first block that matches a tool decides. As in all rules, the tool has its new name.
fn calls_apart(raw: &RawUpstream, names: &ToolNames) -> DedicatedProcessRules {
    let rules = raw.tools.iter().map(|tool| &tool.own).filter_map(|tool| {
        let name = tool.rename.as_ref().or(tool.pattern.as_ref())?;
        (!tool.hide.value).then(|| (WildMatch::new(&name.value), tool.process_per_call.value))
    });
    DedicatedProcessRules::new(rules.collect(), names.clone())
}
