//! Writes the TOML block that would serve a server; a test parses it.

use std::fmt::Write as _;

use super::ProbeCommand;
use super::report::{ProbedTools, ProbedTransport, ServerDescription, is_annotated};
use crate::cli::server_address;
use crate::config::{ServerTarget, fitting_name, key_variable, quoted};
use crate::wire::Object;

pub(super) fn of(
    probe: &ProbeCommand,
    transport: ProbedTransport,
    server: &ServerDescription,
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

/// The target without secrets.
pub(super) fn shown(target: &ServerTarget) -> String {
    match target {
        ServerTarget::Url(url) => server_address::shown(url),
        ServerTarget::Program(words) => words.join(" "),
    }
}

/// A valid upstream name: the server's own, else one from its address.
fn name_of(target: &ServerTarget, server: &ServerDescription) -> String {
    let own = server.named("name").and_then(|name| fitting_name(name.rsplit('/').next().unwrap_or_default()));
    own.unwrap_or_else(|| target.name())
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

    fn probe(target: ServerTarget) -> ProbeCommand {
        ProbeCommand {
            target,
            call: None,
            env: Vec::new(),
            timeout: std::time::Duration::ZERO,
            ca: None,
            authorization: None,
            headers: Vec::new(),
        }
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
            let target = ServerTarget::Program(vec!["npx".to_owned(), word.to_owned()]);
            let block = of(&probe(target), ProbedTransport::Stdio, &server("Weird Näme!!"), &tools);
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
            let block = of(&probe, transport, &server("example-servers/everything"), &tools);
            assert!(!block.contains("s3cr3t"), "{block}");
            let config =
                crate::config::parse("block.toml", &block, &env).unwrap_or_else(|error| panic!("{error}\n{block}"));
            assert_eq!(&*config.config.upstreams[0].name, "everything");
        }
    }

    #[test]
    fn a_name_is_made_of_what_the_server_calls_itself_else_of_its_place() {
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
