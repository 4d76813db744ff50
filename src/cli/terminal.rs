//! The user's terminal: results on stdout, everything else on stderr.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::call::{Status, Ui};

/// How often the spinner turns.
const TICK: Duration = Duration::from_millis(100);
const SPINNER: &str = "{spinner} {msg}";
const STEPS: &str = "{spinner} [{bar:30}] {pos}/{len} {msg}";

/// Draws a live line on a terminal, and writes a line per change elsewhere.
#[derive(Debug)]
pub(super) struct Terminal {
    /// `None` where stderr is no terminal.
    bar: Option<ProgressBar>,
    last: String,
}

impl Terminal {
    pub(super) fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(style(SPINNER));
            bar.enable_steady_tick(TICK);
            bar
        });
        Self { bar, last: String::new() }
    }

    /// Runs `write` while no bar is in the way.
    fn beside(&self, write: impl FnOnce() -> io::Result<()>) {
        let written = match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        };
        if let Err(error) = written {
            // Most likely a pipe that its reader closed. There is no better place to say it.
            tracing::debug!(%error, "cannot write to the terminal");
        }
    }
}

impl Ui for Terminal {
    fn status(&mut self, status: &Status<'_>) {
        let id = status.task_id.map(|id| format!("task {id} ")).unwrap_or_default();
        let message = status.message.map(|message| format!(": {message}")).unwrap_or_default();
        let line = printable(&format!("{id}{}{message}", status.word));
        match &self.bar {
            Some(bar) => {
                match status.steps {
                    Some(steps) => {
                        bar.set_style(style(STEPS));
                        bar.set_length(steps.total);
                        bar.set_position(steps.done);
                    }
                    None => bar.set_style(style(SPINNER)),
                }
                bar.set_message(line);
            }
            None if line != self.last => {
                self.beside(|| writeln!(io::stderr(), "{line}"));
                self.last = line;
            }
            None => (),
        }
    }

    fn note(&mut self, text: &str) {
        self.beside(|| writeln!(io::stderr(), "{}", printable(text)));
    }

    fn output(&mut self, text: &str) {
        self.beside(|| {
            let mut stdout = io::stdout().lock();
            if stdout.is_terminal() {
                let lines: Vec<_> = text.lines().map(printable).collect();
                writeln!(stdout, "{}", lines.join("\n"))?;
            } else {
                writeln!(stdout, "{text}")?;
            }
            stdout.flush()
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are constants and well-formed").progress_chars("=> ")
}

/// What a server says must not move the cursor or recolour the screen, nor break the line.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_well_formed() {
        style(SPINNER);
        style(STEPS);
    }

    #[test]
    fn what_a_server_says_cannot_control_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\r\nc\u{9b}d"), "a [2Jb  c d");
    }
}
