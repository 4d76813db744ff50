//! The upstreams of the matrix: real servers that know no tasks of the extension.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use tokio::process::Command;

use crate::install::{Peers, Pins};
use crate::process::Child;

/// How often a port that somebody else took in between is replaced.
const PORT_TRIES: usize = 5;

/// An upstream's name in configurations, and its title in the report.
pub(crate) type Name = (&'static str, String);

/// All upstreams, in the order of the report.
pub(crate) fn names() -> [Name; 3] {
    [
        ("demo", "demo server".to_owned()),
        ("everything", format!("server-everything {}", Pins::Npm.version("@modelcontextprotocol/server-everything"))),
        ("fastmcp", format!("FastMCP {} server", Pins::PyLegacy.version("fastmcp"))),
    ]
}

/// A server at work, which serves `/mcp`.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    _child: Child,
}

/// Starts all upstreams.
///
/// # Errors
/// If one of them does not say that it is ready.
pub(crate) async fn start_all(peers: &Peers) -> Result<[Server; 3], String> {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    demo.args(["demo-server", "--listen", "127.0.0.1:0"]);
    let fastmcp = peers.command("py-legacy/bin/python", ["fastmcp_server.py"]);
    let (demo, everything, fastmcp) = tokio::join!(
        announced("demo", demo, "http://"),
        everything(peers),
        announced("fastmcp", fastmcp, "listening http://")
    );
    Ok([demo?, everything?, fastmcp?])
}

/// A server that prints where it listens, in a line that begins with `start`.
async fn announced(name: &'static str, command: Command, start: &str) -> Result<Server, String> {
    let mut child = Child::start(&format!("matrix-upstream-{name}"), command)?;
    let place = child.line(start).await?;
    let address = place.strip_suffix("/mcp").and_then(|authority| authority.parse().ok());
    let address = address.ok_or_else(|| format!("{name} listens at {place}"))?;
    Ok(Server { name, address, _child: child })
}

/// The reference server wants to be told its port, so a free one is looked for.
async fn everything(peers: &Peers) -> Result<Server, String> {
    let name = "everything";
    let mut last = String::new();
    for _ in 0..PORT_TRIES {
        let port = free_port().map_err(|error| format!("no free port: {error}"))?;
        let script = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
        let mut command = peers.command("node", [script, "streamableHttp"]);
        command.env("PORT", port.to_string());
        let mut child = Child::start("matrix-upstream-everything", command)?;
        match child.line("MCP Streamable HTTP Server listening").await {
            Ok(_) => return Ok(Server { name, address: (Ipv4Addr::LOCALHOST, port).into(), _child: child }),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn free_port() -> std::io::Result<u16> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr().map(|address| address.port())
}
