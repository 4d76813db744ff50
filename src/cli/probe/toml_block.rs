//! Writes the TOML block that would serve a server. Fit to be pasted: the test reads it with the gateway's own parser.

use std::fmt::Write as _;

use super::report::{ProbedTools, ProbedTransport, ServerDescription, is_annotated};
use super::{ProbeCommand, ProbeTarget};
use crate::cli::server_address;
use crate::wire::Object;

/// Longest name that is made up.
const NAME_LEN_MAX: usize = 32;
const FALLBACK_NAME: &str = "server";

/// The block for what was found.
pub(super) fn of(
    probe: &ProbeCommand,
    transport: ProbedTransport,
    server: &ServerDescription,
    tools: &ProbedTools,
) -> String {
    let name = name_of(&probe.target, server);
    let mut block = format!("[upstreams.{name}]\n");
    // Writing to a string cannot fail.
    let _ = match &probe.target {
        ProbeTarget::Url(url) => {
            writeln!(block, "url = {}\ntransport = {}", quoted(url.as_str()), quoted(transport.key()))
        }
        ProbeTarget::Command(words) => {
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            writeln!(block, "command = [{}]", words.join(", "))
        }
    };
    if let Some(ca) = &probe.ca {
        let _ = write!(block, "\n[upstreams.{name}.tls]\nca = {}\n", quoted(&ca.display().to_string()));
    }
    if probe.authorization.is_some() {
        let variable = name.to_ascii_uppercase().replace('-', "_");
        let _ = write!(block, "\n[upstreams.{name}.auth]\nauthorization = \"Bearer ${{{variable}_KEY}}\"\n");
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

/// The target as it may be shown.
pub(super) fn shown(target: &ProbeTarget) -> String {
    match target {
        ProbeTarget::Url(url) => server_address::shown(url),
        ProbeTarget::Command(words) => words.join(" "),
    }
}

/// What the server calls itself, else where it is, as a name that the configuration takes.
fn name_of(target: &ProbeTarget, server: &ServerDescription) -> String {
    let own = server.named("name").map(|name| plain(name.rsplit('/').next().unwrap_or_default()));
    let place = || match target {
        ProbeTarget::Url(url) => plain(url.host_str().unwrap_or_default()),
        ProbeTarget::Command(words) => plain(words[0].rsplit('/').next().unwrap_or_default()),
    };
    let name = own.filter(|name| !name.is_empty()).unwrap_or_else(place);
    if name.is_empty() { FALLBACK_NAME.to_owned() } else { name }
}

/// The text with nothing but a to z, 0 to 9 and single hyphens between them.
fn plain(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        match c.to_ascii_lowercase() {
            c @ ('a'..='z' | '0'..='9' | '_') => name.push(c),
            _ if name.is_empty() || name.ends_with('-') => (),
            _ => name.push('-'),
        }
    }
    name.truncate(NAME_LEN_MAX);
    name.trim_end_matches('-').to_owned()
}

/// A string of TOML that the configuration reads back as this text: `${` means a variable there.
fn quoted(text: &str) -> String {
    toml::Value::String(text.replace("${", "$${")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Payload, ProtocolVersion};

    fn server(name: &str) -> ServerDescription {
        ServerDescription {
            version: ProtocolVersion::V2025_11_25,
            info: Some(Payload::of(&serde_json::json!({ "name": name }))),
            capabilities: Payload::empty_object(),
            instructions: None,
        }
    }

    fn probe(target: ProbeTarget) -> ProbeCommand {
        ProbeCommand { target, call: None, timeout: std::time::Duration::ZERO, ca: None, authorization: None }
    }

    #[test]
    fn the_gateways_own_parser_reads_the_block_back_whatever_stands_in_it() {
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
            let target = ProbeTarget::Command(vec!["npx".to_owned(), word.to_owned()]);
            let block = of(&probe(target), ProbedTransport::Stdio, &server("Weird Näme!!"), &tools);
            let config =
                crate::config::parse("block.toml", &block, &env).unwrap_or_else(|error| panic!("{error}\n{block}"));
            let crate::config::ServerSettings::Stdio(stdio) = &config.config.upstreams[0].server else {
                panic!("{block}")
            };
            assert_eq!((stdio.program.as_str(), &*stdio.arguments), ("npx", &[word.to_owned()][..]), "{block}");
        }
        let url = "https://mcp.example/sse?key=${a}&b='c'".parse().unwrap();
        let mut probe = probe(ProbeTarget::Url(url));
        probe.authorization = Some(http::HeaderValue::from_static("Bearer s3cr3t"));
        for transport in [ProbedTransport::Sse, ProbedTransport::StreamableHttp] {
            let block = of(&probe, transport, &server("example-servers/everything"), &tools);
            assert!(!block.contains("s3cr3t"), "{block}");
            let config =
                crate::config::parse("block.toml", &block, &env).unwrap_or_else(|error| panic!("{error}\n{block}"));
            assert_eq!(&*config.config.upstreams[0].name, "everything");
        }
    }

    #[test]
    fn a_name_is_made_of_what_the_server_calls_itself_else_of_its_place() {
        let url = || ProbeTarget::Url("http://mcp.example:9000/mcp".parse().unwrap());
        let program = || ProbeTarget::Command(vec!["/usr/bin/My Server".to_owned()]);
        for (target, own, expected) in [
            (url(), "Reports", "reports"),
            (url(), "example-servers/everything", "everything"),
            (url(), "a  --  b?", "a-b"),
            (url(), "報告", "mcp-example"),
            (program(), "", "my-server"),
            (ProbeTarget::Command(vec!["報告".to_owned()]), "", "server"),
        ] {
            assert_eq!(name_of(&target, &server(own)), expected);
        }
        assert!(name_of(&url(), &server(&"x".repeat(100))).len() <= NAME_LEN_MAX);
    }
}
