//! Filters an event stream: forwards bytes, withholds primers (events without data), and yields some events whole.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::message_classifier::{MessageClass, MessageClassifier};
use super::sse::BYTE_ORDER_MARK;
use super::{FramingError, StreamEvent};
use crate::wire::{Message, MessageText};

/// Most bytes of an event before its data. Beyond this, comments and unknown fields are dropped.
const LEAD_BYTES_MAX: usize = 64 * 1024;
const FIELDS: [&[u8]; 4] = [b"data", b"event", b"id", b"retry"];
/// The fields by which a client resumes a stream.
const POSITION: [&[u8]; 2] = [b"id", b"retry"];

/// Largest event that is joined again from its parts.
const JOINED_BYTES_MAX: usize = 16 * 1024;

/// Whether events without data, which only prime a stream, pass (T-28).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrimerPolicy {
    Pass,
    Withhold,
    /// Withholds them; removes ids and retry times before or between data: the stream cannot be resumed (MOD-21).
    Unnumbered,
}

/// Selects the events that are yielded whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldPolicy {
    /// Messages that may ask their reader for input ([`MessageClassifier`]); others are held only until classified.
    Asking,
    Messages,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateOutput {
    Through(Bytes),
    /// One event as it came, with the empty line after it.
    Event(Bytes),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventVerdict {
    Passes,
    Withheld,
    Held,
}

/// Holds the lines before an event's data, and at most one whole event of `event_bytes_max` bytes.
#[derive(Debug)]
pub struct EventGate {
    primers: PrimerPolicy,
    whole: HoldPolicy,
    event_bytes_max: usize,
    filter: Option<EventFilter>,
    held: BytesMut,
    state: GateState,
    /// Bytes of the current line, held or forwarded.
    line: usize,
    /// The line's start in `held`, if all of it is held.
    line_start: usize,
    /// The number of bytes of the held data that are known to be blank.
    blanks: usize,
    /// Whether a line feed that comes next belongs to the preceding carriage return.
    after_return: bool,
    withheld: bool,
    /// Whether the current event has a field, not only comments.
    has_field: bool,
    is_of_interest: bool,
    /// How many bytes of a byte order mark the stream has begun with; `None` once decided.
    mark: Option<usize>,
    /// The inspection of the event's data, where the data decides.
    data: DataInspection,
}

#[derive(Debug, Default)]
struct DataInspection {
    classifier: MessageClassifier,
    /// How many bytes of `data:` the current line matches so far; `None` for another field.
    field: Option<usize>,
}

impl DataInspection {
    const FIELD: &[u8] = b"data:";

    fn at_start() -> Self {
        Self { classifier: MessageClassifier::default(), field: Some(0) }
    }

    fn pass(&mut self, mut bytes: &[u8]) {
        while let (Some(met), Some(first)) = (self.field.filter(|met| *met < Self::FIELD.len()), bytes.first()) {
            self.field = (Self::FIELD[met] == *first).then_some(met + 1);
            bytes = &bytes[1..];
        }
        if self.field.is_some() {
            self.classifier.feed(bytes);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct EventFilter {
    bytes_max: usize,
    is_of_interest: fn(&[u8]) -> bool,
    may_ask_late: fn(&MessageClassifier) -> bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateState {
    Lead,
    Passing,
    Keeping,
}

impl EventGate {
    pub fn held(&self) -> usize {
        self.held.len()
    }

    pub fn new(primers: PrimerPolicy, whole: HoldPolicy, event_bytes_max: usize) -> Self {
        Self {
            primers,
            whole,
            event_bytes_max,
            filter: None,
            held: BytesMut::new(),
            state: GateState::Lead,
            line: 0,
            line_start: 0,
            blanks: 0,
            after_return: false,
            withheld: false,
            has_field: false,
            is_of_interest: false,
            mark: Some(0),
            data: DataInspection::at_start(),
        }
    }

    /// Streams an event of any size if its first `bytes_max` bytes do not match; yields others whole. A message that
    /// may ask for input, or is unclassified by then, also matches. Fails if `may_ask_late` is true after the release.
    pub const fn filtering(
        mut self,
        bytes_max: usize,
        is_of_interest: fn(&[u8]) -> bool,
        may_ask_late: fn(&MessageClassifier) -> bool,
    ) -> Self {
        self.filter = Some(EventFilter { bytes_max, is_of_interest, may_ask_late });
        self
    }

    /// Takes bytes; returns the outputs in order. Drops a byte order mark at the start (WHATWG). Fails if an event to
    /// be yielded whole outgrows the bound, or is recognised only after its beginning was forwarded.
    pub fn feed(&mut self, bytes: &Bytes) -> Result<Vec<GateOutput>, FramingError> {
        let mut out = Vec::new();
        let begun = self.mark.map(|seen| self.without_mark(seen, bytes));
        let bytes = begun.as_ref().unwrap_or(bytes);
        let mut at = self.end_of_return(bytes, &mut out);
        // The bytes from here to `at` are forwarded, not held.
        let mut from = at;
        // The index of the current event's first output.
        let mut first = out.len();
        while at < bytes.len() {
            let end = memchr::memchr2(b'\r', b'\n', &bytes[at..]).map(|distance| at + distance);
            let line_end = end.unwrap_or(bytes.len());
            let is_return = end.is_some_and(|end| bytes[end] == b'\r');
            let has_feed = is_return && bytes.get(line_end + 1) == Some(&b'\n');
            self.after_return = is_return && line_end + 1 == bytes.len();
            let piece_end = (line_end + 1 + usize::from(has_feed)).min(bytes.len());
            self.line += line_end - at;
            if self.whole == HoldPolicy::Asking || self.filter.is_some() {
                self.inspect(&bytes[at..line_end])?;
            }
            if self.state != GateState::Passing {
                self.held.extend_from_slice(&bytes[at..piece_end]);
                from = piece_end;
                out.extend(self.release());
                if self.state == GateState::Keeping && self.held.len() > self.event_bytes_max {
                    return Err(FramingError::EventTooLarge { max: self.event_bytes_max });
                }
            }
            at = piece_end;
            if end.is_none() {
                break;
            }
            if std::mem::take(&mut self.line) > 0 {
                if self.state == GateState::Lead {
                    self.decide(&mut out);
                }
                self.drop_position();
                if self.state != GateState::Passing {
                    self.begin_line();
                }
                self.data.field = Some(0);
                continue;
            }
            self.end_event(bytes, from..at, &mut out);
            from = at;
            first = joined(&mut out, first);
        }
        if self.state == GateState::Lead && self.line > 0 {
            // A line may be as large as a result: its beginning decides.
            self.decide(&mut out);
        }
        if self.state == GateState::Lead && self.held.len() > LEAD_BYTES_MAX {
            self.shorten_lead()?;
        }
        if self.state == GateState::Passing && from < bytes.len() {
            out.push(GateOutput::Through(bytes.slice(from..)));
        }
        joined(&mut out, first);
        Ok(out)
    }

    /// Ends an event with its empty line. `passing`: the bytes that are forwarded, not held.
    fn end_event(&mut self, bytes: &Bytes, passing: Range<usize>, out: &mut Vec<GateOutput>) {
        self.withheld = false;
        match self.state {
            GateState::Lead => self.end_without_data(out),
            // An event that was released with its last byte leaves no bytes.
            GateState::Passing if passing.is_empty() => (),
            GateState::Passing => out.push(GateOutput::Through(bytes.slice(passing))),
            GateState::Keeping => out.push(GateOutput::Event(self.held.split().freeze())),
        }
        self.state = GateState::Lead;
        self.begin_line();
        self.has_field = false;
        self.is_of_interest = false;
        self.data = DataInspection::at_start();
    }

    /// Judges a whole event, as [`EventGate::feed`] judges bytes. Fails if it must be yielded whole and is too large.
    pub fn judge(&self, event: &StreamEvent) -> Result<EventVerdict, FramingError> {
        let data = &event.event().data;
        if data.trim_ascii().is_empty() {
            let is_withheld = self.primers != PrimerPolicy::Pass;
            return Ok(if is_withheld { EventVerdict::Withheld } else { EventVerdict::Passes });
        }
        let classifier = || {
            let mut classifier = MessageClassifier::default();
            classifier.feed(data);
            classifier
        };
        let is_held = match (self.whole, self.filter) {
            (HoldPolicy::Asking, _) if is_result(data) => false,
            (HoldPolicy::Asking, _) => classifier().shows() != MessageClass::Harmless,
            (HoldPolicy::Messages, None) => true,
            (HoldPolicy::Messages, Some(filter)) => {
                let classifier = classifier();
                let may_ask = classifier.may_ask() || classifier.shows() == MessageClass::Nothing;
                data.len() < filter.bytes_max || may_ask || (filter.is_of_interest)(data)
            }
        };
        match is_held {
            true if data.len() > self.event_bytes_max => Err(FramingError::EventTooLarge { max: self.event_bytes_max }),
            true => Ok(EventVerdict::Held),
            false => Ok(EventVerdict::Passes),
        }
    }

    /// Removes the byte order mark from a stream's first bytes; `seen` bytes of it came before.
    fn without_mark(&mut self, seen: usize, bytes: &Bytes) -> Bytes {
        let rest = &BYTE_ORDER_MARK[seen..];
        let same = bytes.iter().zip(rest).take_while(|(found, expected)| found == expected).count();
        if same == bytes.len() && same < rest.len() {
            self.mark = Some(seen + same);
            return Bytes::new();
        }
        self.mark = None;
        match (same == rest.len(), seen) {
            (true, _) => bytes.slice(same..),
            (false, 0) => bytes.clone(),
            (false, _) => [&BYTE_ORDER_MARK[..seen], bytes].concat().into(),
        }
    }

    /// Takes a line feed after the carriage return at the end of the last bytes; returns how many bytes it took.
    fn end_of_return(&mut self, bytes: &Bytes, out: &mut Vec<GateOutput>) -> usize {
        let Some(first) = bytes.first() else { return 0 };
        let is_there = std::mem::take(&mut self.after_return) && *first == b'\n';
        if !is_there {
            return 0;
        }
        if !self.held.is_empty() {
            // Unless the line was dropped from the lead: then the line feed would be an empty line.
            if self.held.ends_with(b"\r") {
                self.held.extend_from_slice(b"\n");
            }
            self.begin_line();
        } else if self.state == GateState::Passing || !self.withheld {
            out.push(GateOutput::Through(bytes.slice(..1)));
        }
        1
    }

    /// The held bytes when the stream ends inside an event; they are forwarded as they came.
    pub fn finish(&mut self) -> Option<Bytes> {
        let mark = &BYTE_ORDER_MARK[..self.mark.take().unwrap_or(0)];
        self.held.extend_from_slice(mark);
        let rest = self.held.split().freeze();
        (!rest.is_empty()).then_some(rest)
    }

    fn inspect(&mut self, bytes: &[u8]) -> Result<(), FramingError> {
        self.data.pass(bytes);
        let is_passing = self.state == GateState::Passing;
        if self.whole == HoldPolicy::Asking && is_passing && self.data.classifier.shows() != MessageClass::Harmless {
            return Err(FramingError::TwoMessagesInOne);
        }
        if is_passing && self.filter.is_some_and(|filter| (filter.may_ask_late)(&self.data.classifier)) {
            return Err(FramingError::AsksTooLate);
        }
        Ok(())
    }

    /// Releases the held bytes of an event that does not match.
    fn release(&mut self) -> Option<GateOutput> {
        if self.whole == HoldPolicy::Asking {
            let is_harmless =
                self.state == GateState::Keeping && self.data.classifier.shows() == MessageClass::Harmless;
            if !is_harmless {
                return None;
            }
            self.state = GateState::Passing;
            return Some(GateOutput::Through(self.held.split().freeze()));
        }
        let filter =
            self.filter.filter(|filter| self.state == GateState::Keeping && self.held.len() >= filter.bytes_max)?;
        let classifier = &self.data.classifier;
        let may_ask = classifier.may_ask() || classifier.shows() == MessageClass::Nothing;
        if self.is_of_interest || may_ask || (filter.is_of_interest)(&self.held) {
            self.is_of_interest = true;
            return None;
        }
        self.state = GateState::Passing;
        Some(GateOutput::Through(self.held.split().freeze()))
    }

    fn end_without_data(&mut self, out: &mut Vec<GateOutput>) {
        let event = self.held.split().freeze();
        self.withheld = self.has_field && self.primers != PrimerPolicy::Pass;
        if !self.withheld {
            out.push(GateOutput::Through(event));
        }
    }

    /// Drops comments before an event's data, and keeps its fields.
    fn shorten_lead(&mut self) -> Result<(), FramingError> {
        let lead = self.held.split();
        let (lines, last) = lead.split_at(self.line_start);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            // A carriage return alone ends a line, too.
            line.split_inclusive(|byte| *byte == b'\r').filter(|line| is_field(line)).for_each(|line| {
                self.held.extend_from_slice(line);
            });
        }
        self.line_start = self.held.len();
        // A colon is enough to recognise the current line as a comment.
        self.held.extend_from_slice(if last.is_empty() || is_field(last) { last } else { b":" });
        match self.held.len() > LEAD_BYTES_MAX / 2 {
            true => Err(FramingError::EventTooLarge { max: LEAD_BYTES_MAX / 2 }),
            false => Ok(()),
        }
    }

    /// Drops the last held line if it has a position in a stream without any.
    fn drop_position(&mut self) {
        let is_held = self.primers == PrimerPolicy::Unnumbered && self.state != GateState::Passing;
        if is_held && is_named(&self.held[self.line_start..], &POSITION) {
            self.held.truncate(self.line_start);
        }
    }

    fn begin_line(&mut self) {
        self.line_start = self.held.len();
        self.blanks = 0;
    }

    /// Inspects the last line of the lead, as far as it has come; no byte of its data twice.
    fn decide(&mut self, out: &mut Vec<GateOutput>) {
        let line = &self.held[self.line_start..];
        self.has_field |= !line.starts_with(b":");
        let Some(data) = line.strip_prefix(b"data:") else { return };
        if data[self.blanks..].trim_ascii().is_empty() {
            self.blanks = data.len();
            return;
        }
        self.state = GateState::Keeping;
        if self.whole == HoldPolicy::Asking {
            out.extend(self.release());
        }
    }
}

/// Whether a line may be a field, as far as it has come.
fn is_field(line: &[u8]) -> bool {
    is_named(line, &FIELDS)
}

/// Whether a line may be one of these fields, as far as it has come.
fn is_named(line: &[u8], fields: &[&[u8]]) -> bool {
    let end = memchr::memchr3(b':', b'\r', b'\n', line);
    fields.iter().any(|field| match end {
        Some(end) => **field == line[..end],
        None => field.starts_with(line),
    })
}

/// Whether a text was read as a result, which asks nothing.
fn is_result(text: &MessageText) -> bool {
    matches!(text.message(), Some(Message::Response(response)) if response.outcome.is_ok())
}

/// Joins the parts of a small event that came at once; returns the number of outputs.
fn joined(out: &mut Vec<GateOutput>, first: usize) -> usize {
    let parts = &out[first..];
    let is_through = |part: &GateOutput| matches!(part, GateOutput::Through(_));
    let bytes = |part: &GateOutput| match part {
        GateOutput::Through(bytes) | GateOutput::Event(bytes) => bytes.clone(),
    };
    let length: usize = parts.iter().map(|part| bytes(part).len()).sum();
    if parts.len() > 1 && length <= JOINED_BYTES_MAX && parts.iter().all(is_through) {
        let whole: Vec<Bytes> = parts.iter().map(bytes).collect();
        out.truncate(first);
        out.push(GateOutput::Through(whole.concat().into()));
    }
    out.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::framing::SseDecoder;

    /// Feeds a text cut at two offsets; returns the output as one text, whole events in brackets.
    fn through(text: &str, cuts: [usize; 2], mut gate: EventGate) -> String {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        let (first, last) = (cuts[0].min(cuts[1]), cuts[0].max(cuts[1]));
        let mut out = Vec::new();
        for piece in [bytes.slice(..first), bytes.slice(first..last), bytes.slice(last..)] {
            for passage in gate.feed(&piece).unwrap() {
                match passage {
                    GateOutput::Through(bytes) => out.extend_from_slice(&bytes),
                    GateOutput::Event(event) => out.extend_from_slice(&[b"<", event.as_ref(), b">"].concat()),
                }
            }
        }
        out.extend_from_slice(&gate.finish().unwrap_or_default());
        String::from_utf8(out).unwrap()
    }

    #[track_caller]
    fn check(primers: PrimerPolicy, whole: HoldPolicy, text: &str, shown: &str) {
        for first in 0..=text.len() {
            for last in first..=text.len() {
                let gate = EventGate::new(primers, whole, 1_000);
                assert_eq!(through(text, [first, last], gate), shown, "{text:?} cut at {first} and {last}");
            }
        }
    }

    /// As [`check`], for both policies, without regard to the events that come whole.
    #[track_caller]
    fn check_bytes(primers: PrimerPolicy, text: &str, passed: &str) {
        for whole in [HoldPolicy::Asking, HoldPolicy::Messages] {
            for first in 0..=text.len() {
                for last in first..=text.len() {
                    let out = through(text, [first, last], EventGate::new(primers, whole, 1_000));
                    assert_eq!(out.replace(['<', '>'], ""), passed, "{whole:?}: {text:?} cut at {first} and {last}");
                }
            }
        }
    }

    /// T-28.
    #[test]
    fn events_without_data_are_withheld_wherever_they_are_cut() {
        use PrimerPolicy::{Pass, Withhold};
        check_bytes(Withhold, "id: 1\ndata:\n\ndata: x\n\n", "data: x\n\n");
        check_bytes(Withhold, "id: 1\r\ndata: \r\n\r\ndata: x\r\n\r\n", "data: x\r\n\r\n");
        check_bytes(Withhold, "data: x\r\n\r\n", "data: x\r\n\r\n");
        check_bytes(Withhold, "id: 1\r\rdata: x\r\r", "data: x\r\r");
        check_bytes(Withhold, "retry: 5\n\n: c\n\ndata:x\n\n", ": c\n\ndata:x\n\n");
        check_bytes(Withhold, "data: x\ndata:\n\nid: 2\n\n", "data: x\ndata:\n\n");
        check_bytes(Pass, "id: 1\ndata:\n\ndata: x\n\n", "id: 1\ndata:\n\ndata: x\n\n");
        check_bytes(Withhold, "id: 1\ndata: half", "id: 1\ndata: half");
    }

    #[test]
    fn a_mark_at_the_start_is_no_part_of_the_first_event() {
        use PrimerPolicy::Withhold;
        let mark = "\u{feff}";
        for (sent, passed) in [("", ""), ("\n\n", "\n\n"), ("data: x\n\n", "data: x\n\n")] {
            check_bytes(Withhold, &format!("{mark}{sent}"), passed);
        }
        check(Withhold, HoldPolicy::Messages, &format!("{mark}data: {{}}\n\n"), "<data: {}\n\n>");
        // Only one mark is removed, and only at the start; a similar character stays.
        check_bytes(Withhold, &format!("{mark}{mark}data: x\n\ndata: y\n\n"), "data: y\n\n");
        check_bytes(Withhold, &format!("data: {mark}\n\n"), &format!("data: {mark}\n\n"));
        check_bytes(Withhold, "\u{fec0}data: x\n\ndata: y\n\n", "data: y\n\n");
    }

    #[test]
    fn only_events_that_are_wanted_come_whole() {
        let pass = PrimerPolicy::Pass;
        let array = "id: 1\ndata:\ndata:  [1,\ndata: 2]\n\n";
        for whole in [HoldPolicy::Asking, HoldPolicy::Messages] {
            check(pass, whole, array, &format!("<{array}>"));
        }
        check(pass, HoldPolicy::Asking, "data: {\"result\":1}\n\n", "data: {\"result\":1}\n\n");
        check(pass, HoldPolicy::Messages, ": c\n\nid: 1\ndata: {}\n\n", ": c\n\n<id: 1\ndata: {}\n\n>");
    }

    /// U57, MOD-21.
    #[test]
    fn a_stream_without_positions_has_the_same_events_wherever_they_stood() {
        let text =
            "id: 1\nretry: 5\n\n: c\n\nid:2\r\ndata: {}\r\nretry:7\r\ndata:\r\n\r\nid\ndata: x\nidea: y\nid: 3\n\n";
        let gate = || EventGate::new(PrimerPolicy::Unnumbered, HoldPolicy::Messages, 1_000);
        let shown = ": c\n\n<data: {}\r\ndata:\r\n\r\n><data: x\nidea: y\n\n>";
        assert_eq!(through(text, [0, 0], gate()), shown);
        for first in 0..=text.len() {
            for second in [first, text.len().min(first + 1), text.len().min(first + 5)] {
                let passed = through(text, [first, second], gate()).replace(['<', '>', '\r'], "");
                let lines: Vec<&str> = passed.lines().filter(|line| !line.is_empty()).collect();
                assert_eq!(lines, [": c", "data: {}", "data:", "data: x", "idea: y"], "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn an_event_is_complete_as_soon_as_its_last_byte_has_come() {
        let mut gate = EventGate::new(PrimerPolicy::Withhold, HoldPolicy::Messages, 1_000);
        for (piece, passed) in [("data: x\r\n\r", "data: x\r\n\r"), ("\n", "\n"), ("data: y\n\n", "data: y\n\n")] {
            let out: Vec<Bytes> = gate
                .feed(&Bytes::from_static(piece.as_bytes()))
                .unwrap()
                .into_iter()
                .map(|passage| match passage {
                    GateOutput::Through(bytes) | GateOutput::Event(bytes) => bytes,
                })
                .collect();
            assert_eq!(out.concat(), passed.as_bytes());
        }
    }

    #[test]
    fn an_event_that_is_wanted_whole_is_bounded_and_others_are_not() {
        let large = Bytes::from(format!("data: {}\n\n", "x".repeat(100_000)));
        let mut gate = EventGate::new(PrimerPolicy::Withhold, HoldPolicy::Messages, 1_000);
        assert_eq!(gate.feed(&large), Err(FramingError::EventTooLarge { max: 1_000 }));
        let large = Bytes::from(format!("data: {{\"result\":\"{}\"}}\n\n", "x".repeat(100_000)));
        let mut gate = EventGate::new(PrimerPolicy::Withhold, HoldPolicy::Asking, 1_000);
        let passed: usize = gate
            .feed(&large)
            .unwrap()
            .iter()
            .map(|passage| match passage {
                GateOutput::Through(bytes) | GateOutput::Event(bytes) => bytes.len(),
            })
            .sum();
        assert_eq!(passed, large.len());
    }

    #[test]
    fn a_large_event_without_anything_of_interest_goes_on_as_it_comes() {
        let is_of_interest = |held: &[u8]| memchr::memmem::find(held, b"?").is_some();
        let gate = || {
            EventGate::new(PrimerPolicy::Pass, HoldPolicy::Messages, 1_000).filtering(
                16,
                is_of_interest,
                MessageClassifier::may_ask,
            )
        };
        let text = "data: dull\n\ndata: a long dull one\n\ndata: an odd? one\n\nid: 7\ndata: x\n\n";
        let shown = "<data: dull\n\n>data: a long dull one\n\n<data: an odd? one\n\n><id: 7\ndata: x\n\n>";
        // With a later cut, the matching bytes come too late; a whole line is inspected as far as it has come.
        assert_eq!(through(text, [0, 0], gate()), shown);
        for cut in 0..=text.len() {
            let kept = through(text, [cut, cut], gate());
            assert_eq!(kept.replace(['<', '>'], ""), text, "cut at {cut}");
            assert!(kept.starts_with("<data: dull\n\n>data: a long dull one\n\n"), "cut at {cut}: {kept}");
        }
        let large = Bytes::from(format!("data: {}\n\n", "x".repeat(100_000)));
        let passed = gate().feed(&large).unwrap();
        assert_eq!(passed, [GateOutput::Through(large)], "the bound holds for kept bytes");
    }

    /// U47.
    #[test]
    fn an_event_comes_whole_behind_any_number_of_comments() {
        let event = "id: 7\ndata: [1]\n\n";
        for comment in [": still here\n", ":\n", "x: y\r\n", ": c\r", "odd\n"] {
            let comments = comment.repeat(200_000 / comment.len());
            for pieces in [7, 1_000, 60_000, 65_537, usize::MAX] {
                for whole in [HoldPolicy::Asking, HoldPolicy::Messages] {
                    let mut gate = EventGate::new(PrimerPolicy::Pass, whole, 1 << 20);
                    let text = Bytes::from(format!("id: 7\n{comments}data: [1]\n\n"));
                    let mut out = Vec::new();
                    for piece in text.chunks(pieces) {
                        out.extend(gate.feed(&Bytes::copy_from_slice(piece)).unwrap());
                    }
                    let Some(GateOutput::Event(last)) = out.pop() else { panic!("{comment:?} {pieces}") };
                    let fields: Vec<&[u8]> =
                        last.split(|byte| matches!(byte, b'\r' | b'\n')).filter(|line| is_field(line)).collect();
                    assert_eq!(fields.concat(), event.replace('\n', "").as_bytes(), "{comment:?} {pieces}");
                }
            }
        }
        let mut gate = EventGate::new(PrimerPolicy::Pass, HoldPolicy::Messages, 1_000);
        let ids = Bytes::from("id: 7\n".repeat(20_000));
        assert!(gate.feed(&ids).is_err(), "fields are bounded");
    }

    #[test]
    fn a_message_that_is_no_answer_is_kept_at_any_size() {
        let gate = || {
            EventGate::new(PrimerPolicy::Pass, HoldPolicy::Messages, 1_000).filtering(
                16,
                |_| false,
                MessageClassifier::may_ask,
            )
        };
        let padded = |text: &str| Bytes::from(format!("data: {}\n\n", text.replace("PAD", &"x".repeat(100))));
        let answer = padded(r#"{"id":1,"result":"PAD"}"#);
        assert_eq!(gate().feed(&answer), Ok(vec![GateOutput::Through(answer)]));
        for request in [r#"{"id":1,"method":"ping","params":"PAD"}"#, r#"{"id":1,"params":"PAD","method":"ping"}"#] {
            let request = padded(request);
            assert_eq!(gate().feed(&request), Ok(vec![GateOutput::Event(request)]));
        }
        let both = padded(r#"{"id":1,"result":"PAD","method":"ping"}"#);
        let mut gate = gate();
        let begun = gate.feed(&both.slice(..50)).unwrap().len() + gate.feed(&both.slice(50..60)).unwrap().len();
        assert_eq!(begun, 1, "its beginning has passed");
        assert_eq!(gate.feed(&both.slice(60..)), Err(FramingError::AsksTooLate));
    }

    #[test]
    fn only_possible_questions_come_whole_and_others_as_soon_as_their_kind_shows() {
        let (pass, asking) = (PrimerPolicy::Pass, HoldPolicy::Asking);
        let question = "id: 1\ndata: {\"method\":\ndata:\"roots/list\",\"id\":1}\n\n";
        let answer = "data: {\"result\":\n: \"\ndata: {\"method\":\"roots/list\"}}\n\n";
        let array = "data:[{}]\n\n";
        check(pass, asking, &format!("{question}{answer}{array}"), &format!("<{question}>{answer}<{array}>"));
        check(PrimerPolicy::Withhold, asking, &format!("id: 2\n\n{answer}"), answer);
        let mut gate = EventGate::new(pass, asking, 100);
        let begun = Bytes::from_static(b"data: {\"id\":1,\"result\":{\"a\":\"");
        assert_eq!(gate.feed(&begun), Ok(vec![GateOutput::Through(begun)]));
        let large = Bytes::from("x".repeat(100_000));
        assert_eq!(gate.feed(&large), Ok(vec![GateOutput::Through(large)]));
        let hidden = Bytes::from_static(b"\"},\"method\":\"roots/list\"}\n\n");
        assert_eq!(gate.feed(&hidden), Err(FramingError::TwoMessagesInOne));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_added_where_everything_passes(
            text in "(data: ?|id: ?|:|x|\\[|\n|\r|\r\n){0,40}",
            cuts in prop::array::uniform2(0_usize..200),
        ) {
            let cuts = cuts.map(|cut| cut.min(text.len()));
            let gate = EventGate::new(PrimerPolicy::Pass, HoldPolicy::Messages, 1_000);
            prop_assert_eq!(through(&text, cuts, gate).replace(['<', '>'], ""), text);
        }

        #[test]
        fn forwarded_text_reads_as_the_events_with_data(
            text in "(data: ?|id: ?|:|x|\n|\r\n){0,40}\n\n",
            cuts in prop::array::uniform2(0_usize..200),
        ) {
            let cuts = cuts.map(|cut| cut.min(text.len()));
            let read = |text: &str| -> Vec<MessageText> {
                let events = SseDecoder::new(10_000).feed(text.as_bytes()).unwrap();
                events.into_iter().map(|event| event.data).filter(|data| !data.trim_ascii().is_empty()).collect()
            };
            let gate = EventGate::new(PrimerPolicy::Withhold, HoldPolicy::Messages, 1_000);
            prop_assert_eq!(read(&through(&text, cuts, gate).replace(['<', '>'], "")), read(&text));
        }
    }
}
