//! Defines the command line and its exit codes.

mod admin_client;
mod audit;
pub mod call;
mod call_arguments;
mod called_server;
mod check;
mod dialog;
pub mod flavour;
mod follow;
mod import;
mod install;
pub mod media;
mod offers;
mod printable;
pub mod probe;
mod question;
mod replicas;
mod serve;
pub mod server_address;
mod store;
mod task;
pub mod tasks;
mod terminal;
pub mod tool_arguments;
mod tool_schema;
pub mod ui;

use std::env::consts::{ARCH, OS};
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::LazyLock;
use std::{env, fs};

use anyhow::Context as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use http::{Method, StatusCode};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cause::CauseChain;
use crate::config::{check_principal_id, quoted};
use crate::demo::{self, DemoServer};
use crate::server::api_keys::ApiKey;
use crate::{app, config, console, system};
use admin_client::{AdminAnswer, AdminClient, AdminRequestError, TOKEN_VARIABLE, operate};
use audit::AuditCommand;
use call_arguments::{CallArguments, EXIT_CODES};
use check::CheckArguments;
use offers::{OfferArguments, OfferKind};
use printable::printable_lines;
use replicas::ReplicasCommand;
use serve::{DevArguments, ServeArguments, WrapArguments};
use store::StoreCommand;
use task::TaskSubcommand;
use tasks::TasksCommand;

/// The exit code for a mistake in the command line or in a configuration file (`EX_USAGE`).
const USAGE: u8 = 64;
const UNAVAILABLE: u8 = app::EXIT_UNAVAILABLE;
/// The exit code for any other failure (`EX_SOFTWARE`).
const SOFTWARE: u8 = 70;
const CONFIG_VARIABLE: &str = "TASKGATE_CONFIG";
const KEY_VARIABLE: &str = "TASKGATE_KEY";

/// A reverse proxy that turns slow MCP tool calls into tasks.
#[derive(Debug, Parser)]
#[command(name = "taskgate", version = VERSION.as_str())]
struct CommandLine {
    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Runs the gateway, as `taskgate` alone does.
    ///
    /// In front of one server it needs no file: `taskgate serve URL` or `taskgate serve -- COMMAND` serves it at /mcp, and
    /// prints the entry for hosts.
    #[command(
        after_long_help = SERVE_EXIT_CODES,
        after_help = SERVE_EXIT_CODES,
        override_usage = "taskgate serve [FILE]\n       taskgate serve [OPTIONS] URL\n       \
                          taskgate serve [OPTIONS] --upstream NAME=URL...\n       \
                          taskgate serve [OPTIONS] -- COMMAND [ARGUMENT]..."
    )]
    Serve(ServeArguments),
    /// Serves a program under development: restarts it when its files change, and shows its calls and output.
    ///
    /// Serves it as `taskgate serve -- COMMAND` does. Each line shows one event: a call with its arguments, a response, progress, a log
    /// line, a question, standard error, or the program's start or end. A call that runs when a file changes fails. A program that
    /// cannot start is started again at the next change.
    #[command(
        after_long_help = SERVE_EXIT_CODES,
        after_help = SERVE_EXIT_CODES,
        override_usage = "taskgate dev [OPTIONS] -- COMMAND [ARGUMENT]..."
    )]
    Dev(DevArguments),
    /// Reports every mistake in a configuration file; binds nothing.
    ///
    /// With --as and --can it prints the line that decides whether a caller may use a tool, and what it decides.
    ///
    /// Exit codes: 0; 1 if the caller may not use the item of --can; 64 for a mistake in the command line or in the file.
    Check(CheckArguments),
    /// Converts a desktop host's JSON with its servers into a configuration.
    ///
    /// Reads `mcpServers` (Claude, Cursor, Windsurf, Gemini), `servers` (VS Code) and `context_servers` (Zed), also with comments. The
    /// values of `env` and headers go into a file of variables beside the configuration; only their owner can read the two files (mode
    /// 0600). Settings that are not carried over are listed on standard error.
    ///
    /// Exit codes: 0, 64 for a mistake in the command line or in the file.
    Import(import::ImportArguments),
    /// Wraps the servers of a desktop host: it then starts `taskgate wrap` in front of each.
    ///
    /// Without HOST it lists the hosts on this machine with their servers. It shows the difference, asks, and keeps a copy of the
    /// file beside it; comments, order and spaces stay. `taskgate uninstall` restores the original file.
    ///
    /// Exit codes: 0, 64 for a mistake in the command line or in the file, or if the file cannot be changed.
    Install(install::InstallArguments),
    /// Unwraps the servers of a desktop host, or of all hosts.
    ///
    /// If nothing else was changed, the original file is restored byte for byte; otherwise only the servers are changed.
    ///
    /// Exit codes: 0, 64 for a mistake in the command line or in the file, or if the file cannot be changed.
    Uninstall(install::InstallArguments),
    /// Runs a small MCP server without tasks, to try the gateway on.
    DemoServer {
        /// The address to serve HTTP on; port 0 picks one. Without it, stdin and stdout are served.
        #[arg(long, value_name = "ADDR")]
        listen: Option<SocketAddr>,
    },
    /// Calls a tool, follows the task that it may become, and asks you the tool's questions.
    ///
    /// Without --flavour it uses the best flavour that the server offers: the tasks extension of 2026-07-28, the tasks of
    /// 2025-11-25, a plain call. Ctrl-C cancels the call; a second one exits at once. A question is answered line
    /// by line: an empty line takes the default or skips an optional field, Ctrl-D declines.
    ///
    /// The result goes to stdout, everything else to stderr.
    #[command(after_long_help = EXIT_CODES, after_help = EXIT_CODES)]
    Call(CallArguments),
    /// Follows a task by its id, at its server: a client's use of a call's handle.
    ///
    /// The id is in the handle that `taskgate call --no-wait` prints, with the command that follows it. `taskgate tasks`
    /// is for operators: it shows the tasks of all clients of a gateway by their references, at its admin listener.
    #[command(after_long_help = EXIT_CODES, after_help = EXIT_CODES)]
    Task {
        #[command(subcommand)]
        order: TaskSubcommand,
    },
    /// Lists a server's tools and their arguments.
    Tools(OfferArguments),
    /// Lists a server's resources.
    Resources(OfferArguments),
    /// Lists a server's prompts and their arguments.
    Prompts(OfferArguments),
    /// Connects a desktop host to its servers: the host starts this program in place of the server's, and speaks
    /// to it over stdin and stdout. Slow calls become tasks for hosts that know tasks, and are held for all others.
    ///
    /// Ends with its host, and the server with it. Logs go to stderr.
    ///
    /// Exit codes: 0 if the host or a signal ended it, 64 for a mistake in the command line or the file, 69 if a program is not found,
    /// 70 for any other failure, 74 and 75 if the store cannot be used or is open elsewhere.
    #[command(
        override_usage = "taskgate wrap [OPTIONS] -- COMMAND [ARGUMENT]...\n       taskgate wrap [OPTIONS] --url URL\n       taskgate wrap --config FILE"
    )]
    Wrap(WrapArguments),
    /// Reports a server's transport, versions and capabilities, and prints the TOML block that would serve it.
    ///
    /// Tries streamable HTTP and HTTP+SSE at a URL, or starts a program and speaks over its standard streams; asks for each
    /// protocol version, for capabilities and for tools. Calls no tool without --call.
    ///
    /// Exit codes: 0; with --call 1 if the tool failed and 2 for a JSON-RPC error; 64 for a mistake in the command line;
    /// 69 if nothing there speaks MCP, or the call has no answer.
    Probe(probe::ProbeArguments),
    /// Makes API keys for clients.
    Keys {
        #[command(subcommand)]
        order: KeysCommand,
    },
    /// Asks a running gateway whether it is ready: a probe for containers.
    ///
    /// On the gateway's own machine it needs no token, and at the listener of [metrics] none from anywhere; elsewhere
    /// TASKGATE_ADMIN_TOKEN holds the admin listener's.
    ///
    /// Exit codes: 0 if the gateway is ready, 1 if it is not or cannot be asked, 64 for a mistake in the command line.
    Health(HealthArguments),
    /// Prints the status page of a running gateway: readiness with its reasons, the state of each server, and the held calls.
    ///
    /// If the admin listener requires a token, TASKGATE_ADMIN_TOKEN holds it.
    ///
    /// Exit codes: 0, 64 for a mistake in the command line, 69 if the gateway cannot be reached or refuses the token.
    Status {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// The address of the gateway's admin listener.
        #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:9090")]
        admin: url::Url,
    },
    /// Shows the tasks of a running gateway, and cancels them.
    ///
    /// A task is named by the short digest that `list` and the log show, or by its id; ids, arguments and results are never
    /// shown. If the admin listener requires a token, TASKGATE_ADMIN_TOKEN holds it. `taskgate task` is for clients: it
    /// follows a task by its id at the server's address, and gets its result.
    ///
    /// Exit codes: 0, or 1 if there is no such task, it has ended, or the token may only read; 64 for a mistake in the command
    /// line, 69 if the gateway cannot be reached or refuses the token.
    Tasks {
        #[command(subcommand)]
        order: TasksCommand,
        /// The address of the gateway's admin listener.
        #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:9090")]
        admin: url::Url,
    },
    /// Lists the replicas that share a running gateway's store, and removes a dead one from the list.
    ///
    /// If the admin listener requires a token, TASKGATE_ADMIN_TOKEN holds it.
    ///
    /// Exit codes: 0, or 1 if no such replica is there, it is not dead, it still has tasks, or the store is not shared; 64 for a mistake
    /// in the command line, 69 if the gateway cannot be reached or refuses the token.
    Replicas {
        #[command(subcommand)]
        order: ReplicasCommand,
        /// The address of the gateway's admin listener.
        #[arg(long, global = true, value_name = "URL", default_value = "http://127.0.0.1:9090")]
        admin: url::Url,
    },
    /// Checks a store on disk, and copies it while a gateway runs.
    ///
    /// Exit codes: 0, 1 if something in it is damaged, 64 for a mistake in the command line, 74 if it cannot be read or the copy
    /// cannot be written.
    Store {
        #[command(subcommand)]
        order: StoreCommand,
    },
    /// Verifies audit files.
    ///
    /// Exit codes: 0 if the lines are one chain, 1 if they are not or a file cannot be read, 64 for a mistake in the command line.
    Audit {
        #[command(subcommand)]
        order: AuditCommand,
    },
    /// Prints the completions of a shell, for its folder of completions or to be sourced.
    Completions { shell: Shell },
    /// Writes the manual pages of all commands into a folder.
    Man {
        /// The folder, such as /usr/local/share/man/man1.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

const SERVE_EXIT_CODES: &str = "\
Exit codes:
  0   a signal ended it, and it has drained
  64  a mistake in the command line, the configuration or a file that it names
  69  the program of a server that the command line names is not found
  70  something else, such as an address that is in use
  74  the task store or the audit file cannot be used
  75  another gateway has the task store or the audit file open";

/// Runs the command in `arguments` (the program's name first) to its end.
pub async fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let is_command_announced = arguments.last().is_some_and(|last| last == "--");
    let command = match CommandLine::try_parse_from(arguments) {
        Ok(arguments) => arguments.command,
        Err(error) => {
            // Help and version are "errors", too, for stdout; a failure to print cannot be reported.
            let _ = console::print_usage(&error);
            if let Some(hint) = hint(&error) {
                say(hint);
            }
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    // Without the handler only a file at its limit ends the program, as before.
    let _ = system::outlive_file_size_limit();
    let ended = match command.unwrap_or_else(|| CliCommand::Serve(ServeArguments::default())) {
        CliCommand::Serve(arguments) => match arguments.served(is_command_announced) {
            Ok(served) => Box::pin(app::serve(served)).await,
            Err(why) => Ok(refuse(why)),
        },
        CliCommand::Dev(arguments) => match arguments.served() {
            Ok(served) => Box::pin(app::serve(served)).await,
            Err(why) => Ok(refuse(why)),
        },
        CliCommand::Check(arguments) => Ok(check(&arguments)),
        CliCommand::Import(arguments) => Ok(import::run(&arguments)),
        CliCommand::Install(arguments) => Ok(install::install(&arguments)),
        CliCommand::Uninstall(arguments) => Ok(install::uninstall(&arguments)),
        CliCommand::DemoServer { listen: Some(address) } => demo_server(address).await,
        CliCommand::DemoServer { listen: None } => demo::serve_stdio(tokio::io::stdin(), tokio::io::stdout())
            .await
            .context("the demo server cannot continue")
            .map(|()| ExitCode::SUCCESS),
        CliCommand::Call(arguments) => Ok(Box::pin(call_arguments::run(arguments)).await),
        CliCommand::Task { order } => Ok(Box::pin(task::run(order)).await),
        CliCommand::Tools(arguments) => Ok(Box::pin(offers::run(arguments, OfferKind::Tools)).await),
        CliCommand::Resources(arguments) => Ok(Box::pin(offers::run(arguments, OfferKind::Resources)).await),
        CliCommand::Prompts(arguments) => Ok(Box::pin(offers::run(arguments, OfferKind::Prompts)).await),
        CliCommand::Wrap(arguments) => Box::pin(serve::wrap(arguments)).await,
        CliCommand::Probe(arguments) => Box::pin(probe::run_command(arguments)).await,
        CliCommand::Keys { order } => make_key(&order),
        CliCommand::Health(arguments) => Ok(Box::pin(ask_health(&arguments)).await),
        CliCommand::Status { json, admin } => Box::pin(operate(&admin, async |at| at.status(json).await)).await,
        CliCommand::Tasks { order, admin } => Box::pin(operate(&admin, async |at| tasks::run(&at, &order).await)).await,
        CliCommand::Replicas { order, admin } => {
            Box::pin(operate(&admin, async |at| replicas::run(&at, &order).await)).await
        }
        CliCommand::Store { order } => Ok(store::run(&order)),
        CliCommand::Audit { order } => Ok(audit::run(&order)),
        CliCommand::Completions { shell } => print_completions(shell),
        CliCommand::Man { folder } => write_manual(&folder),
    };
    ended.unwrap_or_else(|error| failed(format_args!("{error:#}"), ExitCode::from(SOFTWARE)))
}

const PROBED_COMMAND: &str = "an address begins with http:// or https://, and a server's command stands after `--`: \
    taskgate probe -- COMMAND [ARGUMENT]...";

fn hint(error: &clap::Error) -> Option<&'static str> {
    let said = |kind| if let Some(ContextValue::String(text)) = error.get(kind) { text.clone() } else { String::new() };
    let (usage, argument) = (said(ContextKind::Usage), said(ContextKind::InvalidArg));
    let usage = usage + &error.to_string();
    let of_commands = [
        ("taskgate wrap", "-", "the server's command stands after `--`: taskgate wrap -- COMMAND [ARGUMENT]..."),
        ("taskgate dev", "-", "the server's command stands after `--`: taskgate dev -- COMMAND [ARGUMENT]..."),
        ("taskgate probe", "--", PROBED_COMMAND),
        ("taskgate serve", "--", serve::NO_COMMAND),
    ];
    let fits = |(command, option, _): &(&str, &str, &str)| usage.contains(command) && !argument.starts_with(option);
    if error.kind() == ErrorKind::UnknownArgument
        && let Some((.., hint)) = of_commands.into_iter().find(fits)
    {
        return Some(hint);
    }
    let of_address =
        if usage.contains("'[URL]'") { PROBED_COMMAND } else { "an address begins with http:// or https://" };
    usage.contains("relative URL without a base").then_some(of_address)
}

/// Prints mistakes with the text that `serve` prints. Reads the files of a valid configuration, too; creates none.
fn check(arguments: &CheckArguments) -> ExitCode {
    match app::files::load(&arguments.file) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                write_line(format_args!("warning: {warning}"));
            }
            // A question about a running gateway's file is no start.
            if !arguments.asks_about_a_caller() {
                for why in app::task_store::hindrances(&loaded.config) {
                    write_line(format_args!("warning: {why}"));
                }
            }
            let (text, code) = match arguments.answer(&loaded.config) {
                Ok(answer) => answer.unwrap_or_else(|| (in_short(&loaded.config), ExitCode::SUCCESS)),
                Err(why) => return refuse(why),
            };
            let _ = writeln!(console::stdout(), "{text}");
            code
        }
        Err(mistakes) => refuse_file(&mistakes),
    }
}

fn refuse_file(mistakes: &config::ConfigError) -> ExitCode {
    write_line(mistakes);
    ExitCode::from(USAGE)
}

fn in_short(config: &config::Config) -> String {
    let count = |number: usize, word: &str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
    let paths: Vec<_> = config.upstreams.iter().map(|upstream| upstream.path.as_str()).collect();
    let endpoints = match config.endpoints.as_slice() {
        [] => String::new(),
        endpoints => {
            let paths: Vec<_> = endpoints.iter().map(|endpoint| endpoint.path.as_ref()).collect();
            format!(", {} at {}", count(paths.len(), "endpoint"), paths.join(" "))
        }
    };
    let tool_rules = config.upstreams.iter().map(|upstream| upstream.service.rules.patterns.len()).sum();
    let caller_rules = match config.access.rules().rules.len() {
        0 => String::new(),
        rules => format!(", {} for callers", count(rules, "rule")),
    };
    let scheme = if config.listen.tls.is_some() { "https" } else { "http" };
    let public = config.listen.public_url.as_ref().map(|url| format!(" as {url}")).unwrap_or_default();
    let metrics = config.metrics.map(|address| format!(", for metrics on http://{address}")).unwrap_or_default();
    format!(
        "{} at {}{endpoints}, {} for tools{caller_rules}; would listen on {scheme}://{}{public}{metrics}, and for operators on http://{}",
        count(config.upstreams.len(), "upstream"),
        paths.join(" "),
        count(tool_rules, "rule"),
        config.listen.address,
        config.admin.address,
    )
}

async fn demo_server(address: SocketAddr) -> anyhow::Result<ExitCode> {
    let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
    let mut interrupt = system::interrupts().context("cannot listen for signals")?;
    let mut terminate = system::terminations().context("cannot listen for signals")?;
    let server = DemoServer::start(address, &tracker, cancel.clone())
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    writeln!(console::stdout(), "{}", server.url()).context("cannot print the address")?;
    tokio::select! {
        _ = interrupt.recv() => (),
        _ = terminate.recv() => (),
    }
    cancel.cancel();
    tracker.close();
    tracker.wait().await;
    Ok(ExitCode::SUCCESS)
}

fn refuse(why: impl Display) -> ExitCode {
    failed(why, ExitCode::from(USAGE))
}

fn failed(why: impl Display, code: ExitCode) -> ExitCode {
    say(why);
    code
}

fn say(text: impl Display) {
    write_line(format_args!("taskgate: {text}"));
}

fn write_line(text: impl Display) {
    let _ = writeln!(console::stderr(), "{}", printable_lines(&text.to_string()));
}

/// The version, the commit if the build was given one (`TASKGATE_COMMIT`), and the system that the program was built for.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = option_env!("TASKGATE_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map_or_else(|| "from source".to_owned(), |commit| format!("commit {commit}"));
    let environment = match () {
        () if cfg!(target_env = "gnu") => "-gnu",
        () if cfg!(target_env = "musl") => "-musl",
        () => "",
    };
    format!("{} ({commit}, {ARCH}-{OS}{environment})", env!("CARGO_PKG_VERSION"))
});

/// The operations on keys.
#[derive(Debug, clap::Subcommand)]
enum KeysCommand {
    /// Makes a key, and prints it once, on stderr; the block for the configuration goes to stdout.
    New {
        /// The principal of the key, which owns tasks and has limits.
        id: String,
    },
}

fn make_key(order: &KeysCommand) -> anyhow::Result<ExitCode> {
    let KeysCommand::New { id } = order;
    if let Err(why) = check_principal_id(id) {
        return Ok(refuse(format_args!("ID {why}")));
    }
    let (secret, key) = ApiKey::mint(id);
    // A key must be shown before its digest is put into a configuration.
    write!(
        console::stderr(),
        "The key of {id}, shown this once; clients send it as `Authorization: Bearer KEY`:\n{secret}\n"
    )
    .context("cannot print the key")?;
    // A file that it is appended to may lack the last line break.
    let block = format!("\n[[auth.api_keys]]\nid = {}\nkey_sha256 = {}\n", quoted(id), quoted(&key.known_as()));
    console::stdout().write_all(block.as_bytes()).context("cannot print the block")?;
    Ok(ExitCode::SUCCESS)
}

/// The gateway to ask.
#[derive(Debug, clap::Args)]
struct HealthArguments {
    /// The address of the gateway's admin listener, or of its [metrics] listener.
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:9090")]
    url: url::Url,
}

async fn ask_health(arguments: &HealthArguments) -> ExitCode {
    let token = env::var(TOKEN_VARIABLE).ok();
    let answer = match AdminClient::new(&arguments.url, token.as_deref()) {
        Ok(admin) => admin.ask(Method::GET, &["readyz"], &[]).await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(AdminAnswer { status: StatusCode::OK, body }) if body.starts_with(b"ready") => ExitCode::SUCCESS,
        // The clients' listener, or another program, answered.
        Ok(AdminAnswer { status: StatusCode::OK | StatusCode::NOT_FOUND, .. }) => {
            failed(AdminRequestError::Unintelligible, ExitCode::FAILURE)
        }
        Ok(AdminAnswer { status, body }) => {
            let reasons = String::from_utf8_lossy(&body).trim().replace('\n', ", ");
            let why = if reasons.is_empty() { status.to_string() } else { reasons };
            failed(format_args!("not ready: {why}"), ExitCode::FAILURE)
        }
        Err(error @ (AdminRequestError::Address | AdminRequestError::Token)) => refuse(error),
        Err(error) => failed(CauseChain(&error), ExitCode::FAILURE),
    }
}

fn print_completions(shell: Shell) -> anyhow::Result<ExitCode> {
    match console::stdout().write_all(&script(shell)) {
        // A reader such as `head` leaves once it has enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot print the completions"),
        Ok(()) | Err(_) => Ok(ExitCode::SUCCESS),
    }
}

fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "taskgate", &mut script);
    script
}

/// Writes a manual page for each command into `folder`, which is created if it is missing.
fn write_manual(folder: &Path) -> anyhow::Result<ExitCode> {
    let cannot = || format!("{}: cannot write the manual pages", folder.display());
    fs::create_dir_all(folder).with_context(cannot)?;
    clap_mangen::generate_to(CommandLine::command().disable_help_subcommand(true), folder).with_context(cannot)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn commands_that_are_not_built_are_not_offered() {
        let offered: Vec<_> =
            CommandLine::command().get_subcommands().map(|command| command.get_name().to_owned()).collect();
        assert_eq!(
            offered,
            [
                "serve",
                "dev",
                "check",
                "import",
                "install",
                "uninstall",
                "demo-server",
                "call",
                "task",
                "tools",
                "resources",
                "prompts",
                "wrap",
                "probe",
                "keys",
                "health",
                "status",
                "tasks",
                "replicas",
                "store",
                "audit",
                "completions",
                "man",
            ]
        );
    }

    const MISTAKEN: &[&str] = &[
        "taskgate wrap",
        "taskgate wrap --grace 31s -- true",
        "taskgate wrap --grace soon -- true",
        "taskgate wrap --url ftp://127.0.0.1/mcp",
        "taskgate wrap --url http://ada:secret@127.0.0.1/mcp",
        "taskgate wrap --url http://127.0.0.1:1/mcp -- true",
        "taskgate wrap --config /nowhere.toml",
        "taskgate wrap --config a.toml -- true",
        "taskgate wrap --config a.toml --url http://127.0.0.1:1/mcp",
        "taskgate wrap --config a.toml --store tasks",
        "taskgate check",
        "taskgate import",
        "taskgate import /nowhere.json",
        "taskgate import /",
        "taskgate import a.json b.json",
        "taskgate install nowhere",
        "taskgate install --file /nowhere.json",
        "taskgate install cursor --file /nowhere.json",
        "taskgate uninstall nowhere",
        "taskgate uninstall cursor --file /nowhere.json",
        "taskgate serve a.toml --config b.toml",
        "taskgate serve a.toml http://127.0.0.1:1/mcp",
        "taskgate serve npx -y server",
        "taskgate wrap npx -y server",
        "taskgate demo-server --listen nowhere",
        "taskgate call http://127.0.0.1:1/mcp greet --flavour other",
        "taskgate call http://127.0.0.1:1/mcp greet --ca /nowhere.pem",
        "taskgate call ftp://127.0.0.1/mcp greet",
        "taskgate call http://127.0.0.1:1/mcp greet --key a\u{7f}b",
        "taskgate call http://127.0.0.1:1/mcp greet []",
        "taskgate probe",
        "taskgate probe ftp://127.0.0.1/mcp",
        "taskgate probe http://ada@127.0.0.1/mcp",
        "taskgate probe http://127.0.0.1:1/mcp -- npx",
        "taskgate probe http://127.0.0.1:1/mcp --call greet",
        "taskgate probe http://127.0.0.1:1/mcp --call greet []",
        "taskgate probe http://127.0.0.1:1/mcp --timeout soon",
        "taskgate probe http://127.0.0.1:1/mcp --env PATH",
        "taskgate probe --env TASKGATE_NO_SUCH_VARIABLE -- true",
        "taskgate probe --env PATH=/bin -- true",
        "taskgate probe --env -- true",
        "taskgate tasks",
        "taskgate tasks show",
        "taskgate tasks list --admin https://127.0.0.1:1",
        "taskgate health 127.0.0.1:9090",
        "taskgate health https://127.0.0.1:1",
        "taskgate health ftp://127.0.0.1:1",
        "taskgate call http://127.0.0.1:1/mcp greet {\"a\":1,\"a\":2}",
        "taskgate call http://127.0.0.1:1/mcp greet a=1 a=2",
        "taskgate call http://127.0.0.1:1/mcp greet a=1 {}",
        "taskgate call http://127.0.0.1:1/mcp greet @/nowhere.json",
        "taskgate call http://127.0.0.1:1/mcp greet a=@/nowhere.txt",
        "taskgate call http://127.0.0.1:1/mcp greet a:=nonsense",
        "taskgate call http://127.0.0.1:1/mcp greet --timeout 0s",
        "taskgate call http://127.0.0.1:1/mcp greet --timeout 5",
        "taskgate call http://127.0.0.1:1/mcp greet --out /dev/null",
        "taskgate call http://127.0.0.1:1/mcp greet --out /proc/nowhere",
        "taskgate call 127.0.0.1:1/mcp greet",
        "taskgate task",
        "taskgate task get http://127.0.0.1:1/mcp",
        "taskgate task get ftp://127.0.0.1/mcp id",
        "taskgate task get http://127.0.0.1:1/mcp id --flavour none",
        "taskgate task wait http://127.0.0.1:1/mcp a\u{7}b",
        "taskgate task wait http://127.0.0.1:1/mcp {\"taskId\":\"a\"}",
        "taskgate task wait http://127.0.0.1:1/mcp id --timeout 0s",
        "taskgate task result http://127.0.0.1:1/mcp id --out /dev/null",
        "taskgate task cancel http://127.0.0.1:1/mcp id --key a\u{7f}b",
        "taskgate task list http://127.0.0.1:1/mcp --flavour extension",
        "taskgate task list http://127.0.0.1:1/mcp --flavour none",
        "taskgate task list http://127.0.0.1:1/mcp --limit none",
        "taskgate tools",
        "taskgate tools ftp://127.0.0.1/mcp",
        "taskgate resources http://127.0.0.1:1/mcp --ca /nowhere.pem",
        "taskgate prompts http://127.0.0.1:1/mcp --key a\u{7f}b",
        "taskgate audit",
        "taskgate audit verify",
        "taskgate audit verify --anchor a",
        "taskgate completions",
        "taskgate completions csh",
        "taskgate man",
    ];

    #[tokio::test]
    async fn mistakes_on_the_command_line_end_with_64() {
        for arguments in MISTAKEN {
            let code = run(arguments.split(' ').map(OsString::from)).await;
            assert_eq!(code, ExitCode::from(USAGE), "{arguments}");
        }
    }

    #[test]
    fn each_command_has_a_manual_page_and_is_completed() {
        let folder = tempfile::tempdir().unwrap();
        write_manual(&folder.path().join("man1")).unwrap();
        let bash = String::from_utf8(script(Shell::Bash)).unwrap();
        for command in CommandLine::command().get_subcommands() {
            let name = command.get_name();
            let page = fs::read_to_string(folder.path().join(format!("man1/taskgate-{name}.1"))).unwrap();
            assert!(page.contains(".SH SYNOPSIS"), "{page}");
            assert!(bash.contains(name), "{name}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let error = write_manual(Path::new("/proc/nowhere")).unwrap_err();
        assert!(format!("{error:#}").starts_with("/proc/nowhere: cannot write the manual pages: "), "{error:#}");
    }
}
