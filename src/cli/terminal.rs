//! Reads from and writes to the terminal: results on stdout, everything else on stderr.

use std::io::{self, BufRead, IsTerminal as _, Read as _, Write as _};
use std::time::Duration;

use async_trait::async_trait;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::mpsc;

use super::printable::printable;
use super::ui::{CallStatus, Ui};
use crate::console;

const TICK: Duration = Duration::from_millis(100);
/// A longer answer is no yes.
const ANSWER_BYTES_MAX: u64 = 64;
/// Neither is wider than the terminal: a wrapped line would be drawn again and again.
const SPINNER: &str = "{spinner} {elapsed} {wide_msg}";
const STEPS: &str = "{spinner} {elapsed} [{bar:20}] {pos}/{len} {wide_msg}";

/// Draws a live line on a terminal, and writes a line per change elsewhere.
#[derive(Debug)]
pub(super) struct Terminal {
    is_terminal: bool,
    /// `None` if stderr is no terminal, and while the user is asked.
    bar: Option<ProgressBar>,
    last: String,
    lost_output: Option<io::Error>,
    /// Opened at the first question: unrequested input stays in stdin.
    lines: Option<StdinLines>,
}

impl Terminal {
    pub(super) fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), bar: None, last: String::new(), lost_output: None, lines: None }
    }

    fn suspended(&self, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn beside(&self, write: impl FnOnce() -> io::Result<()>) {
        if let Err(error) = self.suspended(write) {
            // Most likely a closed pipe, with nowhere else to report it.
            tracing::debug!(%error, "cannot write to the terminal");
        }
    }
}

#[async_trait]
impl Ui for Terminal {
    fn status(&mut self, status: &CallStatus<'_>) {
        let id = status.task_id.map(|id| format!("task {id} ")).unwrap_or_default();
        let message = status.message.map(|message| format!(": {message}")).unwrap_or_default();
        let line = printable(&format!("{id}{}{message}", status.text)).into_owned();
        if self.is_terminal {
            let bar = self.bar.get_or_insert_with(|| bar(ProgressDrawTarget::stderr()));
            match status.steps {
                Some(steps) => {
                    bar.set_style(style(STEPS));
                    bar.set_length(steps.total);
                    bar.set_position(steps.done);
                }
                None => bar.set_style(style(SPINNER)),
            }
            bar.set_message(line);
        } else if line != self.last {
            self.beside(|| writeln!(io::stderr(), "{line}"));
            self.last = line;
        }
    }

    fn note(&mut self, text: &str) {
        self.beside(|| writeln!(io::stderr(), "{}", printable(text)));
    }

    fn output(&mut self, text: &str) {
        let written = self.suspended(|| {
            let mut stdout = io::stdout().lock();
            if stdout.is_terminal() {
                let lines: Vec<_> = text.lines().map(printable).collect();
                writeln!(stdout, "{}", lines.join("\n"))?;
            } else {
                writeln!(stdout, "{text}")?;
            }
            stdout.flush()
        });
        if let Err(error) = written
            // A reader such as `head` leaves once it has enough.
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            self.lost_output.get_or_insert(error);
        }
    }

    fn lost_output(&mut self) -> Option<io::Error> {
        self.lost_output.take()
    }

    fn is_for_people(&self) -> bool {
        io::stdout().is_terminal()
    }

    async fn line(&mut self, prompt: &str) -> Option<String> {
        // A spinner would draw over the typed line. The next status restores it.
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.beside(|| {
            let mut stderr = io::stderr().lock();
            write!(stderr, "{}", printable(prompt))?;
            stderr.flush()
        });
        let line = self.lines.get_or_insert_with(StdinLines::of_stdin).0.recv().await;
        // A terminal echoes the input; elsewhere the transcript would lack the answers.
        if !io::stdin().is_terminal() || line.is_none() {
            self.beside(|| writeln!(io::stderr(), "{}", printable(line.as_deref().unwrap_or_default())));
        }
        line
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(target: ProgressDrawTarget) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, target);
    bar.set_style(style(SPINNER));
    bar.enable_steady_tick(TICK);
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are constants and well-formed").progress_chars("=> ")
}

/// The longest line; a longer one is split.
const LINE_BYTES_MAX: u64 = 64 << 10;
const LINES_MAX: usize = 16;

#[derive(Debug)]
struct StdinLines(mpsc::Receiver<String>);

impl StdinLines {
    /// Reads on a separate thread, which the program does not join at its end: a terminal may never return a line.
    fn of_stdin() -> Self {
        let (sender, lines) = mpsc::channel(LINES_MAX);
        std::thread::spawn(move || read_lines(io::stdin().lock(), &sender));
        Self(lines)
    }
}

fn read_lines(mut input: impl BufRead, lines: &mpsc::Sender<String>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut input).take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                if lines.blocking_send(text.trim_end_matches(['\n', '\r']).to_owned()).is_err() {
                    return;
                }
            }
        }
    }
}

/// Asks a question on standard error, and reads one line. Fails if standard input is no terminal.
pub(super) fn confirmed(question: &str) -> Result<bool, String> {
    if !io::stdin().is_terminal() {
        return Err("standard input is not a terminal, so nothing can be confirmed; add --yes".to_owned());
    }
    let mut stderr = console::stderr();
    let _ = write!(stderr, "{question}").and_then(|()| stderr.flush());
    let mut answer = String::new();
    io::stdin()
        .lock()
        .take(ANSWER_BYTES_MAX)
        .read_line(&mut answer)
        .map_err(|error| format!("the answer cannot be read: {error}"))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use indicatif::TermLike;
    use parking_lot::Mutex;

    use super::*;
    use crate::cli::ui::StepCount;

    /// A terminal of 80 columns, and each line that was drawn on it.
    #[derive(Clone, Debug, Default)]
    struct Screen(Arc<Mutex<Vec<String>>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)?;
            self.flush()
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            let mut lines = self.0.lock();
            match lines.last_mut() {
                Some(line) => line.push_str(text.trim_start_matches('\r')),
                None => lines.push(text.to_owned()),
            }
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.flush()
        }

        fn flush(&self) -> io::Result<()> {
            self.0.lock().push(String::new());
            Ok(())
        }
    }

    /// A line that wraps is drawn again and again, each time one line further down.
    #[test]
    fn no_line_of_a_running_call_is_wider_than_80_columns() {
        let screen = Screen::default();
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        let mut terminal = Terminal::new();
        (terminal.is_terminal, terminal.bar) = (true, Some(bar(target)));
        let (id, long) = ("0123456789abcdef".repeat(2), "Counts rows. ".repeat(20));
        for task_id in [None, Some(id.as_str())] {
            for message in [None, Some("half"), Some(long.as_str())] {
                for steps in [None, Some(StepCount { done: 123_456, total: 999_999 })] {
                    terminal.status(&CallStatus { task_id, text: "working", message, steps });
                }
            }
        }
        drop(terminal);
        let lines = screen.0.lock();
        let is_drawn = |text: &str| lines.iter().any(|line| line.contains(text));
        assert!(is_drawn(&id) && is_drawn("123456/999999") && is_drawn("Counts rows."), "{lines:?}");
        let widest = lines.iter().map(|line| line.chars().count()).max();
        assert_eq!(widest, Some(80), "{lines:?}");
    }

    #[test]
    fn lines_come_without_their_ends_up_to_the_end_of_the_input() {
        let long = "x".repeat(usize::try_from(LINE_BYTES_MAX).unwrap());
        let text = [b"one\r\n\ntwo\xff\n", long.as_bytes(), b"y\nlast"].concat();
        let (sender, mut lines) = mpsc::channel(8);
        read_lines(text.as_slice(), &sender);
        drop(sender);
        let found: Vec<_> = std::iter::from_fn(|| lines.blocking_recv()).collect();
        assert_eq!(found, ["one", "", "two\u{fffd}", &long, "y", "last"]);
    }
}
