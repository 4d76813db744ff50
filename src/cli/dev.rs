//! Reads the command line of `taskgate dev`.

use std::path::PathBuf;
use std::time::Duration;

use super::serve::{grace, mode};
use crate::app::{DevSettings, ServedConfig};
use crate::config::{CommandLineConfig, CommandLineServer, CommandLineStore, ServerTarget};
use crate::task::TaskMode;

#[derive(Debug, clap::Args)]
pub(super) struct DevArguments {
    /// Start the program anew when this file changes, or a file in this folder; may be repeated. Without it, the folder
    /// of the script that COMMAND names, or the working directory.
    #[arg(long, value_name = "PATH")]
    watch: Vec<PathBuf>,
    /// Which calls become tasks, as for `serve`; auto by default.
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<TaskMode>,
    /// How long a call may take and still be answered without a task; 2s by default, at most 30s.
    #[arg(long, value_name = "SPAN", value_parser = grace)]
    grace: Option<Duration>,
    /// Keep tasks and their results in this folder instead of taskgate-data.
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Serve clients at this port of 127.0.0.1; 0 picks a free one. The default is 8080, or a free port.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// The server's program and its arguments. It gets this program's environment.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl DevArguments {
    pub(super) fn served(self) -> Result<ServedConfig, String> {
        if let Some(missing) = self.watch.iter().find(|path| !path.exists()) {
            return Err(format!("--watch: {}: there is no such file or folder", missing.display()));
        }
        let server = CommandLineServer::only(ServerTarget::Program(self.command.clone()), "COMMAND");
        let line = CommandLineConfig {
            servers: vec![server],
            mode: self.mode,
            grace: self.grace,
            store: self.store.map_or_else(CommandLineStore::default, CommandLineStore::Folder),
            port: self.port,
            ..CommandLineConfig::default()
        };
        Ok(ServedConfig::Development(line, DevSettings { watched: self.watch, command: self.command }))
    }
}
