//! Reads the server options of a command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::GRACE_MAX;
use crate::task::TaskMode;

/// The options that `serve` without a file and `wrap` share.
#[derive(Debug, Default, clap::Args)]
pub(super) struct ServerOptions {
    /// Which calls become tasks: "auto" those that outlive --grace, "always" and "required" all of them, "never"
    /// none; auto by default.
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub(super) mode: Option<TaskMode>,
    /// How long a call may take and still be answered without a task; 2s by default, at most 30s. For clients that know
    /// the tasks extension.
    #[arg(long, value_name = "SPAN", value_parser = grace)]
    pub(super) grace: Option<Duration>,
    /// Keep tasks and their results in this folder, which one gateway uses at a time. Without it `serve` keeps them in
    /// taskgate-data, and `wrap` in memory.
    #[arg(long, value_name = "DIR")]
    pub(super) store: Option<PathBuf>,
    /// Send the server the bearer token in this environment variable.
    #[arg(long, value_name = "VAR")]
    pub(super) key_env: Option<String>,
    /// Send the server this header with every request; may be repeated. Other users of this machine see it: give a secret
    /// by --key-env, or in a file.
    #[arg(long, value_name = "NAME: VALUE")]
    pub(super) header: Vec<String>,
    /// Trust these authorities (PEM) instead of the system's, for a server with https.
    #[arg(long, value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,
}

impl ServerOptions {
    /// A given option that only applies to a server with a URL.
    pub(super) fn of_an_address(&self) -> Option<&'static str> {
        let written =
            [(self.key_env.is_some(), "--key-env"), (!self.header.is_empty(), "--header"), (self.ca.is_some(), "--ca")];
        written.into_iter().find_map(|(is_written, option)| is_written.then_some(option))
    }
}

fn mode(text: &str) -> Result<TaskMode, &'static str> {
    match text {
        "never" => Ok(TaskMode::Never),
        "auto" => Ok(TaskMode::Auto),
        "always" => Ok(TaskMode::Always),
        "required" => Ok(TaskMode::Required),
        _ => Err("write never, auto, always or required"),
    }
}

fn grace(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(grace) if grace <= GRACE_MAX => Ok(grace),
        Ok(_) => Err("a call is held back for 30s at most".to_owned()),
        Err(_) => Err("write a duration such as 2s or 500ms".to_owned()),
    }
}
