//! Reads lines of stdin outside the runtime.

use std::io::{self, BufRead, Read as _};

use tokio::sync::mpsc;

/// The longest line; a longer one is split.
const LINE_BYTES_MAX: u64 = 64 << 10;
const LINES_MAX: usize = 16;

#[derive(Debug)]
pub(super) struct StdinLines(mpsc::Receiver<String>);

impl StdinLines {
    /// Reads on a separate thread, which the program does not join at its end: a terminal may never return a line.
    pub(super) fn of_stdin() -> Self {
        let (sender, lines) = mpsc::channel(LINES_MAX);
        std::thread::spawn(move || read(io::stdin().lock(), &sender));
        Self(lines)
    }

    /// The next line without its end; `None` at the end of the input. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<String> {
        self.0.recv().await
    }
}

fn read(mut input: impl BufRead, lines: &mpsc::Sender<String>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_without_their_ends_up_to_the_end_of_the_input() {
        let long = "x".repeat(usize::try_from(LINE_BYTES_MAX).unwrap());
        let text = [b"one\r\n\ntwo\xff\n", long.as_bytes(), b"y\nlast"].concat();
        let (sender, mut lines) = mpsc::channel(8);
        read(text.as_slice(), &sender);
        drop(sender);
        let found: Vec<_> = std::iter::from_fn(|| lines.blocking_recv()).collect();
        assert_eq!(found, ["one", "", "two\u{fffd}", &long, "y", "last"]);
    }
}
