//! Probes a server (`taskgate probe`), and writes a TOML block to serve it. Uses the gateway's own upstream code, so
//! that the findings hold for the gateway.

pub(super) mod arguments;
mod discovery;
mod error;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::config::ServerTarget;
use crate::wire::Payload;
pub use arguments::ProbeArguments;
pub use report::{ProbeExit, ProbeReport, ProbedCall, ProbedTransport, ProbedVersion, ServerDescription};

#[derive(Clone, Debug)]
pub struct ProbeCommand {
    pub target: ServerTarget,
    /// The tool to call, with its arguments, an object.
    pub call: Option<(String, Payload)>,
    /// Environment variables for the program besides the default ones.
    pub env: Vec<String>,
    pub timeout: Duration,
    /// A CA to trust instead of the system's roots.
    pub ca: Option<PathBuf>,
    /// The `Authorization` header; marked as sensitive.
    pub authorization: Option<HeaderValue>,
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Ends within the probe's time, and a few seconds for programs to stop. The error is the reason as text.
pub async fn run(probe: &ProbeCommand) -> Result<ProbeReport, String> {
    discovery::run(probe).await
}
