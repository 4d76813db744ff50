//! Reads the command line of `taskgate wrap`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::app;
use crate::config::{Config, GRACE_MAX, WrappedServer};
use crate::task::FallbackPolicy;

#[derive(Debug, clap::Args)]
pub(super) struct WrapArguments {
    /// How long a call may take and still be answered plainly; at most 30s. For clients that know the tasks extension.
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = grace)]
    grace: Duration,
    /// What clients without tasks get: "hold" holds their calls open, "tools" answers a call that outlives --grace with
    /// a text that names its task, and offers tools that go on from there.
    #[arg(long, value_name = "WAY", default_value = "hold", value_parser = fallback)]
    fallback: FallbackPolicy,
    /// Keep tasks and their results in this folder, so that they outlive this program. One server, and one program at a
    /// time, has a folder. Without it they are kept in memory.
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// The server's address, for one that is reached over HTTP.
    #[arg(long, value_name = "URL", conflicts_with = "command", value_parser = WrappedServer::url)]
    url: Option<WrappedServer>,
    /// The server's program and its arguments. It gets the environment that this program was given.
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "url")]
    command: Vec<String>,
}

fn grace(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(grace) if grace <= GRACE_MAX => Ok(grace),
        Ok(_) => Err("a call is held back for 30s at most".to_owned()),
        Err(_) => Err("write a span such as 2s or 500ms".to_owned()),
    }
}

fn fallback(text: &str) -> Result<FallbackPolicy, &'static str> {
    match text {
        "hold" => Ok(FallbackPolicy::Hold),
        "tools" => Ok(FallbackPolicy::Tools),
        _ => Err("write hold or tools"),
    }
}

/// Serves the host that started this program.
pub(super) async fn run(arguments: WrapArguments) -> anyhow::Result<ExitCode> {
    let WrapArguments { grace, fallback, store, url, command } = arguments;
    let wrapped = url.unwrap_or(WrappedServer::Program(command));
    match Config::wrapping(wrapped, grace, fallback, store) {
        Ok(config) => app::wrap(config).await,
        Err(mistakes) => Ok(super::refuse(mistakes)),
    }
}
