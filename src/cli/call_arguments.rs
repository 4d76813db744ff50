//! Reads the command line of `taskgate call`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::call::{CallCommand, Flavour, FollowPolicy, QuestionPolicy, ResultForm, Wait};
use super::flavour;
use super::media::MediaFolder;
use super::server_address::ServerArguments;
use super::terminal::Terminal;
use super::tool_arguments::ToolArguments;

pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0   a result, or a handle with --no-wait
  1   a result that says the tool failed
  2   a JSON-RPC error
  3   cancelled
  4   a result, but a question was declined or dismissed
  5   no result yet: --timeout is over, or the task still runs
  64  a mistake in the command line
  69  the server cannot be reached or understood, or has no tasks
  70  the result cannot be written, to standard output or to a file of --out";

#[derive(Debug, clap::Args)]
pub(super) struct CallArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// The tool's name.
    tool: String,
    /// The tool's arguments. Either all in one word: a JSON object, @FILE with one, or - for standard input. Or one by
    /// one: key=text, which is read as the tool's schema says (a number, a list, ...); key=@FILE, the same with the
    /// text of a file; key:=JSON, unchanged.
    #[arg(value_name = "JSON | @FILE | - | KEY=VALUE")]
    arguments: Vec<String>,
    /// The flavour of tasks to call with; by default the best that the server offers.
    #[arg(long, value_enum)]
    flavour: Option<Flavour>,
    /// Print the task's handle as JSON instead of waiting for its result, and on stderr the command that follows it.
    #[arg(long)]
    no_wait: bool,
    /// Send this idempotency key, 1 to 256 visible characters: a call that is repeated with it gets the first call's
    /// result, and does not run again. For servers that are behind taskgate.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    #[command(flatten)]
    following: FollowArguments,
}

/// How a result is waited for and printed.
#[derive(Debug, clap::Args)]
pub(super) struct FollowArguments {
    /// Decline every question instead of asking you.
    #[arg(long)]
    no_input: bool,
    /// The longest time for the whole command, such as 90s or 5m. After it a task continues, and a call without one is
    /// cancelled.
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<Duration>,
    #[command(flatten)]
    result: ResultArguments,
}

/// How a result is printed.
#[derive(Debug, clap::Args)]
pub(super) struct ResultArguments {
    /// Print the whole result as JSON.
    #[arg(long)]
    json: bool,
    /// Write images, sounds and other bytes to files in this folder, and print their paths.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl ResultArguments {
    pub(super) fn read(self, stem: &str) -> Result<ResultForm, String> {
        let out = self.out.map(|path| MediaFolder::open(&path, stem)).transpose()?;
        Ok(ResultForm { is_json: self.json, out })
    }
}

impl FollowArguments {
    pub(super) fn read(self, stem: &str) -> Result<FollowPolicy, String> {
        let input = if self.no_input { QuestionPolicy::Declined } else { QuestionPolicy::Asked };
        let result = self.result.read(stem)?;
        Ok(FollowPolicy { input, timeout: self.timeout, result, ..FollowPolicy::to_the_end() })
    }
}

fn timeout(text: &str) -> Result<Duration, &'static str> {
    let timeout = humantime::parse_duration(text).ok().filter(|timeout| !timeout.is_zero());
    timeout.ok_or("write a duration above zero, such as 90s or 5m; without --timeout there is no limit")
}

pub(super) async fn run(arguments: CallArguments) -> ExitCode {
    let CallArguments { server, tool, arguments, flavour, no_wait, idempotency_key, following } = arguments;
    let read = || {
        let (server, arguments) = (server.read()?, ToolArguments::read(&arguments)?);
        let wait = if no_wait { Wait::ForTheHandle } else { Wait::ToTheEnd };
        let following = FollowPolicy { wait, ..following.read(&tool)? };
        Ok::<_, String>((server, CallCommand { tool, arguments, flavour, idempotency_key, following }))
    };
    match read() {
        Ok((server, call)) => {
            let verdict = flavour::run(&server, &call, &mut Terminal::new(), &mut interrupts()).await;
            ExitCode::from(verdict as u8)
        }
        Err(why) => super::refuse(why),
    }
}

pub(super) fn interrupts() -> mpsc::Receiver<()> {
    // One message cancels and one leaves: further ones add nothing.
    let (sender, interrupts) = mpsc::channel(2);
    let tracker = TaskTracker::new();
    tracker.spawn(async move { while tokio::signal::ctrl_c().await.is_ok() && sender.send(()).await.is_ok() {} });
    interrupts
}
