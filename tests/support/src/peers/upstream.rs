//! The servers that stand behind the gateway: of others, and unmodified, but for the demo server.

use std::net::SocketAddr;

use tokio::process::Command;

use super::install::{Peers, Pins};
use super::process::Child;
use crate::ports::reserved_address;

/// A server program, which serves `/mcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Demo,
    Everything,
    FastMcp,
    /// With a tool that works through a list.
    FastMcpPages,
    /// Of 2026-07-28, and of sessions.
    FastMcp4,
    /// The same with tasks of its own.
    FastMcp4Tasks,
    /// Of 2026-07-28 and of sessions, and can be listened to.
    Listened,
    /// Of 2026-07-28 and of sessions.
    TypeScript2,
    /// With tasks of its own.
    FastMcpTasks,
    /// An example of the SDK's authors whose tools ask something, each in a task of its own.
    TypeScriptTasks,
    /// Whose tasks have subtasks.
    TypeScriptSubtasks,
    /// With an event store, so that streams can be resumed.
    TypeScript,
    /// The same, with calls that last until they are released, and are counted.
    Resumable,
    /// The tools that the scenarios of the conformance suite call.
    Fixture,
}

impl Program {
    /// Its name in configurations and file names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Everything => "everything",
            Self::FastMcp => "fastmcp",
            Self::FastMcpPages => "fastmcp_pages",
            Self::FastMcp4 => "fastmcp4",
            Self::FastMcp4Tasks => "fastmcp4_tasks",
            Self::Listened => "listened",
            Self::TypeScript2 => "ts2",
            Self::FastMcpTasks => "fastmcp_tasks",
            Self::TypeScriptTasks => "ts_tasks",
            Self::TypeScriptSubtasks => "ts_subtasks",
            Self::TypeScript => "ts_store",
            Self::Resumable => "resumable",
            Self::Fixture => "fixture",
        }
    }

    /// How reports call it.
    pub fn title(self) -> String {
        let npm = |package| Pins::Npm.version(package);
        match self {
            Self::Demo => "demo server".to_owned(),
            Self::Everything => format!("server-everything {}", npm("@modelcontextprotocol/server-everything")),
            Self::FastMcp | Self::FastMcpPages => format!("FastMCP {} server", Pins::PyLegacy.version("fastmcp")),
            Self::FastMcp4 => format!("FastMCP {} server", Pins::PyModern.version("fastmcp")),
            Self::FastMcp4Tasks => format!("FastMCP {} server with tasks", Pins::PyModern.version("fastmcp")),
            Self::FastMcpTasks => format!("FastMCP {} server with tasks", Pins::PyLegacy.version("fastmcp")),
            Self::Listened => format!("Python SDK {} server", Pins::PyModern.version("mcp")),
            Self::TypeScript2 => format!("TypeScript SDK {} server", npm("@modelcontextprotocol/server")),
            Self::TypeScriptTasks => format!("TypeScript SDK {} task example", npm("@modelcontextprotocol/sdk")),
            Self::TypeScriptSubtasks => {
                format!("TypeScript SDK {} server with subtasks", npm("@modelcontextprotocol/sdk"))
            }
            Self::TypeScript | Self::Resumable => {
                format!("TypeScript SDK {} with event store", npm("@modelcontextprotocol/sdk"))
            }
            Self::Fixture => "fixture".to_owned(),
        }
    }

    fn command(self, peers: &Peers, port: u16) -> Command {
        let number = port.to_string();
        match self {
            Self::Demo => {
                let mut command = Command::new(crate::taskgate());
                command.args(["demo-server", "--listen", &format!("127.0.0.1:{port}")]);
                command
            }
            Self::Everything => {
                let script = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
                let mut command = peers.command("node", [script, "streamableHttp"]);
                command.env("PORT", number);
                command
            }
            Self::FastMcp => peers.command("py-legacy/bin/python", ["fastmcp_server.py", "--port", &number]),
            Self::FastMcpPages => peers.command("py-legacy/bin/python", ["fastmcp_pages_server.py", "--port", &number]),
            Self::FastMcp4 => peers.command("py-modern/bin/python", ["fastmcp4_server.py", "--port", &number]),
            Self::Listened => peers.command("py-modern/bin/python", ["listen_py2_server.py", "--port", &number]),
            Self::TypeScript2 => peers.command("node", ["asking_ts_server.mjs", "--port", &number]),
            Self::FastMcp4Tasks => {
                peers.command("py-modern/bin/python", ["fastmcp4_server.py", "--tasks", "--port", &number])
            }
            Self::FastMcpTasks => peers.command("py-legacy/bin/python", ["fastmcp_tasks_server.py", "--port", &number]),
            Self::TypeScriptTasks => {
                let script = "node_modules/@modelcontextprotocol/sdk/dist/esm/examples/server/simpleTaskInteractive.js";
                let mut command = peers.command("node", [script]);
                command.env("PORT", number);
                command
            }
            Self::TypeScriptSubtasks => peers.command("node", ["ts_subtask_server.mjs", "--port", &number]),
            Self::TypeScript => peers.command("node", ["ts_store_server.mjs", "--port", &number]),
            Self::Resumable => peers.command("node", ["resumable_server.mjs", "--port", &number]),
            Self::Fixture => peers.command("node", ["fixture.mjs", "--port", &number]),
        }
    }

    /// The beginning of the line that it prints when it is ready.
    const fn ready(self) -> &'static str {
        match self {
            Self::Demo => "http://",
            Self::Everything => "MCP Streamable HTTP Server listening",
            Self::TypeScriptTasks => "Starting server on",
            Self::FastMcp
            | Self::FastMcpPages
            | Self::FastMcp4
            | Self::FastMcp4Tasks
            | Self::Listened
            | Self::TypeScript2
            | Self::FastMcpTasks
            | Self::TypeScriptSubtasks
            | Self::TypeScript
            | Self::Resumable
            | Self::Fixture => "listening",
        }
    }
}

/// A server at work.
#[derive(Debug)]
pub struct PeerServer {
    pub program: Program,
    pub address: SocketAddr,
    test: &'static str,
    child: Child,
}

impl PeerServer {
    /// Starts `program` for `test`, on a port of our choice: not every server can look for one itself.
    ///
    /// # Errors
    /// If it does not say that it is ready.
    pub async fn start(program: Program, peers: &Peers, test: &'static str) -> Result<Self, String> {
        let address = reserved_address();
        let child = launch(program, peers, (address, test)).await?;
        Ok(Self { program, address, test, child })
    }

    /// Lets it crash, and starts it again at the same address: all that it knew is lost.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn restart(&mut self, peers: &Peers) -> Result<(), String> {
        self.child.kill().await?;
        self.child = launch(self.program, peers, (self.address, self.test)).await?;
        Ok(())
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

async fn launch(program: Program, peers: &Peers, (address, test): (SocketAddr, &str)) -> Result<Child, String> {
    let mut child =
        Child::start(&format!("{test}-upstream-{}", program.name()), program.command(peers, address.port()))?;
    child.line(program.ready()).await?;
    Ok(child)
}
