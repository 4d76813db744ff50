//! Prints the events of a server under development, a line each, for `taskgate dev`.
//!
//! Lines hold arguments and results, so no log level turns them on: only [`install`] does. Texts of the server and of
//! clients are cut and lose control characters; a flood is shown in part. Read [`client`] for calls, `program` for the
//! server's messages.

pub mod client;
mod program;

use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::sync::OnceLock;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::console;
use crate::line_budget::LineBudget;
use crate::wire::{Payload, one_line};
use client::ClientTasks;
use program::ProgramCalls;
pub use program::{received, sent};

/// Longest line, without its label.
const LINE_BYTES_MAX: usize = 1024;
/// Longest argument or result in a line.
const VALUE_BYTES_MAX: usize = 200;

static OUTPUT: OnceLock<DevOutput> = OnceLock::new();

#[derive(Debug)]
struct DevOutput {
    began: Instant,
    clients: LineBudget,
    messages: LineBudget,
    calls: Mutex<ProgramCalls>,
    tasks: Mutex<ClientTasks>,
}

named_variants! {
    pub enum DevSource, label {
        Files = "files",
        /// The start, the end and the state of the program.
        Program = "program",
        Stderr = "stderr",
        /// A line of standard output that is no message.
        Stdout = "stdout",
        /// A message of the program.
        Server = "server",
        Client = "client",
    }
}

/// Turns the output on, for the rest of the process.
pub fn install() {
    let _ = OUTPUT.set(DevOutput {
        began: Instant::now(),
        clients: LineBudget::new(),
        messages: LineBudget::new(),
        calls: Mutex::default(),
        tasks: Mutex::default(),
    });
}

pub fn is_on() -> bool {
    OUTPUT.get().is_some()
}

/// Prints a line, unless too many of its source came before.
pub fn show(source: DevSource, text: impl Display) {
    let Some(output) = OUTPUT.get() else { return };
    let left_out = match source {
        DevSource::Client => output.clients.admit(),
        DevSource::Server => output.messages.admit(),
        // Rare, or counted by its reader.
        DevSource::Files | DevSource::Program | DevSource::Stderr | DevSource::Stdout => Some(0),
    };
    if let Some(left_out) = left_out {
        output.print(source, left_out, &text);
    }
}

/// Prints a line of the program's output after `left_out` others that were not printed.
pub fn show_output(source: DevSource, left_out: u64, text: &str) {
    if let Some(output) = OUTPUT.get() {
        output.print(source, left_out, &text);
    }
}

impl DevOutput {
    fn print(&self, source: DevSource, left_out: u64, text: &dyn Display) {
        let mut line = format!("{:>8.1}s {:<8}", self.began.elapsed().as_secs_f64(), source.label());
        if left_out > 0 {
            let _ = write!(line, "({left_out} lines left out) ");
        }
        line.push_str(&one_line::shown(&text.to_string(), LINE_BYTES_MAX));
        line.push('\n');
        // A terminal that is gone ends the command by its signal.
        let _ = console::stdout().write_all(line.as_bytes());
    }
}

fn value(text: &str) -> String {
    one_line::shown(text, VALUE_BYTES_MAX)
}

/// The first text of a tool's result, or its JSON.
fn result_text(result: &Payload) -> String {
    one_line::first_text(result).map_or_else(|| value(result.as_str()), |text| format!("{:?}", value(&text)))
}

fn seconds_since(began: Instant) -> String {
    format!("{:.1} s", began.elapsed().as_secs_f64())
}
