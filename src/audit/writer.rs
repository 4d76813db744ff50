//! Writes the records to the audit file, in one thread, which is the only writer of that file. Lines reach the kernel
//! as they come, the disk each second or, if `required`, before a call. Failures are repeated.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use metrics::Counter;
use tokio::time::Instant;

use super::AuditSettings;
use super::anchor::AnchorWriter;
use super::file::AuditSink;
use super::queue::{AuditQueue, QueueItem, QueuedRecord, WriterWork};
use super::record::{AuditAct, AuditEvent, ChainEnd, LINE_BYTES_MAX};
use crate::metric;
use crate::task::{Clock as _, SystemClock};

const RETRY: Duration = Duration::from_secs(1);
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
const BATCH_BYTES: usize = 256 << 10;
/// Each such line, and the first of a chain, has its digest at the anchor.
pub(super) const ANCHOR_INTERVAL: u64 = 1_000;

pub(super) struct AuditWriter {
    sink: AuditSink,
    queue: Arc<AuditQueue>,
    is_required: bool,
    replica: Option<String>,
    chain: ChainEnd,
    lines: Vec<u8>,
    count: u64,
    replies: Vec<tokio::sync::oneshot::Sender<()>>,
    /// Since when written lines may not be on the disk.
    unsynced_since: Option<Instant>,
    is_failing: bool,
    anchor: Option<AnchorWriter>,
    /// Digests for the anchor, of lines that are not written yet.
    anchors: Vec<ChainEnd>,
    records: Counter,
}

/// The gateway ends, and the last records cannot be written.
struct GivenUp;

impl AuditWriter {
    pub(super) fn new(
        sink: AuditSink,
        queue: Arc<AuditQueue>,
        settings: &AuditSettings,
        replica: Option<&str>,
    ) -> io::Result<Self> {
        let anchor = settings.anchor.clone().map(|anchor| AnchorWriter::start(anchor, settings.path.clone()));
        Ok(Self {
            chain: sink.end,
            sink,
            queue,
            is_required: settings.is_required,
            replica: replica.map(str::to_owned),
            lines: Vec::new(),
            count: 0,
            replies: Vec::new(),
            unsynced_since: None,
            is_failing: false,
            anchor: anchor.transpose()?,
            anchors: Vec::new(),
            records: metrics::counter!(metric::AUDIT_RECORDS),
        })
    }

    pub(super) fn run(mut self) {
        if self.work().is_err() {
            let lost = self.count;
            tracing::error!(lost, "the audit file cannot be written: the last records are lost");
        }
        if let Some(anchor) = self.anchor.take() {
            anchor.close();
        }
        self.queue.has_ended();
    }

    fn work(&mut self) -> Result<(), GivenUp> {
        let outcome = if self.chain == ChainEnd::default() { "new" } else { "continued" };
        let torn = self.sink.torn_bytes;
        let count = (torn > 0).then_some(("cut_bytes", torn));
        self.add_own(&AuditEvent { outcome: Some(outcome), count, ..AuditEvent::new(AuditAct::Opened) });
        self.flush()?;
        loop {
            match self.queue.take(self.sync_due_in()) {
                WriterWork::Items(items) => {
                    for item in items {
                        self.carry_out(item)?;
                    }
                    self.flush()?;
                }
                WriterWork::Idle => self.sync(),
                WriterWork::End => break,
            }
        }
        // The file may have been renamed without a signal: the next process continues the chain of the file at the path.
        self.rotate();
        self.add_own(&AuditEvent::new(AuditAct::Closed));
        self.flush()?;
        self.sync();
        Ok(())
    }

    fn carry_out(&mut self, item: QueueItem) -> Result<(), GivenUp> {
        match item {
            QueueItem::Record(QueuedRecord { at, members, reply }) => {
                self.chain.add(at, self.replica.as_deref(), &members, &mut self.lines);
                self.added();
                self.replies.extend(reply);
            }
            QueueItem::Lost(lost) => {
                self.add_own(&AuditEvent { count: Some(("lost", lost)), ..AuditEvent::new(AuditAct::Lost) });
            }
            QueueItem::Unnamed(count) => {
                let count = Some(("unnamed", count));
                self.add_own(&AuditEvent { count, ..AuditEvent::new(AuditAct::LoginRefused) });
            }
            QueueItem::Reopen => {
                self.flush()?;
                self.rotate();
            }
        }
        if self.lines.len() > BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// Continues in a new file if the present one was renamed. The new one begins with the lines that wait, and its own.
    fn rotate(&mut self) {
        let (mut chain, mut lines) = (self.chain, self.lines.clone());
        let rotated = AuditEvent { outcome: Some("rotated"), ..AuditEvent::new(AuditAct::Opened) };
        chain.add(SystemClock.now(), self.replica.as_deref(), &rotated.members(|_| None), &mut lines);
        match self.sink.reopen(&lines) {
            Ok(true) => {
                self.lines.clear();
                self.chain = chain;
                self.added();
                tracing::info!("the audit continues in a new file");
            }
            Ok(false) => (),
            Err(error) => {
                tracing::error!(%error, "the audit file cannot be opened again; the present one is continued");
            }
        }
    }

    fn add_own(&mut self, event: &AuditEvent<'_>) {
        let members = event.members(|_| None);
        self.chain.add(SystemClock.now(), self.replica.as_deref(), &members, &mut self.lines);
        self.added();
    }

    fn added(&mut self) {
        debug_assert!(self.lines.len() < BATCH_BYTES + 2 * LINE_BYTES_MAX, "batches are bounded");
        self.count += 1;
        let seq = self.chain.seq;
        if self.anchor.is_some() && (seq == 1 || seq.is_multiple_of(ANCHOR_INTERVAL)) {
            self.anchors.push(self.chain);
        }
    }

    /// Writes the pending lines; retries until that succeeds or the gateway ends. A rotation may come between two tries.
    fn flush(&mut self) -> Result<(), GivenUp> {
        // The first lines of a rotated file are counted, and written already.
        if self.count == 0 {
            return Ok(());
        }
        let mut is_last = false;
        while let Err(error) = self.sink.append(&self.lines) {
            self.fails(&error);
            if is_last {
                return Err(GivenUp);
            }
            is_last = !self.queue.pause(RETRY);
            if self.queue.take_reopen() || is_last {
                self.rotate();
            }
        }
        self.records.increment(self.count);
        self.lines.clear();
        self.count = 0;
        // Under steady load the queue never pauses. A line is on the disk before its digest is at the anchor.
        self.unsynced_since.get_or_insert_with(Instant::now);
        let is_due = self.sync_due_in() == Some(Duration::ZERO) || !self.anchors.is_empty();
        if self.is_required || self.is_failing || is_due {
            self.sync();
        }
        for reply in self.replies.drain(..) {
            // A dropped reply refuses the call of its record.
            let _ = if self.is_failing { Ok(()) } else { reply.send(()) };
        }
        if let Some(anchor) = self.anchor.as_ref().filter(|_| !self.is_failing) {
            self.anchors.drain(..).for_each(|end| anchor.add(end));
        }
        Ok(())
    }

    fn sync_due_in(&self) -> Option<Duration> {
        if self.is_failing {
            return Some(SYNC_INTERVAL);
        }
        self.unsynced_since.map(|since| SYNC_INTERVAL.saturating_sub(since.elapsed()))
    }

    fn sync(&mut self) {
        match self.sink.sync() {
            Ok(()) => {
                self.unsynced_since = None;
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("the audit file is written again");
                    self.queue.set_failing(false);
                }
            }
            Err(error) => self.fails(&error),
        }
    }

    fn fails(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!(%error, "the audit file cannot be written; it is tried again each second");
            self.queue.set_failing(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::AuditAnchor;
    use super::super::verify::ChainVerifier;
    use super::*;

    fn settings(path: &Path) -> AuditSettings {
        AuditSettings {
            path: path.to_owned(),
            is_required: false,
            records_calls: true,
            digests_arguments: false,
            anchor: None,
        }
    }

    /// As while the file is blocked.
    #[test]
    fn records_without_room_are_counted_by_a_line_in_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let settings = settings(&path);
        let queue = Arc::new(AuditQueue::default());
        let tool = "x".repeat(250);
        let push = || {
            let members = AuditEvent { tool: Some(&tool), ..AuditEvent::new(AuditAct::CallEnded) }.members(|_| None);
            queue.push(QueuedRecord { at: SystemClock.now(), members, reply: None });
        };
        (0..20_000).for_each(|_| push());
        let writer = AuditWriter::new(AuditSink::unlocked(&path), Arc::clone(&queue), &settings, None).unwrap();
        let writing = std::thread::spawn(move || writer.run());
        // Accepted or not, it is counted.
        push();
        queue.end();
        writing.join().unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let mut verifier = ChainVerifier::default();
        verifier.file(text.as_bytes()).unwrap();
        let kept = text.matches("call.ended").count() as u64;
        assert!(verifier.lost > 5_000, "{}", verifier.lost);
        assert_eq!(kept + verifier.lost, 20_001);
        assert_eq!(text.matches("audit.lost").count(), 1);
    }

    /// Under steady load the writer's thread is never idle.
    #[test]
    fn lines_reach_the_disk_after_a_second_even_if_records_come_without_a_pause() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let sink = AuditSink::unlocked(&path);
        let mut writer = AuditWriter::new(sink, Arc::default(), &settings(&path), None).unwrap();
        writer.unsynced_since = Some(Instant::now() - SYNC_INTERVAL);
        writer.add_own(&AuditEvent::new(AuditAct::Reload));
        assert!(writer.flush().is_ok());
        assert_eq!(writer.unsynced_since, None);
    }

    /// A power cut must not look like an older copy that was put back.
    #[test]
    fn sec_95_a_line_is_on_the_disk_before_its_digest_goes_to_the_anchor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let anchor = Some(AuditAnchor::File(folder.path().join("audit.anchor")));
        let settings = AuditSettings { anchor, ..settings(&path) };
        let mut writer = AuditWriter::new(AuditSink::unlocked(&path), Arc::default(), &settings, None).unwrap();
        writer.add_own(&AuditEvent::new(AuditAct::Reload));
        assert_eq!(writer.anchors.len(), 1, "the first line of a chain is anchored");
        assert!(writer.flush().is_ok());
        assert_eq!((writer.unsynced_since, writer.anchors.len()), (None, 0));
    }

    /// `kill -9` or a power cut during a write leaves any part of the last lines: the next process continues the chain
    /// behind the last whole line.
    #[test]
    fn a_file_that_ends_at_any_byte_is_continued_behind_its_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let settings = settings(&path);
        let process = |tools: &[&str]| {
            let queue = Arc::new(AuditQueue::default());
            for tool in tools {
                let members = AuditEvent { tool: Some(tool), ..AuditEvent::new(AuditAct::CallEnded) }.members(|_| None);
                queue.push(QueuedRecord { at: SystemClock.now(), members, reply: None });
            }
            queue.end();
            AuditWriter::new(AuditSink::unlocked(&path), queue, &settings, None).unwrap().run();
            std::fs::read(&path).unwrap()
        };
        let whole = process(&["a", "\u{202e}b\n", "{\"seq\":1,"]);
        for length in 0..=whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let continued = process(&["c"]);
            let mut verifier = ChainVerifier::default();
            verifier.file(&continued[..]).unwrap_or_else(|fault| panic!("cut at {length}: {fault}"));
            let kept = whole[..length].iter().filter(|byte| **byte == b'\n').count() as u64;
            // The lines of this process: its opening, its record, its end.
            assert_eq!(verifier.lines, kept + 3, "cut at {length}");
        }
    }
}
