//! Invariants of `wire` for any bytes. The fuzz targets search for bytes that break them; the replay of the corpus
//! checks them for the kept inputs.

use std::fmt;

use bytes::Bytes;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use taskgate::dialect::inputs;
use taskgate::task::{Answer, InputKey};
use taskgate::upstream::header_annotations::{self, HeaderAnnotations};
use taskgate::wire::envelope::{self, EnvelopeError, Message, Params};
use taskgate::wire::framing::{
    BodyPart, EventGate, FramingError, GateOutput, HoldPolicy, LineDecoder, PrimerPolicy, SseDecoder, SseEvent,
};
use taskgate::wire::{Object, Payload, ScanError, ScanLimits, canonical};

/// Reads a message, checks that it is written back unchanged, and names its kind.
pub fn envelope(text: &[u8]) -> &'static str {
    let text = Bytes::copy_from_slice(text);
    let batch = envelope::read_batch(&text, ScanLimits::CLIENT, 16);
    let message = match envelope::read(&text, ScanLimits::CLIENT) {
        Ok(message) => message,
        Err(EnvelopeError::Batch) => return "refused",
        Err(EnvelopeError::Scan { .. } | EnvelopeError::Shape { .. }) => {
            assert!(batch.is_err());
            return "refused";
        }
    };
    assert_eq!(batch.map(|messages| messages.len()), Ok(1));
    let (kind, written) = match &message {
        Message::Request(request) => {
            ("request", envelope::request(&request.id, &request.method, payload(&request.params)))
        }
        Message::Notification(call) => ("notification", envelope::notification(&call.method, payload(&call.params))),
        Message::Response(response) => {
            response.result.iter().for_each(members);
            let written = match (&response.id, &response.outcome) {
                (Some(id), Ok(result)) => envelope::result(id, result),
                (id, Err(error)) => envelope::error(id.as_ref(), error),
                (None, Ok(_)) => return "response",
            };
            ("response", written)
        }
    };
    let again = envelope::read(&written, ScanLimits::CLIENT).expect("the written message reads back");
    let rewritten = match &again {
        Message::Request(request) => envelope::request(&request.id, &request.method, payload(&request.params)),
        Message::Notification(call) => envelope::notification(&call.method, payload(&call.params)),
        Message::Response(response) => match (&response.id, &response.outcome) {
            (Some(id), Ok(result)) => envelope::result(id, result),
            (id, Err(error)) => envelope::error(id.as_ref(), error),
            (None, Ok(_)) => unreachable!("an answer with an id keeps it"),
        },
    };
    assert_eq!(written, rewritten);
    kind
}

fn payload(params: &Params) -> Option<&Payload> {
    match params {
        Params::Absent => None,
        Params::Object(object) => {
            members(object);
            Some(object.payload())
        }
        Params::Other(payload) => Some(payload),
    }
}

/// The members of an object are those that a tree of it has, and any of them can be taken out.
fn members(object: &Object) {
    let mut tree = match object.payload().read() {
        Ok(Tree(Value::Object(tree))) => tree,
        Ok(Tree(_)) => panic!("not an object"),
        Err(error) => return assert!(is_lone_surrogate_error(&error), "{error}"),
    };
    assert_eq!(object.entries().count(), tree.len());
    for (key, value) in object.entries() {
        assert_eq!(object.get(&key).as_ref(), Some(&value), "{key}");
        assert_eq!(tree_of(&value).as_ref(), tree.get(key.as_ref()), "{key}");
        if let Some(inner) = object.get_object(&key) {
            assert_eq!(inner.keys().count(), tree[key.as_ref()].as_object().map_or(0, Map::len));
        }
    }
    if let Some(key) = object.keys().next() {
        let edited = object.edit().remove(&key).set("\u{e000}", Payload::of(&1)).finish();
        tree.remove(key.as_ref());
        tree.insert("\u{e000}".to_owned(), Value::from(1));
        let edited = Payload::parse(edited.bytes(), ScanLimits::UPSTREAM).expect("an edit is JSON");
        assert_eq!(tree_of(&edited), Some(Value::Object(tree)));
    }
}

/// Compares the scan with `serde_json`: a text that one accepts the other reads to the same value, and the scan refuses
/// every text that `serde_json` refuses. Returns whether a client may send the text.
pub fn scan(text: &[u8]) -> &'static str {
    // `serde_json` stops at 128 levels.
    let limits = ScanLimits { depth_max: 100, ..ScanLimits::UPSTREAM };
    let text = Bytes::copy_from_slice(text);
    let reference = serde_json::from_slice::<Tree>(&text);
    match (Payload::parse(&text, limits), reference) {
        (Ok(payload), Ok(Tree(value))) => {
            // Its canonical form says the same, and is its own.
            let plain = Payload::parse(&canonical(&payload).into(), limits).expect("the canonical form is JSON");
            assert_eq!(tree_of(&plain).as_ref(), Some(&value));
            assert_eq!(canonical(&plain), plain.bytes().as_ref());
            assert_eq!(tree_of(&payload), Some(value));
            assert_eq!(serde_json::to_string(&payload).ok().as_deref(), Some(payload.as_str()));
            Object::of(&payload).iter().for_each(members);
        }
        (Ok(payload), Err(error)) if is_lone_surrogate_error(&error) => {
            Object::of(&payload).iter().for_each(members);
        }
        // Next to the largest double `serde_json` rounds up to infinity where correct rounding does not.
        (Ok(_), Err(error)) => assert!(error.to_string().starts_with("number out of range"), "{error}"),
        (Err(ScanError::DuplicateKey { .. } | ScanError::TooDeep { .. }), Ok(_)) | (Err(_), Err(_)) => (),
        (Err(ScanError::NumberRange { .. }), Ok(_)) => panic!("a number that serde_json reads"),
        (Err(error), Ok(_)) => panic!("{error}"),
    }
    if Payload::parse(&text, ScanLimits::CLIENT).is_ok() { "accepted" } else { "refused" }
}

fn tree_of(payload: &Payload) -> Option<Value> {
    payload.read::<Tree>().ok().map(|Tree(value)| value)
}

/// A tree in which every key is a key. `Value` by itself reads an object whose only key is `serde_json`'s private name
/// for raw values as the text that stands there.
struct Tree(Value);

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor).map(Self)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Tree(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, Tree(value))) = members.next_entry::<String, _>()? {
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// Whether `serde_json` stopped at half of a surrogate pair, which the scan carries in values.
fn is_lone_surrogate_error(error: &serde_json::Error) -> bool {
    let text = error.to_string();
    text.contains("surrogate") || text.contains("hex escape")
}

/// Decodes a stream whole, byte by byte and in threes: always the same. Returns how many events
/// there were within a bound of 4096 bytes.
pub fn sse(stream: &[u8]) -> usize {
    for event_bytes_max in [32, 4096] {
        let whole = decode(stream, usize::MAX, event_bytes_max);
        assert_eq!(decode(stream, 1, event_bytes_max), whole);
        assert_eq!(decode(stream, 3, event_bytes_max), whole);
    }
    let (events, _) = decode(stream, usize::MAX, 4096);
    for event in &events {
        let (again, error) = decode(&BodyPart::message(event.data.clone()).into_bytes(), usize::MAX, usize::MAX);
        assert!(error.is_none() && again.len() == 1);
    }
    gate(stream);
    events.len()
}

/// A gate forwards a stream unchanged, but for a mark at its start, and withholds only lines without meaning.
fn gate(stream: &[u8]) {
    let bare = stream.strip_prefix(b"\xef\xbb\xbf").unwrap_or(stream);
    for piece in [1, 3, usize::MAX] {
        let gate = EventGate::new(PrimerPolicy::Pass, HoldPolicy::Messages, usize::MAX);
        assert_eq!(through(stream, piece, gate), bare);
    }
    let passed = through(stream, usize::MAX, EventGate::new(PrimerPolicy::Withhold, HoldPolicy::Messages, usize::MAX));
    let said = |stream: &[u8]| -> Vec<Bytes> {
        let (events, _) = decode(stream, usize::MAX, usize::MAX);
        events.into_iter().map(|event| event.data.into_bytes()).filter(|data| !data.trim_ascii().is_empty()).collect()
    };
    // A second mark at the start is no mark: the first is put back for the next reader.
    assert_eq!(said(&[b"\xef\xbb\xbf", &*passed].concat()), said(stream));
}

fn through(stream: &[u8], piece: usize, mut gate: EventGate) -> Vec<u8> {
    let pieces: Vec<_> = stream.chunks(piece).map(Bytes::copy_from_slice).collect();
    let passages = pieces.iter().flat_map(|piece| gate.feed(piece).expect("nothing is too large"));
    let mut passed: Vec<u8> =
        passages.flat_map(|(GateOutput::Through(bytes) | GateOutput::Event(bytes))| bytes).collect();
    passed.extend(gate.finish().unwrap_or_default());
    passed
}

/// Cuts text into lines whole, byte by byte and in threes: always the same, and the lines that there are. Returns how
/// many.
pub fn lines(text: &[u8]) -> usize {
    let cut = |piece: usize, line_bytes_max: usize| {
        let mut decoder = LineDecoder::new(line_bytes_max);
        let mut lines = Vec::new();
        for piece in text.chunks(piece).chain([[].as_slice()]) {
            match decoder.feed(piece) {
                Ok(more) => lines.extend(more),
                Err(_) => return (lines, false),
            }
        }
        (lines, true)
    };
    for line_bytes_max in [8, usize::MAX] {
        let whole = cut(usize::MAX, line_bytes_max);
        assert_eq!(cut(1, line_bytes_max), whole);
        assert_eq!(cut(3, line_bytes_max), whole);
    }
    let ended = text.iter().rposition(|byte| *byte == b'\n').map_or(&[][..], |last| &text[..last]);
    let expected = ended.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let expected = expected.map(|line| line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line));
    let expected: Vec<_> = expected.filter(|line| !line.is_empty()).collect();
    let (found, _) = cut(usize::MAX, usize::MAX);
    assert_eq!(found, expected);
    found.len()
}

/// Reads the header annotations of a schema. The rest, without them, is still a schema.
pub fn schema(text: &[u8]) -> &'static str {
    let Ok(schema) =
        Payload::parse(&Bytes::copy_from_slice(text), ScanLimits { depth_max: 100, ..ScanLimits::UPSTREAM })
    else {
        return "refused";
    };
    match header_annotations::read(&schema) {
        HeaderAnnotations::Valid(found) if found.is_empty() => "none",
        HeaderAnnotations::Valid(_) => "valid",
        HeaderAnnotations::Stripped { schema: stripped, kept } => {
            let again = Payload::parse(stripped.bytes(), ScanLimits::UPSTREAM).expect("the rest is JSON");
            assert_eq!(header_annotations::read(&again), HeaderAnnotations::Valid(kept));
            // A text with half of a surrogate pair has no tree.
            if let (Some(mut before), Some(mut after)) = (tree_of(&schema), tree_of(&again)) {
                [&mut before, &mut after].into_iter().for_each(bare);
                assert_eq!(before, after, "all else stays");
            }
            "stripped"
        }
    }
}

/// Takes out everything of an annotation's name, schema or not.
fn bare(tree: &mut Value) {
    match tree {
        Value::Object(members) => {
            members.remove("x-mcp-header");
            members.values_mut().for_each(bare);
        }
        Value::Array(items) => items.iter_mut().for_each(bare),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => (),
    }
}

/// Reads `inputResponses`: each answer under a key as the gateway makes them, and no other. Says how that went.
pub fn answers(text: &[u8]) -> String {
    let Ok(payload) = Payload::parse(&Bytes::copy_from_slice(text), ScanLimits::CLIENT) else {
        return "refused".into();
    };
    let Some(params) = Object::of(&payload) else { return "refused".into() };
    let Ok(found) = inputs::responses(&params) else { return "wrong".into() };
    let all = params.get_object("inputResponses");
    let made = |number: u32| format!("r{number}");
    let named = all.iter().flat_map(Object::entries).filter_map(|(key, value)| {
        let number: u32 = key.strip_prefix('r')?.parse().ok()?;
        (made(number) == *key).then_some((InputKey(number), value))
    });
    let named: Vec<_> = named.collect();
    assert_eq!(named.len(), found.len());
    for (key, value) in named {
        let Answer::Result(answer) = &found[&key] else { panic!("an answer is a result") };
        if Object::of(&value).is_none_or(|value| !value.contains("_meta")) {
            assert_eq!(tree_of(answer), tree_of(&value));
        }
    }
    found.len().to_string()
}

fn decode(stream: &[u8], piece: usize, event_bytes_max: usize) -> (Vec<SseEvent>, Option<FramingError>) {
    let mut decoder = SseDecoder::new(event_bytes_max);
    let mut events = Vec::new();
    // An error may come with the call after the one that met it.
    for piece in stream.chunks(piece).chain([[].as_slice()]) {
        match decoder.feed(piece) {
            Ok(more) => events.extend(more),
            Err(error) => return (events, Some(error)),
        }
    }
    (events, None)
}
