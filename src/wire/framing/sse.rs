//! Decodes the event stream format as the WHATWG HTML standard, 9.2.6, interprets it.

use bytes::Bytes;

use super::FramingError;
use super::part::{BodyPart, SseEvent, StreamEvent};

/// Longest event id that is kept (U21).
const ID_BYTES_MAX: usize = 1024;

pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Decodes an event stream as WHATWG specifies it: BOM, CR, LF, CRLF, cuts anywhere. Holds at most one event of
/// `event_bytes_max` bytes, with its name, id and unfinished line. Tracks event boundaries even after a large one.
#[derive(Debug, Default)]
pub struct SseDecoder {
    event_bytes_max: usize,
    partial: Vec<u8>,
    /// Whether a line feed that comes next belongs to the preceding carriage return.
    after_return: bool,
    /// Whether the first line, which may begin with a byte order mark, has yet to come.
    at_first_line: bool,
    last_id: Option<String>,
    block: PartialEvent,
    failed: bool,
    /// Whether a byte of the current line has come, and of the current event or comment.
    in_line: bool,
    in_event: bool,
    gave_ids: bool,
}

#[derive(Debug, Default)]
struct PartialEvent {
    name: Option<String>,
    /// The data lines, each followed by a line feed.
    data: Vec<u8>,
    has_id: bool,
    retry_ms: Option<u64>,
}

impl SseDecoder {
    pub fn new(event_bytes_max: usize) -> Self {
        Self { event_bytes_max, at_first_line: true, ..Self::default() }
    }

    /// A decoder that decodes nothing, and only tracks event boundaries.
    pub fn of_nothing() -> Self {
        Self { failed: true, ..Self::new(0) }
    }

    pub const fn is_between_events(&self) -> bool {
        !self.in_event
    }

    /// Whether an event seems to have had an id. Known at any size of events.
    pub const fn gave_ids(&self) -> bool {
        self.gave_ids
    }

    /// Returns complete events; skips comments. Events without data but with an id or a retry prime a stream, and are
    /// returned too. Fails if an event outgrows the bound; events before it come first, the error with the next call.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<SseEvent>, FramingError> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_return) && rest[0] == b'\n' {
                rest = &rest[1..];
                continue;
            }
            let end = memchr::memchr2(b'\r', b'\n', rest);
            let piece = &rest[..end.unwrap_or(rest.len())];
            if let Some(first) = piece.first() {
                // The first letter is enough: no other field begins with it.
                self.gave_ids |= !self.in_line && *first == b'i';
                (self.in_line, self.in_event) = (true, true);
            }
            if !self.failed && self.held().saturating_add(piece.len()) > self.event_bytes_max {
                self.fail();
            }
            let Some(end) = end else {
                if !self.failed {
                    self.partial.extend_from_slice(piece);
                }
                break;
            };
            self.after_return = rest[end] == b'\r';
            rest = &rest[end + 1..];
            self.in_event &= std::mem::take(&mut self.in_line);
            if !self.failed {
                events.extend(self.end_line(piece));
            }
        }
        if self.failed && events.is_empty() {
            return Err(FramingError::EventTooLarge { max: self.event_bytes_max });
        }
        Ok(events)
    }

    /// Takes a part of a body, as [`SseDecoder::feed`]; an event is returned as it is.
    pub fn take(&mut self, part: &BodyPart) -> Result<Vec<SseEvent>, FramingError> {
        match part {
            BodyPart::Bytes(bytes) => self.feed(bytes),
            BodyPart::Event(event) => {
                let mut events = self.feed(event.lead())?;
                events.push(self.take_event(event)?);
                Ok(events)
            }
        }
    }

    fn take_event(&mut self, event: &StreamEvent) -> Result<SseEvent, FramingError> {
        let event = event.event();
        self.gave_ids |= event.id.is_some();
        if event.data.len() > self.event_bytes_max {
            self.fail();
        }
        if self.failed {
            return Err(FramingError::EventTooLarge { max: self.event_bytes_max });
        }
        Ok(event.clone())
    }

    pub fn held(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.partial.len() + self.block.data.len() + text(&self.block.name) + text(&self.last_id)
    }

    fn fail(&mut self) {
        self.failed = true;
        self.partial = Vec::new();
        self.block = PartialEvent::default();
    }

    /// Ends a line; `piece` is its last piece.
    fn end_line(&mut self, piece: &[u8]) -> Option<SseEvent> {
        if self.partial.is_empty() {
            return self.line(piece);
        }
        let mut line = std::mem::take(&mut self.partial);
        line.extend_from_slice(piece);
        self.line(&line)
    }

    fn line(&mut self, mut line: &[u8]) -> Option<SseEvent> {
        if std::mem::take(&mut self.at_first_line) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch();
        }
        // A comment reads as a field without a name.
        let (field, value) = match memchr::memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, [].as_slice()),
        };
        self.field(field, value.strip_prefix(b" ").unwrap_or(value));
        None
    }

    fn field(&mut self, field: &[u8], value: &[u8]) {
        match field {
            b"data" => {
                self.block.data.extend_from_slice(value);
                self.block.data.push(b'\n');
            }
            b"event" => {
                self.block.name = (!value.is_empty()).then(|| String::from_utf8_lossy(value).into_owned());
            }
            b"id" if value.len() <= ID_BYTES_MAX && !value.contains(&0) => {
                self.last_id = Some(String::from_utf8_lossy(value).into_owned());
                self.block.has_id = true;
            }
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let digits = String::from_utf8_lossy(value);
                self.block.retry_ms = Some(digits.parse().unwrap_or(u64::MAX));
            }
            _ => (),
        }
    }

    fn dispatch(&mut self) -> Option<SseEvent> {
        let mut block = std::mem::take(&mut self.block);
        if block.data.is_empty() && !block.has_id && block.retry_ms.is_none() {
            return None;
        }
        block.data.pop();
        Some(SseEvent {
            name: block.name,
            data: Bytes::from(block.data).into(),
            id: self.last_id.clone(),
            retry_ms: block.retry_ms,
        })
    }
}

impl BodyPart {
    /// The one event in these bytes, if there is one.
    pub fn event(&self) -> Option<SseEvent> {
        match self {
            Self::Bytes(bytes) => SseDecoder::new(bytes.len()).feed(bytes).ok()?.pop(),
            Self::Event(event) => Some(event.event().clone()),
        }
    }
}
