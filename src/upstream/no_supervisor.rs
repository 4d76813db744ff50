//! Refuses servers that are programs, on systems without a supervisor.

use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::system::ProgramLimits;

pub(crate) const STOP_MAX: Duration = Duration::ZERO;
const REFUSED: &str = "a server that is a program needs Linux or macOS; on this system name a server by its URL";

pub(crate) fn command(_: &ProgramLimits, _: &str, _: &[String]) -> io::Result<Command> {
    Err(io::Error::new(io::ErrorKind::Unsupported, REFUSED))
}

pub fn run(_: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    None
}
