//! Runs a program that prints a credential: without a shell, bounded in time and output.

use std::env;
use std::io;
use std::process::Stdio;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::time::{Duration, timeout};

use super::issued_token::{self, IssuedToken, TokenFailure};
use super::supervisor;
use super::transport::stdio::INHERITED;
use crate::system::ProgramLimits;
use crate::task::{Clock as _, Reason, SystemClock};
use crate::wire::one_line;

/// From the start of the program to its end.
const RUN_MAX: Duration = Duration::from_secs(10);
const OUTPUT_BYTES_MAX: u64 = 64 << 10;
/// The bytes of standard error that are logged.
const STDERR_BYTES_MAX: u64 = 1 << 10;
const LINE_BYTES_MAX: usize = 300;

/// Runs the command and reads the token that it prints. Dropping the future, or a program that takes too long, ends the program.
pub(super) async fn run(upstream: &str, words: &[String]) -> Result<IssuedToken, TokenFailure> {
    let away = |cause: String| TokenFailure::new(Reason::CredentialAway, cause);
    let (program, arguments) = words.split_first().ok_or_else(|| away("the command is empty".to_owned()))?;
    let finished = timeout(RUN_MAX, finish(program, arguments)).await;
    let finished = finished.map_err(|_| away("the command did not end in 10 s".to_owned()))?;
    let Finished { output, noise, failed } = finished.map_err(|error| away(format!("the command fails: {error}")))?;
    for line in String::from_utf8_lossy(&noise).lines().filter(|line| !line.is_empty()) {
        tracing::warn!(%upstream, "the command of a credential says: {}", one_line::shown(line, LINE_BYTES_MAX));
    }
    if let Some(status) = failed {
        return Err(away(format!("the command ended with {status}")));
    }
    if output.len() as u64 > OUTPUT_BYTES_MAX {
        let cause = "the command's output is larger than 64 KiB";
        return Err(TokenFailure::new(Reason::CredentialMalformed, cause));
    }
    issued_token::of_output(&Bytes::from(output), SystemClock.now())
}

struct Finished {
    output: Vec<u8>,
    noise: Vec<u8>,
    /// The exit status of a program that failed.
    failed: Option<std::process::ExitStatus>,
}

async fn finish(program: &str, arguments: &[String]) -> io::Result<Finished> {
    let mut command = Command::from(supervisor::command(&ProgramLimits::default(), program, arguments)?);
    command.env_clear();
    command.envs(INHERITED.iter().filter_map(|name| Some((name, env::var_os(name)?))));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // The program runs while this pipe is open; its supervisor ends it and all its children once the pipe is dropped.
    let open = child.stdin.take();
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(io::Error::other("it has no standard streams"));
    };
    let (output, noise) = tokio::try_join!(bounded(stdout, OUTPUT_BYTES_MAX), bounded(stderr, STDERR_BYTES_MAX))?;
    let status = child.wait().await?;
    drop(open);
    Ok(Finished { output, noise, failed: Some(status).filter(|status| !status.success()) })
}

/// Reads the first bytes, at most one more than `bytes_max`. It reads and drops the rest, so that the program can end.
async fn bounded(mut stream: impl AsyncRead + Unpin, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut held = Vec::new();
    (&mut stream).take(bytes_max + 1).read_to_end(&mut held).await?;
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    Ok(held)
}
