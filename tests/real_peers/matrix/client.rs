//! The clients of the matrix: unmodified libraries, each driven by a small script of its own.

use serde::Deserialize;
use support::peers::WAIT_MAX;
use tokio::time::timeout;

use super::cases::{Call, Case, Expected, Way, call, plain_call};
use super::install::{Peers, Pins};
use super::process::log_file;
use super::rust_client;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    FastMcp4,
    TypeScript,
    Rust,
    Python,
    TypeScriptPlain,
    AiSdk,
}

/// A driver's report of a call.
#[derive(Debug, Deserialize)]
pub(crate) struct Facts {
    pub(crate) version: String,
    pub(crate) outcome: String,
    pub(crate) text: String,
    pub(crate) code: Option<i64>,
    pub(crate) task: bool,
}

impl Client {
    pub(crate) const ALL: [Self; 6] =
        [Self::FastMcp4, Self::TypeScript, Self::Rust, Self::Python, Self::TypeScriptPlain, Self::AiSdk];

    /// How the report calls it.
    pub(crate) fn title(self) -> String {
        let version = self.version();
        match self {
            Self::FastMcp4 => {
                format!("FastMCP {version} with fastmcp-tasks {}", Pins::PyModern.version("fastmcp-tasks"))
            }
            Self::TypeScript => {
                format!(
                    "TypeScript client {version} with ext-tasks {}",
                    Pins::Npm.version("@modelcontextprotocol/ext-tasks")
                )
            }
            Self::Rust => format!("rmcp {version}"),
            Self::Python => format!("Python SDK {version}, plain calls"),
            Self::TypeScriptPlain => format!("TypeScript client {version}, plain calls"),
            Self::AiSdk => format!("@ai-sdk/mcp {version}, plain calls"),
        }
    }

    fn version(self) -> &'static str {
        match self {
            Self::FastMcp4 => Pins::PyModern.version("fastmcp"),
            Self::TypeScript | Self::TypeScriptPlain => Pins::Npm.version("@modelcontextprotocol/client"),
            Self::Rust => rust_client::VERSION,
            Self::Python => Pins::PyModern.version("mcp"),
            Self::AiSdk => Pins::Npm.version("@ai-sdk/mcp"),
        }
    }

    /// A word for file names.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::FastMcp4 => "fastmcp4",
            Self::TypeScript => "ts",
            Self::Rust => "rmcp",
            Self::Python => "py2",
            Self::TypeScriptPlain => "ts-plain",
            Self::AiSdk => "ai-sdk",
        }
    }

    /// This client's call in `case`.
    pub(crate) fn call(self, upstream: &str, case: Case) -> Option<Call> {
        match self {
            Self::FastMcp4 | Self::TypeScript | Self::Rust => call(upstream, case),
            Self::Python | Self::TypeScriptPlain => plain_call(upstream, case),
            // It cannot be asked to sample.
            Self::AiSdk => plain_call(upstream, case).filter(|_| case != Case::Sampling),
        }
    }

    /// Makes `call` at `url` and checks its outcome.
    ///
    /// # Errors
    /// The unexpected parts of the outcome.
    pub(crate) async fn make(self, peers: &Peers, url: &str, call: Call) -> Result<(), String> {
        let (program, script) = match self {
            Self::Rust => {
                let drive = rust_client::drive(url, call);
                let facts = timeout(WAIT_MAX, drive).await.map_err(|_| "no end in time".to_owned())??;
                return self.judge(&facts, call);
            }
            Self::FastMcp4 => ("py-modern/bin/python", "client_fastmcp4.py"),
            Self::Python => ("py-modern/bin/python", "client_py2.py"),
            Self::TypeScript => ("node", "client_ts.mjs"),
            Self::TypeScriptPlain => ("node", "client_ts_plain.mjs"),
            Self::AiSdk => ("node", "client_ai_sdk.mjs"),
        };
        let kind = match call.expected {
            Expected::Cancelled => "cancel",
            _ if call.declines => "decline",
            Expected::Result(_) | Expected::ToolError(_) | Expected::ProtocolError(..) => "call",
        };
        let mut command = peers.command(program, [script, url, kind, call.tool, call.arguments]);
        let output = command.kill_on_drop(true).output();
        let output = timeout(WAIT_MAX, output).await.map_err(|_| "no end in time".to_owned())?;
        let output = output.map_err(|error| format!("{program} cannot be started: {error}"))?;
        let log = log_file(&format!("matrix-client-{}-{}", self.name(), call.tool))?;
        std::fs::write(&log, [&output.stdout[..], &output.stderr].concat()).map_err(|error| error.to_string())?;
        let facts = serde_json::from_slice(&output.stdout);
        let facts = facts.map_err(|error| format!("the driver printed no facts ({error}), see {}", log.display()))?;
        self.judge(&facts, call)
    }

    fn judge(self, facts: &Facts, call: Call) -> Result<(), String> {
        let version = self.version();
        let (outcome, code, text) = match call.expected {
            Expected::Result(text) => ("result", None, text),
            Expected::ToolError(text) => ("tool_error", None, text),
            Expected::ProtocolError(code, text) => ("protocol_error", Some(code), text),
            Expected::Cancelled => ("cancelled", None, ""),
        };
        let way = if facts.task { Way::Task } else { Way::Plain };
        let is_right = facts.version == version
            && (facts.outcome.as_str(), facts.code) == (outcome, code)
            && facts.text.contains(text)
            && way == call.way;
        let expected = call.expected;
        let wrong = || format!("version {version}, {expected:?}, {:?} expected, not {facts:?}", call.way);
        if is_right { Ok(()) } else { Err(wrong()) }
    }
}
