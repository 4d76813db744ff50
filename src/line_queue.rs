//! Passes lines to a thread that writes them: a reader that hangs blocks no other thread (F96).

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};

use crate::metric;

/// Bytes of lines that wait. A further line is lost.
const BYTES_MAX: usize = 4 << 20;
/// The least that a line counts, for its memory beside its text.
const LINE_BYTES_MIN: usize = 512;
/// Room for all lines, and for the message that ends the thread: the library prints to standard output where it finds no room.
const MESSAGES_MAX: usize = BYTES_MAX / LINE_BYTES_MIN + 1;

/// The end of the queue to which lines are written. Clones share the queue.
#[derive(Clone, Debug)]
pub(crate) struct LineQueue {
    lines: NonBlocking,
    backlog: Arc<Backlog>,
}

impl LineQueue {
    /// Starts the thread that writes to `output`. Dropping the guard waits until the lines are written, a second at most.
    pub(crate) fn start(output: impl Write + Send + 'static, name: &'static str) -> (Self, WorkerGuard) {
        let backlog = Arc::new(Backlog { name, bytes: AtomicUsize::new(0), lost: AtomicU64::new(0) });
        let thread = NonBlockingBuilder::default().buffered_lines_limit(MESSAGES_MAX).thread_name("lines");
        let (lines, guard) = thread.finish(QueueOutput { output, backlog: Arc::clone(&backlog) });
        (Self { lines, backlog }, guard)
    }
}

impl Write for LineQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.backlog.admit(line) { self.lines.write(line) } else { Ok(line.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Backlog {
    /// The output's name in the log.
    name: &'static str,
    bytes: AtomicUsize,
    /// Lines lost since the log last said so.
    lost: AtomicU64,
}

impl Backlog {
    fn cost(line: &[u8]) -> usize {
        line.len().max(LINE_BYTES_MIN)
    }

    fn admit(&self, line: &[u8]) -> bool {
        let with_line = |held: usize| Some(held + Self::cost(line)).filter(|bytes| *bytes <= BYTES_MAX);
        let is_admitted = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, with_line).is_ok();
        if !is_admitted {
            self.lost.fetch_add(1, Ordering::Relaxed);
            metrics::counter!(metric::LOG_LINES_LOST).increment(1);
        }
        is_admitted
    }

    /// Releases a line. Logs the lost ones once half of the queue is free.
    fn release(&self, line: &[u8]) {
        let held = self.bytes.fetch_sub(Self::cost(line), Ordering::Relaxed) - Self::cost(line);
        if held <= BYTES_MAX / 2 && self.lost.load(Ordering::Relaxed) > 0 {
            let lines = self.lost.swap(0, Ordering::Relaxed);
            tracing::warn!(lines, "lines were lost: {} was not read in time", self.name);
        }
    }
}

struct QueueOutput<W> {
    output: W,
    backlog: Arc<Backlog>,
}

impl<W: Write> Write for QueueOutput<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = self.output.write_all(line);
        self.backlog.release(line);
        written.map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// An output that takes a line when the test receives it.
    struct Held(mpsc::SyncSender<usize>);

    impl Write for Held {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _ = self.0.send(line.len());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn f96_lines_that_wait_are_bounded_in_bytes_and_the_next_ones_are_lost() {
        for (line, held) in [
            (1, BYTES_MAX / LINE_BYTES_MIN),
            (LINE_BYTES_MIN + 1, BYTES_MAX / (LINE_BYTES_MIN + 1)),
            (1 << 20, 4),
            (5 << 20, 0),
        ] {
            let (sender, lines) = mpsc::sync_channel(0);
            let (mut queue, guard) = LineQueue::start(Held(sender), "a test");
            for _ in 0..held + 3 {
                queue.write_all(&vec![b'x'; line]).unwrap();
            }
            assert_eq!(queue.backlog.lost.load(Ordering::Relaxed), 3, "{line}");
            let read = std::thread::spawn(move || lines.into_iter().count());
            drop(guard);
            drop(queue);
            assert_eq!(read.join().unwrap(), held, "{line}: the end waits for all lines");
        }
    }
}
