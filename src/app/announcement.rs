//! Prints the gateway's addresses, and commands to try.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::Gateway;
use crate::own_command::OwnCommand;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announcement {
    /// None: the operator wrote a configuration file.
    Addresses,
    Demo,
    Hosts,
}

/// An upstream's name and path; for an endpoint of several upstreams, its path twice.
pub(super) type ServedPath = (String, String);

impl Announcement {
    /// Prints the announcement. `served` has at least one upstream.
    pub(super) fn print(self, gateway: &Gateway, served: &[ServedPath]) -> io::Result<()> {
        let bound = gateway.base_url();
        let base = gateway.public_url().unwrap_or(&bound);
        let urls: Vec<_> = served.iter().map(|(name, path)| (name.as_str(), format!("{base}{path}"))).collect();
        let mut out = io::stdout().lock();
        for (_, url) in &urls {
            writeln!(out, "serving {url}")?;
        }
        if base != bound {
            writeln!(out, "listen  {bound}")?;
        }
        if let Some(address) = gateway.metrics_address() {
            writeln!(out, "metrics http://{address}")?;
        }
        writeln!(out, "admin   http://{}", gateway.admin_address())?;
        let folder = gateway.folder().display();
        match self {
            Self::Addresses => (),
            Self::Demo => {
                writeln!(out, "The demo server is behind it; tasks are kept in {folder}. Try:")?;
                demo(&mut out, &urls)?;
            }
            Self::Hosts => {
                writeln!(out, "Tasks are kept in {folder}.")?;
                hosts(&mut out, &urls)?;
            }
        }
        out.flush()
    }
}

fn demo(out: &mut impl Write, urls: &[(&str, String)]) -> io::Result<()> {
    let program = OwnCommand::of_this_process().words().join(" ");
    for (_, url) in urls {
        writeln!(out, "  {program} call {url} greet '{{\"name\":\"Ada\"}}'")?;
        writeln!(out, "  {program} call {url} slow_report '{{\"seconds\":8,\"steps\":8}}'")?;
        writeln!(out, "  {program} call {url} slow_report '{{\"seconds\":60,\"steps\":60}}' --no-wait")?;
    }
    Ok(())
}

fn hosts(out: &mut impl Write, urls: &[(&str, String)]) -> io::Result<()> {
    let words = OwnCommand::of_this_process().words();
    let program = words.join(" ");
    writeln!(out, "Claude Code:")?;
    for (name, url) in urls {
        writeln!(out, "  claude mcp add --transport http {name} {url}")?;
    }
    let servers = |entry: &dyn Fn(&str) -> Value| {
        Value::Object(urls.iter().map(|(name, url)| ((*name).to_owned(), entry(url))).collect::<Map<_, _>>())
    };
    let over_http = servers(&|url| json!({ "type": "http", "url": url }));
    writeln!(out, "VS Code, in .vscode/mcp.json:\n  {}", json!({ "servers": over_http }))?;
    let over_stdio = servers(&|url| {
        let arguments: Vec<_> = words.iter().skip(1).map(String::as_str).chain(["wrap", "--url", url]).collect();
        json!({ "command": words.first(), "args": arguments })
    });
    writeln!(out, "A desktop host, in its JSON:\n  {}", json!({ "mcpServers": over_stdio }))?;
    writeln!(out, "A shell, where the first names the tools:")?;
    for (_, url) in urls {
        writeln!(out, "  {program} tools {url}\n  {program} call {url} TOOL '{{}}'")?;
    }
    Ok(())
}
