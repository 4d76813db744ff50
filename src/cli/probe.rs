//! Probes a server (`taskgate probe`), and writes a TOML block to serve it. Uses the gateway's own upstream code, so
//! that the findings hold for the gateway.

mod discovery;
mod report;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};

use super::server_address::{bearer, mcp_address};
use super::{UNAVAILABLE, failed, refuse, say};
use crate::config::{ServerTarget, is_variable_name, server_headers};
use crate::wire::{Object, Payload, ScanLimits};
use crate::{console, telemetry};
pub use discovery::run;
pub use report::{ProbeExit, ProbeReport, ProbedCall, ProbedTransport, ProbedVersion};

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

/// The time after which a line says that the program has not answered yet.
const SLOW_START: Duration = Duration::from_secs(10);

/// The options of `taskgate probe`.
#[derive(Debug, clap::Args)]
pub struct ProbeArguments {
    /// The server's address, http or https.
    #[arg(required_unless_present = "command", conflicts_with = "command")]
    url: Option<url::Url>,
    /// A program and its arguments, after `--`.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Call this tool with these arguments, a JSON object, and print how long it took.
    #[arg(long, num_args = 2, value_names = ["NAME", "JSON"])]
    call: Vec<String>,
    /// The time limit of the whole probe, with the call, such as 90s or 5m.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = timeout)]
    timeout: Duration,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Trust these authorities (PEM) instead of the system's.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Pass this environment variable to the program, besides PATH, HOME and LANG; may be repeated.
    #[arg(long, value_name = "NAME", conflicts_with = "url")]
    env: Vec<String>,
    /// The bearer token to send; give it in the environment, where other users do not see it.
    #[arg(long, value_name = "KEY", env = super::KEY_VARIABLE, hide_env_values = true)]
    key: Option<String>,
    /// Send the server the bearer token in this environment variable.
    #[arg(long, value_name = "VAR", conflicts_with = "command")]
    key_env: Option<String>,
    /// Send the server this header with every request; may be repeated.
    #[arg(long, value_name = "NAME: VALUE", conflicts_with = "command")]
    header: Vec<String>,
}

impl ProbeArguments {
    fn read(self) -> Result<ProbeCommand, String> {
        let Self { url, command, call, timeout, json: _, ca, env, key, key_env, header } = self;
        let target = url.map_or(Ok(ServerTarget::Program(command)), |url| mcp_address(url).map(ServerTarget::Url))?;
        let call = match <[String; 2]>::try_from(call) {
            Ok([tool, arguments]) => {
                let arguments = Payload::parse(&Bytes::from(arguments), ScanLimits::CLIENT);
                let arguments = arguments.map_err(|error| format!("the tool's arguments are {error}"))?;
                Object::of(&arguments).ok_or("the tool's arguments must be a JSON object")?;
                Some((tool, arguments))
            }
            Err(_) => None,
        };
        let key = key_env.as_deref().map(token_in).transpose()?.or(key);
        let headers = server_headers(&header, key.is_some()).map_err(|why| format!("--header: {why}"))?;
        let authorization = bearer(key)?;
        check_variables(&env)?;
        Ok(ProbeCommand { target, call, env, timeout, ca, authorization, headers })
    }
}

pub(in crate::cli) async fn run_command(arguments: ProbeArguments) -> anyhow::Result<ExitCode> {
    let json = arguments.json;
    let probe = match arguments.read() {
        Ok(probe) => probe,
        Err(why) => return Ok(refuse(why)),
    };
    let is_logged = std::env::var_os(telemetry::LOG_FILTER).is_some();
    let log = is_logged.then(|| telemetry::install_logs(telemetry::INFORMATION));
    let _log = log.transpose().context("cannot log")?;
    match probed(&probe).await {
        Ok(report) => {
            let text = if json { format!("{:#}\n", report.json()) } else { report.text() };
            console::stdout().write_all(text.as_bytes()).context("cannot print the report")?;
            Ok(ExitCode::from(report.verdict() as u8))
        }
        Err(why) => Ok(failed(why, ExitCode::from(UNAVAILABLE))),
    }
}

async fn probed(probe: &ProbeCommand) -> Result<ProbeReport, String> {
    let probing = run(probe);
    tokio::pin!(probing);
    if matches!(probe.target, ServerTarget::Program(_)) {
        tokio::select! {
            found = &mut probing => return found,
            () = tokio::time::sleep(SLOW_START) => say(format_args!(
                "no answer yet after {} s; the program has {} s in all (--timeout)",
                SLOW_START.as_secs(),
                probe.timeout.as_secs(),
            )),
        }
    }
    probing.await
}

fn timeout(text: &str) -> Result<Duration, &'static str> {
    let timeout = humantime::parse_duration(text)
        .ok()
        .filter(|timeout| tokio::time::Instant::now().checked_add(*timeout).is_some());
    timeout.ok_or("write a duration, such as 90s or 5m")
}

/// The token in an environment variable. Errors omit the name: a user may have typed the token in its place.
fn token_in(variable: &str) -> Result<String, &'static str> {
    let token = is_variable_name(variable).then(|| std::env::var(variable).ok()).flatten();
    match token.as_deref().map(str::trim) {
        None => Err("--key-env: the environment has no such variable; write the name of the one that holds the token"),
        Some("") => Err("--key-env: the variable is empty; it holds the server's bearer token"),
        Some(token) => Ok(token.to_owned()),
    }
}

/// Checks that each name is an environment variable. Errors omit the text: NAME=VALUE may contain a secret.
fn check_variables(names: &[String]) -> Result<(), String> {
    for name in names {
        if !is_variable_name(name) {
            return Err("--env: write the name of a variable alone; its value is taken from the environment".to_owned());
        }
        if std::env::var(name).is_err() {
            return Err(format!("--env {name}: the environment has no such variable, or it holds no text"));
        }
    }
    Ok(())
}
