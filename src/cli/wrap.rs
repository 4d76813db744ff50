//! `taskgate wrap`: what can be asked of it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use url::Url;

use crate::app;
use crate::config::{Config, GRACE_MAX, Wrapped};

#[derive(Debug, clap::Args)]
pub(super) struct WrapArguments {
    /// How long a call may take and still be answered plainly; at most 30s. For clients that know the tasks extension.
    #[arg(long, value_name = "SPAN", default_value = "2s", value_parser = grace)]
    grace: Duration,
    /// Keep tasks and their results in this folder, so that they outlive this program. One server, and one program at a
    /// time, has a folder. Without it they are kept in memory.
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// The server's address, for one that is reached over HTTP.
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    url: Option<Url>,
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

/// Serves the host that started this program.
pub(super) async fn run(arguments: WrapArguments) -> anyhow::Result<ExitCode> {
    let WrapArguments { grace, store, url, command } = arguments;
    let wrapped = match url {
        Some(url) if !matches!(url.scheme(), "http" | "https") => {
            return Ok(super::refuse("the server's address must begin with http:// or https://"));
        }
        Some(url) => Wrapped::Url(url),
        None => Wrapped::Program(command),
    };
    match Config::wrapping(wrapped, grace, store) {
        Ok(config) => app::wrap(config).await,
        Err(mistakes) => Ok(super::refuse(mistakes)),
    }
}
