//! Reads the command line of `taskgate wrap`.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use super::serve::ServerOptions;
use crate::app;
use crate::config::{CommandLineConfig, CommandLineServer, CommandLineStore, ServerTarget};
use crate::task::FallbackPolicy;

#[derive(Debug, clap::Args)]
pub(super) struct WrapArguments {
    #[command(flatten)]
    options: ServerOptions,
    /// For clients without tasks: "hold" holds their calls open, "tools" answers a call that outlives --grace with
    /// a text that names its task, and offers tools that continue with the task.
    #[arg(long, value_name = "WAY", default_value = "hold", value_parser = fallback)]
    fallback: FallbackPolicy,
    /// The address of a server over HTTP.
    #[arg(long, value_name = "URL", conflicts_with = "command")]
    url: Option<String>,
    /// A configuration with `upstreams`, for several servers or for rules of single tools. Its `endpoints`, `store` and `limits`
    /// apply, too. It replaces the other options.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ServerOptions", "fallback", "url", "command"])]
    config: Option<PathBuf>,
    /// The server's program and its arguments. It gets this program's environment.
    #[arg(last = true, value_name = "COMMAND", required_unless_present_any = ["url", "config"])]
    command: Vec<String>,
}

fn fallback(text: &str) -> Result<FallbackPolicy, &'static str> {
    match text {
        "hold" => Ok(FallbackPolicy::Hold),
        "tools" => Ok(FallbackPolicy::Tools),
        _ => Err("write hold or tools"),
    }
}

pub(super) async fn run(arguments: WrapArguments) -> anyhow::Result<ExitCode> {
    let WrapArguments { options, fallback, url, config, command } = arguments;
    if let Some(file) = config {
        return match app::files::load_wrapped(&file) {
            Ok(loaded) => Box::pin(app::wrap(loaded, None)).await,
            Err(mistakes) => Ok(super::refuse_file(&mistakes)),
        };
    }
    let server = match url.as_deref().map(ServerTarget::url) {
        Some(Ok(address)) => CommandLineServer::wrapped(address, "--url"),
        Some(Err(why)) => return Ok(super::refuse(format_args!("--url: {why}"))),
        None => CommandLineServer::wrapped(ServerTarget::Program(command), "COMMAND"),
    };
    let line = CommandLineConfig {
        servers: vec![server],
        mode: options.mode,
        grace: options.grace,
        fallback: Some(fallback),
        store: options.store.map_or(CommandLineStore::Memory, CommandLineStore::Folder),
        port: None,
        key_variable: options.key_env,
        headers: options.header,
        ca: options.ca,
    };
    match line.resolve(&|name| env::var(name).ok()) {
        Ok(loaded) => Box::pin(app::wrap(loaded, Some("--store"))).await,
        Err(mistakes) => Ok(super::refuse(mistakes)),
    }
}
