//! Probes a server (`taskgate probe`): what it speaks, and the TOML block that would serve it.
//!
//! Asked with the pieces that the gateway itself reaches servers with, so that what is found is what will be met. Read
//! `discovery` for what is sent, `report` for what is told of it, `toml_block` for the TOML.

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

/// What is to be probed, and how.
#[derive(Clone, Debug)]
pub struct ProbeCommand {
    pub target: ServerTarget,
    /// The one tool that is called, with its arguments, an object.
    pub call: Option<(String, Payload)>,
    /// The variables of the environment that the program is given besides what every program gets.
    pub env: Vec<String>,
    /// All of it together takes no longer.
    pub timeout: Duration,
    /// Whom to trust instead of the system's authorities.
    pub ca: Option<PathBuf>,
    /// What to show a server, if it asks who comes; marked as sensitive.
    pub authorization: Option<HeaderValue>,
    /// What else to show it.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Asks a server what it speaks. Ends within the time that the probe has, and a few seconds for programs to stop.
///
/// # Errors
/// If nothing there speaks MCP: why, as a text.
pub async fn run(probe: &ProbeCommand) -> Result<ProbeReport, String> {
    discovery::run(probe).await
}
