//! Probes a server (`taskgate probe`), and writes a TOML block to serve it.
//!
//! Uses the gateway's own upstream code, so that the findings hold for the gateway. Read `discovery` for the requests, `report`
//! for the output, `toml_block` for the TOML.

pub(super) mod arguments;
mod discovery;
mod error;
mod report;
mod toml_block;

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::config::ServerTarget;
use crate::wire::Payload;
pub use arguments::ProbeArguments;
pub use report::{ProbeExit, ProbeReport, ProbedCall, ProbedTransport, ProbedVersion, ServerDescription};

/// The target and options of a probe.
#[derive(Clone, Debug)]
pub struct ProbeCommand {
    pub target: ServerTarget,
    /// The tool to call, with its arguments, an object.
    pub call: Option<(String, Payload)>,
    /// Environment variables for the program besides the default ones.
    pub env: Vec<String>,
    /// The time limit of the whole probe.
    pub timeout: Duration,
    /// A CA to trust instead of the system's roots.
    pub ca: Option<PathBuf>,
    /// The `Authorization` header; marked as sensitive.
    pub authorization: Option<HeaderValue>,
    /// Further headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Probes a server. Ends within the probe's time, and a few seconds for programs to stop.
///
/// # Errors
/// If nothing at the target speaks MCP, with the reason as text.
pub async fn run(probe: &ProbeCommand) -> Result<ProbeReport, String> {
    discovery::run(probe).await
}
