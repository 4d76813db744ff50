//! Prints where the gateway serves, and what to try there.

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::Gateway;

/// What there is to say besides the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announcement {
    /// The operator has a file, and knows.
    Addresses,
    /// What to try with the demo server.
    Demo,
    /// How hosts get to the servers that a command line names.
    Hosts,
}

/// An upstream's name and the path that it is served at; an endpoint of several has its path in both.
pub(super) type ServedPath = (String, String);

impl Announcement {
    /// Prints it. Of `served` each is an upstream, and there is at least one.
    ///
    /// # Errors
    /// If nothing can be printed.
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

/// This program, as it can be started again.
fn program() -> String {
    env::current_exe().unwrap_or_else(|_| PathBuf::from("taskgate")).display().to_string()
}

fn demo(out: &mut impl Write, urls: &[(&str, String)]) -> io::Result<()> {
    let program = program();
    for (_, url) in urls {
        writeln!(out, "  {program} call {url} greet '{{\"name\":\"Ada\"}}'")?;
        writeln!(out, "  {program} call {url} slow_report '{{\"seconds\":8,\"steps\":8}}'")?;
        writeln!(out, "  {program} call {url} slow_report '{{\"seconds\":60,\"steps\":60}}' --no-wait")?;
    }
    Ok(())
}

/// What makes hosts use the servers: each line as it is to be pasted.
fn hosts(out: &mut impl Write, urls: &[(&str, String)]) -> io::Result<()> {
    let program = program();
    writeln!(out, "Claude Code:")?;
    for (name, url) in urls {
        writeln!(out, "  claude mcp add --transport http {name} {url}")?;
    }
    let servers = |entry: &dyn Fn(&str) -> Value| {
        Value::Object(urls.iter().map(|(name, url)| ((*name).to_owned(), entry(url))).collect::<Map<_, _>>())
    };
    let over_http = servers(&|url| json!({ "type": "http", "url": url }));
    writeln!(out, "VS Code, in .vscode/mcp.json:\n  {}", json!({ "servers": over_http }))?;
    let over_stdio = servers(&|url| json!({ "command": program, "args": ["wrap", "--url", url] }));
    writeln!(out, "A desktop host, in its JSON:\n  {}", json!({ "mcpServers": over_stdio }))?;
    writeln!(out, "A shell, where the first names the tools:")?;
    for (_, url) in urls {
        writeln!(out, "  {program} tools {url}\n  {program} call {url} TOOL '{{}}'")?;
    }
    Ok(())
}
