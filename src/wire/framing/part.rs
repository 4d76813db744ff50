//! Defines the parts of a body inside the gateway: bytes from HTTP, or whole events.

use std::io::IoSlice;

use bytes::{Buf, BufMut as _, Bytes, BytesMut};

use crate::wire::{JsonPieces, MessageText};

const MESSAGE_HEAD: &[u8] = b"event: message\ndata: ";
const EVENT_END: &[u8] = b"\n\n";
/// Ends an event that its server left incomplete, wherever it was cut: clients ignore events of this name, and the data is no JSON.
pub const INCOMPLETE_EVENT_END: &[u8] = b"x\nevent: incomplete\ndata: x\n\n";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// `event:`, absent means `message`.
    pub name: Option<String>,
    /// `data:` lines joined by line feeds.
    pub data: MessageText,
    /// The stream's last event id as of this event (it sticks, WHATWG), if one was given at all.
    pub id: Option<String>,
    /// `retry:` in milliseconds, if this event carried one.
    pub retry_ms: Option<u64>,
}

impl SseEvent {
    /// Whether it carries messages, by its name.
    pub fn is_message(&self) -> bool {
        self.name.as_deref().is_none_or(|name| name == "message")
    }
}

/// A part of a body. As a buffer it yields its bytes on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyPart {
    /// Bytes as they came, or as they are to be written: JSON, or any number of events and comments.
    Bytes(Bytes),
    Event(StreamEvent),
}

/// One event that is serialised only when it leaves the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEvent {
    event: SseEvent,
    /// The bytes to be written, in this order.
    unwritten: [Bytes; 3],
}

impl StreamEvent {
    /// A `message` event with one JSON text, without an id: streams of the gateway for stateless clients cannot be
    /// resumed (MOD-21). A text on several lines becomes several `data` lines, which read back as the same JSON.
    pub fn message(text: impl Into<MessageText>) -> Self {
        Self::with_head(Bytes::from_static(MESSAGE_HEAD), SseEvent { data: text.into(), ..SseEvent::default() })
    }

    #[must_use]
    pub fn named(self, id: String) -> Self {
        Self::of(SseEvent { id: Some(id), ..self.event })
    }

    pub fn of(event: SseEvent) -> Self {
        let mut head = Vec::with_capacity(MESSAGE_HEAD.len());
        if let Some(id) = &event.id {
            head.extend_from_slice(format!("id: {id}\n").as_bytes());
        }
        if let Some(millis) = event.retry_ms {
            head.extend_from_slice(format!("retry: {millis}\n").as_bytes());
        }
        head.extend_from_slice(format!("event: {}\ndata:", event.name.as_deref().unwrap_or("message")).as_bytes());
        // Some readers take a blank for data.
        head.extend_from_slice(if event.data.is_empty() { b"" } else { b" " });
        Self::with_head(head.into(), event)
    }

    fn with_head(head: Bytes, event: SseEvent) -> Self {
        let unwritten = match memchr::memchr2(b'\r', b'\n', &event.data) {
            None => [head, Bytes::clone(&event.data), Bytes::from_static(EVENT_END)],
            Some(_) => {
                let mut text = BytesMut::with_capacity(head.len() + event.data.len() + 32);
                text.extend_from_slice(&head);
                for (at, line) in event.data.split(|byte| matches!(byte, b'\r' | b'\n')).enumerate() {
                    if at > 0 {
                        text.extend_from_slice(b"\ndata: ");
                    }
                    text.extend_from_slice(line);
                }
                [text.freeze(), Bytes::new(), Bytes::from_static(EVENT_END)]
            }
        };
        Self { event, unwritten }
    }

    /// The same event with these bytes, whole events or comments, before it on the wire.
    #[must_use]
    pub fn after(mut self, bytes: &[u8]) -> Self {
        self.unwritten[0] = [bytes, &self.unwritten[0]].concat().into();
        self
    }

    /// The bytes before it on the wire: whole events and comments. Each ends with an empty line, and the event's own head has none.
    pub(super) fn lead(&self) -> &[u8] {
        let end = memchr::memmem::rfind(&self.unwritten[0], b"\n\n").map_or(0, |at| at + 2);
        &self.unwritten[0][..end]
    }

    pub const fn event(&self) -> &SseEvent {
        &self.event
    }
}

impl BodyPart {
    pub fn message(text: impl Into<MessageText>) -> Self {
        Self::Event(StreamEvent::message(text))
    }

    /// A comment line that keeps a stream alive.
    pub const fn comment() -> Self {
        Self::Bytes(Bytes::from_static(b":\n\n"))
    }

    pub fn is_comment(&self) -> bool {
        matches!(self, Self::Bytes(bytes) if bytes.starts_with(b":"))
    }

    /// One whole event with these messages in place of its data, one event each. Only the last has the id.
    pub fn with_data(self, messages: &[MessageText]) -> Vec<Self> {
        let Some((last, before)) = messages.split_last() else { return Vec::new() };
        match self {
            Self::Bytes(bytes) => vec![Self::Bytes(with_data(&bytes, messages))],
            Self::Event(StreamEvent { event, .. }) => {
                let mut parts: Vec<Self> = before.iter().cloned().map(Self::message).collect();
                parts.push(Self::Event(StreamEvent::of(SseEvent { data: last.clone(), ..event })));
                parts
            }
        }
    }

    pub fn len(&self) -> usize {
        self.remaining()
    }

    pub fn is_empty(&self) -> bool {
        !self.has_remaining()
    }

    /// A copy that keeps no other buffer alive; a small part is shared.
    pub fn detached(&self) -> Self {
        match self {
            part if part.len() < JsonPieces::SHARED_MIN => part.clone(),
            Self::Bytes(bytes) => Self::Bytes(Bytes::copy_from_slice(bytes)),
            Self::Event(event) => Self::Bytes(event.unwritten.concat().into()),
        }
    }

    /// Its bytes on the wire. Copies an event's text.
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Event(event) => event.unwritten.concat().into(),
        }
    }
}

impl Default for BodyPart {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

from_variant!(BodyPart::Bytes(Bytes));

impl Buf for BodyPart {
    fn remaining(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Event(event) => event.unwritten.iter().map(Bytes::len).sum(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Event(event) => event.unwritten.iter().find(|piece| !piece.is_empty()).map_or(&[], |piece| piece),
        }
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.chunks_vectored(slices),
            Self::Event(event) => {
                let pieces = event.unwritten.iter().filter(|piece| !piece.is_empty());
                let filled = slices.iter_mut().zip(pieces).map(|(slice, piece)| *slice = IoSlice::new(piece));
                filled.count()
            }
        }
    }

    /// Bytes are shared; an event's are copied.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes.split_to(count),
            Self::Event(_) => {
                let mut copied = BytesMut::with_capacity(count);
                copied.put((&mut *self).take(count));
                copied.freeze()
            }
        }
    }

    fn advance(&mut self, mut count: usize) {
        match self {
            Self::Bytes(bytes) => bytes.advance(count),
            Self::Event(event) => {
                for piece in &mut event.unwritten {
                    let part = count.min(piece.len());
                    piece.advance(part);
                    count -= part;
                }
                assert_eq!(count, 0, "no more can be written than there is");
            }
        }
    }
}

/// The same event with other data; its other lines stay as they came.
fn with_data(event: &Bytes, messages: &[MessageText]) -> Bytes {
    let mut out = BytesMut::with_capacity(event.len());
    let Some((last, before)) = messages.split_last() else { return Bytes::new() };
    // An id says that everything before it was received, so only the last of several events has it.
    for message in before {
        write_data(&mut out, message);
        out.extend_from_slice(b"\n");
    }
    for line in event.split(|byte| *byte == b'\n' || *byte == b'\r') {
        if !line.is_empty() && !line.starts_with(b"data") {
            out.extend_from_slice(line);
            out.extend_from_slice(b"\n");
        }
    }
    write_data(&mut out, last);
    out.extend_from_slice(b"\n");
    out.freeze()
}

fn write_data(out: &mut BytesMut, message: &[u8]) {
    for line in message.split(|byte| *byte == b'\n' || *byte == b'\r') {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.extend_from_slice(b"\n");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::framing::SseDecoder;

    #[test]
    fn other_data_keeps_the_lines_around_it() {
        let event = Bytes::from_static(b": c\r\nid: 7\r\ndata: [1,\r\ndata: 2]\r\nevent: message\r\n\r\n");
        let messages = [Bytes::from_static(b"1").into(), Bytes::from_static(b"{\n}").into()];
        assert_eq!(with_data(&event, &messages), "data: 1\n\n: c\nid: 7\nevent: message\ndata: {\ndata: }\n\n");
        assert_eq!(*BodyPart::Bytes(event).event().unwrap().data, "[1,\n2]");
    }

    proptest! {
        #[test]
        fn an_event_is_written_as_it_reads_however_it_is_cut(
            text in "[a-z\\r\\n ]{1,40}", id in proptest::option::of("[a-z0-9-]{1,8}"), cuts in prop::collection::vec(1..9_usize, 0..40),
        ) {
            let event = StreamEvent::message(Bytes::from(text.clone()));
            let lines = text.replace(['\r', '\n'], "\ndata: ");
            prop_assert_eq!(BodyPart::Event(event.clone()).into_bytes(), format!("event: message\ndata: {lines}\n\n"));
            let event = match id.clone() {
                Some(id) => event.named(id),
                None => event,
            };
            let mut part = BodyPart::Event(event);
            let whole = part.clone().into_bytes();
            prop_assert_eq!(whole.len(), part.len());
            let mut written = Vec::new();
            for cut in cuts {
                let mut slices = [IoSlice::new(&[]); 4];
                let count = part.chunks_vectored(&mut slices);
                prop_assert_eq!(slices[..count].iter().map(|slice| slice.len()).sum::<usize>(), part.remaining());
                let cut = cut.min(part.chunk().len());
                written.extend_from_slice(&part.chunk()[..cut]);
                part.advance(cut);
            }
            written.extend_from_slice(&part.into_bytes());
            prop_assert_eq!(&written, &whole);
            let read = SseDecoder::new(1_000).feed(&written).unwrap();
            prop_assert_eq!(read.len(), 1);
            prop_assert_eq!(&read[0].id, &id);
            prop_assert_eq!(&*read[0].data, &text.replace('\r', "\n"));
        }
    }
}
