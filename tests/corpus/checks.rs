//! What must hold of `wire` for any bytes at all. The fuzz targets look for bytes that break it; the
//! replay of the corpus asserts it on those kept from earlier.

use bytes::Bytes;
use serde_json::Value;
use taskgate::wire::envelope::{self, EnvelopeError, Message, Params};
use taskgate::wire::framing::{FramingError, SseDecoder, SseEvent, sse_message};
use taskgate::wire::{Object, Payload, ScanError, ScanLimits};

/// Reads a message, checks that what was read is written back, and names its kind.
pub(crate) fn envelope(text: &[u8]) -> &'static str {
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
    let again = envelope::read(&written, ScanLimits::CLIENT).expect("what is written reads back");
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
    let Value::Object(mut tree) = object.payload().read().expect("payloads are JSON") else { panic!("not an object") };
    assert_eq!(object.keys().count(), tree.len());
    for key in object.keys() {
        let value = object.get(&key).expect("a key has a value");
        assert_eq!(value.read::<Value>().ok().as_ref(), tree.get(key.as_ref()), "{key}");
        if let Some(inner) = object.get_object(&key) {
            assert_eq!(inner.keys().count(), tree[key.as_ref()].as_object().map_or(0, serde_json::Map::len));
        }
    }
    if let Some(key) = object.keys().next() {
        let edited = object.edit().remove(&key).set("\u{e000}", Payload::of(&1)).finish();
        tree.remove(key.as_ref());
        tree.insert("\u{e000}".to_owned(), Value::from(1));
        let edited = Payload::parse(edited.bytes(), ScanLimits::UPSTREAM).expect("an edit is JSON");
        assert_eq!(edited.read::<Value>().ok(), Some(Value::Object(tree)));
    }
}

/// Compares the scan with `serde_json`: what one accepts the other reads to the same, and what
/// `serde_json` refuses the scan refuses. Says whether a client may send the text.
pub(crate) fn scan(text: &[u8]) -> &'static str {
    // `serde_json` stops at 128 levels.
    let limits = ScanLimits { depth_max: 100, ..ScanLimits::UPSTREAM };
    let text = Bytes::copy_from_slice(text);
    let reference = serde_json::from_slice::<Value>(&text);
    match (Payload::parse(&text, limits), reference) {
        (Ok(payload), Ok(value)) => {
            assert_eq!(payload.read::<Value>().ok(), Some(value));
            assert_eq!(serde_json::to_string(&payload).ok().as_deref(), Some(payload.as_str()));
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

/// Decodes a stream whole, byte by byte and in threes: always the same. Returns how many events
/// there were within a bound of 4096 bytes.
pub(crate) fn sse(stream: &[u8]) -> usize {
    for event_bytes_max in [32, 4096] {
        let whole = decode(stream, usize::MAX, event_bytes_max);
        assert_eq!(decode(stream, 1, event_bytes_max), whole);
        assert_eq!(decode(stream, 3, event_bytes_max), whole);
    }
    let (events, _) = decode(stream, usize::MAX, 4096);
    for event in &events {
        let (again, error) = decode(&sse_message(&event.data), usize::MAX, usize::MAX);
        assert!(error.is_none() && again.len() == 1);
    }
    events.len()
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
