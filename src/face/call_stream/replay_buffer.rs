//! Buffers a call's events for its client, which may resume by `Last-Event-ID` (T-81). The driver writes, the client's
//! stream reads. Read events are kept for a resumption while there is room.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::dialect::faults::gateway_error;
use crate::face::http::ResponseBody;
use crate::face::named_item::NamedItem;
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::framing::BodyPart;
use crate::wire::{JsonPieces, RequestId, RpcError};

/// Unread events of a slow client; above that the upstream is not read. One event may exceed the limit in bytes.
const UNREAD_MAX: usize = 16;
const UNREAD_BYTES_MAX: usize = 256 * 1024;
/// Events kept for a resumption of one stream.
const EVENTS_MAX: usize = 64;
/// Bytes of all kept streams of one face, responses included; beyond them the oldest is dropped.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// Finished streams of all sessions; a small response takes less than its bookkeeping.
const ANSWERED_MAX: usize = 16_384;
/// Streams that one session can resume; beyond them the oldest finished one is dropped, else the oldest.
const PER_SESSION_MAX: usize = 16;
const ANSWERED_FOR: Duration = Duration::from_secs(5 * 60);

pub(in crate::face) type CallResult = Result<JsonPieces, RpcError>;

pub(in crate::face) fn fault(reason: Reason) -> CallResult {
    Err(gateway_error(&GatewayFault::new(reason, Executed::Unknown)))
}

/// A copy in its own buffer: the original returns its bytes to the budget once its reader drops it.
fn detached(ending: &CallResult) -> CallResult {
    ending.as_ref().map(JsonPieces::detached).map_err(RpcError::clone)
}

#[derive(Debug)]
struct ReplayBuffer {
    /// The prefix of its event ids.
    stream: u128,
    state: watch::Sender<ReplayState>,
    bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct ReplayState {
    events: VecDeque<ReplayEvent>,
    /// The number of the next event. Comments have numbers, too, which are never sent.
    next: u64,
    read: u64,
    /// The newest reader, while it exists.
    reader: Option<u64>,
    readers: u64,
    last: Option<CallResult>,
    is_kept: bool,
    is_closed: bool,
    /// There is no response, and none is expected.
    is_unwanted: bool,
    size: usize,
    /// The unbuffered rest of the stream, which ends with its first reader.
    rest: Mutex<Option<ResponseBody>>,
}

#[derive(Clone, Debug)]
struct ReplayEvent {
    number: u64,
    part: BodyPart,
    /// Whether it has an id from the upstream.
    bears_id: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::face) enum UnreadPolicy {
    /// Kept for a resumption, unless it is a comment.
    Kept,
    Dropped,
}

#[derive(Debug)]
pub(in crate::face) enum ReplayItem {
    /// An event, with its number unless it is a comment or has the upstream's id.
    Event(BodyPart, Option<u64>),
    Last(CallResult, u64),
    Rest(ResponseBody),
}

impl ReplayBuffer {
    fn new(stream: u128, bytes: Arc<AtomicUsize>) -> Arc<Self> {
        // Zero is the number of the stream's beginning.
        Arc::new(Self { stream, state: watch::Sender::new(ReplayState { next: 1, ..ReplayState::default() }), bytes })
    }

    /// Ends earlier readers.
    fn read_after(self: &Arc<Self>, number: u64) -> ReplayReader {
        let mut own = 0;
        self.state.send_modify(|state| {
            state.readers += 1;
            own = state.readers;
            state.reader = Some(own);
            // A reader that has received the response has one more than there are events.
            state.read = number.saturating_add(1).min(state.next + 1);
        });
        ReplayReader { buffer: Arc::clone(self), own, state: self.state.subscribe() }
    }

    /// Waits until the reader has room. Returns whether there is a reader.
    async fn write(&self, part: BodyPart, unread: UnreadPolicy) -> bool {
        let has_room = |state: &ReplayState| {
            state.reader.is_none() || (state.unread() < UNREAD_MAX && state.unread_bytes() < UNREAD_BYTES_MAX)
        };
        // Cannot fail: this holds the sender.
        let _ = self.state.subscribe().wait_for(has_room).await;
        let is_comment = part.is_comment();
        let mut is_read = false;
        self.state.send_modify(|state| {
            is_read = state.reader.is_some();
            if is_read || (unread == UnreadPolicy::Kept && !is_comment) {
                state.size += part.len();
                self.bytes.fetch_add(part.len(), Ordering::Relaxed);
                let bears_id = part.event().is_some_and(|event| event.id.is_some());
                // A response that is kept for an absent client holds no bytes of the budget.
                let part = if is_read { part } else { part.detached() };
                state.events.push_back(ReplayEvent { number: state.next, part, bears_id });
                state.next += 1;
                self.trim(state);
            }
        });
        is_read
    }

    fn finish(&self, ending: CallResult) -> bool {
        let mut is_read = false;
        self.state.send_modify(|state| {
            let size = ending.as_ref().map_or_else(RpcError::bytes, JsonPieces::len);
            state.size += size;
            self.bytes.fetch_add(size, Ordering::Relaxed);
            is_read = state.reader.is_some();
            state.last = Some(if is_read { ending } else { detached(&ending) });
        });
        is_read
    }

    /// Drops events beyond the limits that were read, or have no reader.
    fn trim(&self, state: &mut ReplayState) {
        while let Some(first) = state.events.front() {
            let is_unread = state.reader.is_some() && first.number >= state.read;
            let is_much = state.events.len() > EVENTS_MAX || self.bytes.load(Ordering::Relaxed) > BYTES_MAX;
            if is_unread || !is_much {
                break;
            }
            state.size -= first.part.len();
            self.bytes.fetch_sub(first.part.len(), Ordering::Relaxed);
            state.events.pop_front();
        }
    }
}

impl Drop for ReplayBuffer {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.state.borrow().size, Ordering::Relaxed);
    }
}

impl ReplayState {
    fn is_over(&self) -> bool {
        self.last.is_some() || self.is_closed
    }

    fn unread(&self) -> usize {
        self.events.iter().rev().take_while(|event| event.number >= self.read).count()
    }

    fn unread_bytes(&self) -> usize {
        self.events.iter().rev().take_while(|event| event.number >= self.read).map(|event| event.part.len()).sum()
    }
}

/// Dropping it ends the stream.
#[derive(Debug)]
pub(in crate::face) struct ReplayWriter(Arc<ReplayBuffer>);

impl ReplayWriter {
    pub(in crate::face) fn stream(&self) -> u128 {
        self.0.stream
    }

    /// As [`ReplayBuffer::write`]. Cancel safe.
    pub(in crate::face) async fn write(&self, part: BodyPart, unread: UnreadPolicy) -> bool {
        self.0.write(part, unread).await
    }

    pub(in crate::face) fn finish(&self, ending: CallResult) -> bool {
        self.0.finish(ending)
    }

    /// Returns once a reader has taken the rest of the stream. Cancel safe; [`ReplayWriter::close`] withdraws the rest.
    pub(in crate::face) async fn hand_over(&self, rest: ResponseBody) {
        self.0.state.send_modify(|state| {
            *state.rest.get_mut() = Some(rest);
            (state.is_closed, state.is_unwanted) = (true, true);
        });
        let _ = self.0.state.subscribe().wait_for(|state| state.rest.lock().is_none()).await;
    }

    /// Returns once there has been no reader for this long. Cancel safe.
    pub(in crate::face) async fn deserted(&self, patience: Duration) {
        let mut state = self.0.state.subscribe();
        loop {
            let _ = state.wait_for(|state| state.reader.is_none()).await.map(|_| ());
            let back = state.wait_for(|state| state.reader.is_some());
            if tokio::time::timeout(patience, back).await.is_err() {
                return;
            }
        }
    }

    pub(in crate::face) fn close(&self) {
        self.0.state.send_modify(|state| {
            *state.rest.get_mut() = None;
            (state.is_closed, state.is_unwanted) = (true, true);
        });
    }
}

impl Drop for ReplayWriter {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| state.is_closed = true);
    }
}

/// Dropping it means that the client disconnected or lost its stream.
#[derive(Debug)]
pub(in crate::face) struct ReplayReader {
    buffer: Arc<ReplayBuffer>,
    own: u64,
    state: watch::Receiver<ReplayState>,
}

impl ReplayReader {
    pub(in crate::face) fn stream(&self) -> u128 {
        self.buffer.stream
    }

    /// The next item; `None` if nothing follows, or another reader took over. Cancel safe.
    pub(in crate::face) async fn next(&mut self) -> Option<ReplayItem> {
        let own = self.own;
        let is_due = |state: &ReplayState| state.reader != Some(own) || state.unread() > 0 || state.is_over();
        self.state.wait_for(is_due).await.ok()?;
        let mut word = None;
        self.buffer.state.send_modify(|state| {
            if state.reader != Some(own) {
                return;
            }
            let at = state.events.iter().position(|event| event.number >= state.read);
            match at.and_then(|at| state.events.get(at).cloned().map(|event| (at, event))) {
                Some((at, event)) => {
                    state.read = event.number + 1;
                    // Not only if it is kept: the first event is read before.
                    state.events[at].part = event.part.detached();
                    let is_comment = event.part.is_comment();
                    if is_comment {
                        state.size -= event.part.len();
                        self.buffer.bytes.fetch_sub(event.part.len(), Ordering::Relaxed);
                        state.events.remove(at);
                    }
                    self.buffer.trim(state);
                    let is_named = !is_comment && !event.bears_id;
                    word = Some(ReplayItem::Event(event.part, is_named.then_some(event.number)));
                }
                None => {
                    state.reader = None;
                    if let Some(rest) = state.rest.get_mut().take() {
                        word = Some(ReplayItem::Rest(rest));
                        return;
                    }
                    // The result's number follows all others; a client that has received it has received everything.
                    let number = state.next;
                    let is_new = state.read <= number;
                    word = match state.last.take() {
                        Some(last) => {
                            // The reader takes over the budget's bytes.
                            state.last = Some(if state.is_kept { detached(&last) } else { fault(Reason::Internal) });
                            is_new.then(|| ReplayItem::Last(last, number))
                        }
                        None if state.is_unwanted => None,
                        // Dropped without a result, by a panic or at the process's end. Its number follows all events.
                        None => Some(ReplayItem::Last(fault(Reason::Internal), u64::MAX)),
                    };
                }
            }
        });
        word
    }
}

impl Drop for ReplayReader {
    fn drop(&mut self) {
        self.buffer.state.send_modify(|state| {
            if state.reader == Some(self.own) {
                state.reader = None;
                self.buffer.trim(state);
                let read = state.read;
                for event in state.events.iter_mut().filter(|event| event.number >= read) {
                    event.part = event.part.detached();
                }
                state.last = state.last.take().map(|last| if state.is_kept { detached(&last) } else { last });
            }
        });
    }
}

#[derive(Debug, Default)]
pub(in crate::face) struct ReplayBuffers {
    kept: Mutex<ReplayIndex>,
    bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct ReplayIndex {
    /// Streams in the order in which they began.
    by_session: HashMap<u128, VecDeque<ReplayEntry>>,
    /// Finished streams in the order of their responses.
    answered: VecDeque<(Instant, u128, u128)>,
}

#[derive(Debug)]
struct ReplayEntry {
    id: u128,
    request: RequestId,
    item: Option<NamedItem>,
    buffer: Arc<ReplayBuffer>,
    is_answered: bool,
}

/// A kept stream. Its readers are not affected until it is read.
#[derive(Debug)]
pub(in crate::face) struct ResumableStream {
    pub(in crate::face) request: RequestId,
    pub(in crate::face) item: Option<NamedItem>,
    buffer: Arc<ReplayBuffer>,
}

impl ResumableStream {
    /// Reads on after an event. Ends earlier readers.
    pub(in crate::face) fn read_after(&self, number: u64) -> ReplayReader {
        self.buffer.read_after(number)
    }
}

impl ReplayBuffers {
    pub(in crate::face) fn begin(&self, stream: u128) -> (ReplayWriter, ReplayReader) {
        let buffer = ReplayBuffer::new(stream, Arc::clone(&self.bytes));
        let reader = buffer.read_after(0);
        (ReplayWriter(buffer), reader)
    }

    /// Makes a buffer resumable once its client learns the stream's id.
    pub(in crate::face) fn keep(
        &self,
        nonce: u128,
        request: RequestId,
        item: Option<NamedItem>,
        reader: &ReplayReader,
    ) {
        let (buffer, id) = (&reader.buffer, reader.buffer.stream);
        buffer.state.send_modify(|state| state.is_kept = true);
        let mut kept = self.kept.lock();
        let streams = kept.by_session.entry(nonce).or_default();
        if streams.len() >= PER_SESSION_MAX {
            let finished = streams.iter().position(|stream| stream.is_answered);
            streams.remove(finished.unwrap_or_default());
        }
        streams.push_back(ReplayEntry { id, request, item, buffer: Arc::clone(buffer), is_answered: false });
        self.settle(&mut kept, nonce, id);
        self.tidy(&mut kept);
    }

    pub(in crate::face) fn answered(&self, nonce: u128, id: u128) {
        let mut kept = self.kept.lock();
        self.settle(&mut kept, nonce, id);
        self.tidy(&mut kept);
    }

    pub(in crate::face) fn find(&self, nonce: u128, id: u128) -> Option<ResumableStream> {
        let mut kept = self.kept.lock();
        self.tidy(&mut kept);
        let ReplayEntry { request, item, buffer, .. } =
            kept.by_session.get(&nonce)?.iter().find(|stream| stream.id == id)?;
        Some(ResumableStream { request: request.clone(), item: item.clone(), buffer: Arc::clone(buffer) })
    }

    pub(in crate::face) fn remove(&self, nonce: u128) {
        self.kept.lock().by_session.remove(&nonce);
    }

    fn settle(&self, kept: &mut ReplayIndex, nonce: u128, id: u128) {
        let streams = kept.by_session.get_mut(&nonce);
        let stream = streams.and_then(|streams| streams.iter_mut().find(|stream| stream.id == id));
        if let Some(stream) = stream
            && !stream.is_answered
            && stream.buffer.state.borrow().is_over()
        {
            stream.is_answered = true;
            kept.answered.push_back((Instant::now(), nonce, id));
        }
    }

    /// Drops the oldest responses after their time, or while there are too many bytes.
    fn tidy(&self, kept: &mut ReplayIndex) {
        while let Some((when, nonce, id)) = kept.answered.front().copied() {
            let is_too_much = self.bytes.load(Ordering::Relaxed) > BYTES_MAX || kept.answered.len() > ANSWERED_MAX;
            if when.elapsed() < ANSWERED_FOR && !is_too_much {
                break;
            }
            kept.answered.pop_front();
            if let Some(streams) = kept.by_session.get_mut(&nonce) {
                streams.retain(|stream| stream.id != id);
                if streams.is_empty() {
                    kept.by_session.remove(&nonce);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::answer_budget::{AnswerBudget, FREE_BYTES};
    use crate::task::Principal;
    use crate::wire::Payload;

    fn text_of(text: &str) -> BodyPart {
        BodyPart::Bytes(Bytes::copy_from_slice(text.as_bytes()))
    }

    fn text(word: Option<ReplayItem>) -> String {
        match word {
            Some(ReplayItem::Event(part, number)) => {
                format!("{} {number:?}", std::str::from_utf8(&part.into_bytes()).unwrap())
            }
            Some(ReplayItem::Last(_, number)) => format!("last {number}"),
            Some(ReplayItem::Rest(_)) => "rest".to_owned(),
            None => "end".to_owned(),
        }
    }

    fn take_up(logs: &ReplayBuffers, nonce: u128, id: u128, number: u64) -> Option<(RequestId, ReplayReader)> {
        logs.find(nonce, id).map(|stream| (stream.request.clone(), stream.read_after(number)))
    }

    #[tokio::test]
    async fn missed_events_are_replayed_to_the_client_that_resumes_the_stream() {
        let logs = ReplayBuffers::default();
        let (writer, mut first) = logs.begin(7);
        logs.keep(1, RequestId::number(5), None, &first);
        for said in ["a", ": sign", "b"] {
            assert!(writer.write(text_of(said), UnreadPolicy::Kept).await);
        }
        assert_eq!(text(first.next().await), "a Some(1)");
        assert_eq!(text(first.next().await), ": sign None");
        drop(first);
        assert!(!writer.write(text_of("c"), UnreadPolicy::Kept).await);
        assert!(!writer.write(text_of("question"), UnreadPolicy::Dropped).await);
        assert!(!writer.write(text_of(": sign"), UnreadPolicy::Kept).await);
        assert!(take_up(&logs, 2, 7, 1).is_none() && take_up(&logs, 1, 8, 1).is_none());
        let (request, mut second) = take_up(&logs, 1, 7, 1).unwrap();
        assert_eq!(request, RequestId::number(5));
        assert_eq!(text(second.next().await), "b Some(3)");
        let (_, mut third) = take_up(&logs, 1, 7, 3).unwrap();
        assert_eq!(text(second.next().await), "end", "another one reads");
        assert_eq!(text(third.next().await), "c Some(4)");
        assert!(writer.finish(Ok(Payload::empty_object().into())));
        assert_eq!(text(third.next().await), "last 5");
        assert_eq!(text(third.next().await), "end");
        let (_, mut fourth) = take_up(&logs, 1, 7, 5).unwrap();
        assert_eq!(text(fourth.next().await), "end", "it has seen it all");
    }

    /// B190: its copy for a resumption has its own bound.
    #[tokio::test]
    async fn b190_an_event_that_its_client_has_holds_no_bytes_of_the_budget() {
        let (logs, budget) = (ReplayBuffers::default(), AnswerBudget::default());
        let share = budget.share(&Principal::local(), usize::MAX);
        let (writer, mut reader) = logs.begin(7);
        for is_kept in [false, true] {
            let event = share.rehold(Bytes::from(vec![b'x'; 2 * FREE_BYTES]));
            assert!(writer.write(BodyPart::Bytes(event), UnreadPolicy::Kept).await);
            let read = reader.next().await;
            assert_eq!(budget.in_use(), 2 * FREE_BYTES, "{is_kept}");
            drop(read);
            assert_eq!(budget.in_use(), 0, "{is_kept}");
            if !is_kept {
                logs.keep(1, RequestId::number(0), None, &reader);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_replay_buffer_has_bounds_and_an_end() {
        let logs = ReplayBuffers::default();
        let begin = |stream: u128| {
            let (writer, reader) = logs.begin(stream);
            logs.keep(1, RequestId::number(0), None, &reader);
            writer
        };
        let writers: Vec<_> = (0..=PER_SESSION_MAX as u128).map(begin).collect();
        assert!(take_up(&logs, 1, 0, 0).is_none(), "the oldest made room");
        writers[7].finish(Ok(Payload::empty_object().into()));
        logs.answered(1, 7);
        let _last = begin(PER_SESSION_MAX as u128 + 1);
        let found = [1, 7, 8].map(|stream| take_up(&logs, 1, stream, 0).is_some());
        assert_eq!(found, [true, false, true], "a finished one makes room first");
        for n in 0..EVENTS_MAX + 10 {
            writers[1].write(text_of(&format!("{n}")), UnreadPolicy::Kept).await;
        }
        let (_, mut reader) = take_up(&logs, 1, 1, 0).unwrap();
        assert_eq!(text(reader.next().await), "10 Some(11)");
        drop(reader);
        writers[1].finish(Ok(Payload::empty_object().into()));
        logs.answered(1, 1);
        tokio::time::advance(ANSWERED_FOR - Duration::from_secs(1)).await;
        assert!(take_up(&logs, 1, 1, 0).is_some());
        let large = Payload::of(&"x".repeat(BYTES_MAX));
        writers[2].finish(Ok(large.into()));
        logs.answered(1, 2);
        assert!(take_up(&logs, 1, 1, 0).is_none() && take_up(&logs, 1, 2, 0).is_none(), "no room for either");
        writers[3].finish(Ok(Payload::empty_object().into()));
        logs.answered(1, 3);
        tokio::time::advance(ANSWERED_FOR).await;
        assert!(take_up(&logs, 1, 3, 0).is_none());
        logs.remove(1);
        drop(writers);
        assert_eq!(logs.bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_few_however_small_they_are_and_however_many_sessions_they_are_of() {
        let logs = ReplayBuffers::default();
        for stream in 0..=ANSWERED_MAX as u128 {
            let (writer, reader) = logs.begin(stream);
            logs.keep(stream, RequestId::number(0), None, &reader);
            writer.finish(Ok(Payload::empty_object().into()));
            logs.answered(stream, stream);
        }
        assert_eq!(logs.kept.lock().answered.len(), ANSWERED_MAX);
        assert_eq!(logs.kept.lock().by_session.len(), ANSWERED_MAX);
        assert!(take_up(&logs, 0, 0, 0).is_none() && take_up(&logs, 1, 1, 0).is_some(), "the oldest made room");
    }
}
