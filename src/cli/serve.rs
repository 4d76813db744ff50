//! Reads the command lines of `taskgate serve`, `dev` and `wrap`: a configuration file, or servers and options.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::CONFIG_VARIABLE;
use crate::app::{self, DevSettings, ServedConfig};
use crate::config::{CommandLineConfig, CommandLineServer, CommandLineStore, GRACE_MAX, ServerTarget};
use crate::task::{FallbackPolicy, TaskMode};

pub(super) const NO_COMMAND: &str = "a server's command stands after `--`: taskgate serve -- COMMAND [ARGUMENT]...";

#[derive(Debug, Default, clap::Args)]
pub(super) struct ServeArguments {
    /// A configuration, or the address of one server: a text that begins with http:// or https:// is an address. Without
    /// either, the built-in quick start is served.
    #[arg(value_name = "FILE|URL")]
    source: Option<OsString>,
    /// A configuration, as FILE. Without any source the environment variable TASKGATE_CONFIG names it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A server with a name, served at /NAME/mcp; may be repeated.
    #[arg(long, value_name = "NAME=URL")]
    upstream: Vec<String>,
    #[command(flatten)]
    options: ServerOptions,
    /// Serve clients at this port of 127.0.0.1; 0 picks a free one. The default is 8080, or a free port.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// A server that is a program, and its arguments. It gets this program's environment.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl ServeArguments {
    /// `is_command_announced`: the command line ends with `--`, as a script writes it if its variable is empty.
    pub(super) fn served(self, is_command_announced: bool) -> Result<ServedConfig, String> {
        if is_command_announced && self.command.is_empty() {
            return Err(NO_COMMAND.to_owned());
        }
        self.check_one_source()?;
        let address = self.source.as_deref().and_then(OsStr::to_str).filter(|text| is_address(text));
        let mut servers = Vec::new();
        for named in &self.upstream {
            servers.push(CommandLineServer::named(named).map_err(|why| format!("--upstream: {why}"))?);
        }
        if let Some(address) = address {
            let address = ServerTarget::url(address).map_err(|why| format!("URL: {why}"))?;
            servers.push(CommandLineServer::only(address, "URL"));
        } else if !self.command.is_empty() {
            servers.push(CommandLineServer::only(ServerTarget::Program(self.command.clone()), "COMMAND"));
        } else if let Some(file) = self.source.as_ref().map(PathBuf::from).or_else(|| self.config.clone()) {
            return self.of_file(file, "a file");
        } else if servers.is_empty()
            && let Some(file) = env::var_os(CONFIG_VARIABLE)
        {
            let file = PathBuf::from(file);
            if !file.exists() {
                return Err(format!(
                    "{}: there is no such file, but {CONFIG_VARIABLE} names it; write or mount a configuration there, with at least one [upstreams.NAME]",
                    file.display()
                ));
            }
            return self.of_file(file, &format!("the file that {CONFIG_VARIABLE} names"));
        } else if servers.is_empty()
            && let Some(option) = self.options.of_an_address()
        {
            return Err(format!("{option} is for a server that is named by its URL; the quick start has none"));
        }
        Ok(ServedConfig::CommandLine(CommandLineConfig {
            servers,
            mode: self.options.mode,
            grace: self.options.grace,
            fallback: None,
            store: self.options.store.map_or_else(CommandLineStore::default, CommandLineStore::Folder),
            port: self.port,
            key_variable: self.options.key_env,
            headers: self.options.header,
            ca: self.options.ca,
        }))
    }

    fn check_one_source(&self) -> Result<(), String> {
        let sources = [
            (self.source.is_some(), "FILE or URL"),
            (self.config.is_some(), "--config"),
            (!self.upstream.is_empty(), "--upstream"),
            (!self.command.is_empty(), "COMMAND"),
        ];
        let written: Vec<_> = sources.iter().filter_map(|(is_written, name)| is_written.then_some(*name)).collect();
        match written.as_slice() {
            [one, other, ..] => Err(format!(
                "{one} and {other} exclude each other; write one of them, or --upstream for each of several servers"
            )),
            [] | [_] => Ok(()),
        }
    }

    fn of_file(&self, file: PathBuf, which: &str) -> Result<ServedConfig, String> {
        let options = &self.options;
        let placed = [
            (options.mode.is_some(), "--mode", "`mode` in [upstreams.NAME.tasks]"),
            (options.grace.is_some(), "--grace", "`grace` in [upstreams.NAME.tasks]"),
            (options.store.is_some(), "--store", "`path` in [store]"),
            (options.key_env.is_some(), "--key-env", "`authorization` in [upstreams.NAME.auth]"),
            (!options.header.is_empty(), "--header", "[upstreams.NAME.auth] for one header"),
            (options.ca.is_some(), "--ca", "`ca` in [upstreams.NAME.tls]"),
            (self.port.is_some(), "--port", "`address` in [listen]"),
        ];
        if let Some((_, option, key)) = placed.into_iter().find(|(is_written, ..)| *is_written) {
            return Err(format!("{option} is for servers that the command line names; {which} has {key}"));
        }
        let text = file.to_string_lossy();
        if (text.contains(':') || file.extension().is_none()) && matches!(file.try_exists(), Ok(false)) {
            return Err(format!(
                "{text}: there is no such file; an address begins with http:// or https://, and a command stands after `--`"
            ));
        }
        Ok(ServedConfig::File(file))
    }
}

fn is_address(text: &str) -> bool {
    let has = |scheme: &str| text.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme));
    has("http://") || has("https://")
}

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
    /// Send the server this header with every request; may be repeated. Other users of this machine can see it: give a secret
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

pub(super) fn mode(text: &str) -> Result<TaskMode, &'static str> {
    match text {
        "never" => Ok(TaskMode::Never),
        "auto" => Ok(TaskMode::Auto),
        "always" => Ok(TaskMode::Always),
        "required" => Ok(TaskMode::Required),
        _ => Err("write never, auto, always or required"),
    }
}

pub(super) fn grace(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(grace) if grace <= GRACE_MAX => Ok(grace),
        Ok(_) => Err("a call is held back for 30s at most".to_owned()),
        Err(_) => Err("write a duration such as 2s or 500ms".to_owned()),
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct DevArguments {
    /// Restart the program when this file, or a file in this folder, changes; may be repeated. The default is the folder
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

#[derive(Debug, clap::Args)]
pub(super) struct WrapArguments {
    #[command(flatten)]
    options: ServerOptions,
    /// For clients without tasks: "hold" holds their calls open, "tools" answers a call that outlives --grace with
    /// a text that names its task, and offers tools that continue with the task.
    #[arg(long, value_name = "hold|tools", default_value = "hold", value_parser = fallback)]
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

pub(super) async fn wrap(arguments: WrapArguments) -> anyhow::Result<ExitCode> {
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
