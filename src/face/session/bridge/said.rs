//! The client's end of a call that a driver follows: JSON, an event stream, or the rest of one that was lost.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use http::StatusCode;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use super::call::{Ending, fault};
use super::log::{Reader, Word, event_id, read_event_id};
use super::{Session, Shared};
use crate::dialect::faults::gateway_error;
use crate::face::answer::{Addressee, accepted, event_stream};
use crate::face::http::{AcceptedTypes, Response, ResponseBody, empty_body};
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::framing::sse_message;
use crate::wire::{ProtocolVersion, RequestId, envelope};

/// The client's end of a call. Dropping it leaves the call alone.
pub(in crate::face::session) struct Said {
    words: Reader,
}

/// What one of several calls has to say.
pub(in crate::face) enum Saying {
    /// As it stands in a stream.
    Event(Bytes),
    /// The answer, as a message.
    Last(Bytes),
}

impl Saying {
    pub(in crate::face::session) fn last(id: &RequestId, ending: &Ending) -> Self {
        Self::Last(last_message(Some(id), ending))
    }

    pub(in crate::face) fn into_event(self) -> Bytes {
        match self {
            Self::Event(event) => event,
            Self::Last(message) => sse_message(&message),
        }
    }
}

impl Said {
    pub(super) const fn new(words: Reader) -> Self {
        Self { words }
    }

    /// The whole answer: JSON where nothing comes before it in time.
    pub(in crate::face::session) async fn respond(
        mut self,
        shared: &Arc<Shared>,
        session: &Session,
        addressee: Addressee,
    ) -> Response {
        match self.next().await {
            Some(Word::Last(Ok(result), _)) => addressee.result(result),
            Some(Word::Last(Err(error), _)) => addressee.error(StatusCode::OK, &error),
            Some(first @ Word::Event(..)) => {
                let version = session.token.client_version;
                let mut opening = Bytes::new();
                let mut stream = None;
                if let Some(id) = addressee.id.clone().filter(|_| can_resume(version)) {
                    let number = self.words.stream();
                    shared.desk.logs.keep(session.token.nonce, id, &self.words);
                    stream = Some(number);
                    if version >= ProtocolVersion::V2025_11_25 {
                        // From here on the stream can be taken up; older clients would read the empty data as JSON.
                        opening = Bytes::from(format!("id: {}\ndata:\n\n", event_id(number, 0)));
                    }
                }
                self.stream(Some((opening, first)), addressee.id, stream)
            }
            Some(Word::Rest(rest)) => event_stream(rest),
            // A cancelled request has no response (LEG-14), but HTTP wants one.
            None if addressee.accepted == AcceptedTypes::Json => accepted(),
            None => event_stream(empty_body()),
        }
    }

    /// Keeps what is said for a client that loses its stream.
    pub(super) fn keep(&self, shared: &Shared, nonce: u128, request: RequestId) {
        shared.desk.logs.keep(nonce, request, &self.words);
    }

    /// All that is said, the answer last; a request that was cancelled has none.
    pub(in crate::face::session) fn sayings(self, id: RequestId) -> impl Stream<Item = Saying> + Send {
        stream::unfold((Some(self), id), |(said, id)| async move {
            let mut said = said?;
            Some(match said.next().await? {
                Word::Event(event, _) => (Saying::Event(event), (Some(said), id)),
                Word::Last(ending, _) => (Saying::last(&id, &ending), (None, id)),
                // Of streams that are passed on, which stand alone.
                Word::Rest(_) => return None,
            })
        })
    }

    /// The next word; `None` where the request was cancelled, and after the last.
    pub(super) async fn next(&mut self) -> Option<Word> {
        match self.words.next().await {
            // The driver is gone without a word, by a bug or with the process.
            None if self.words.is_orphan() => {
                // Behind all others, however many there were.
                Some(Word::Last(fault(Reason::Internal), u64::MAX))
            }
            word => word,
        }
    }

    /// `stream` is what its events are called by, where they have names.
    pub(super) fn stream(self, first: Option<(Bytes, Word)>, id: Option<RequestId>, stream: Option<u128>) -> Response {
        let named = move |message: Bytes, number: Option<u64>| match stream.zip(number) {
            Some((stream, number)) => {
                Bytes::from([format!("id: {}\n", event_id(stream, number)).as_bytes(), &message].concat())
            }
            None => message,
        };
        let events = stream::unfold((Some(Left::Words(self)), first), move |(left, first)| {
            let id = id.clone();
            async move {
                let mut said = match left? {
                    Left::Words(said) => said,
                    Left::Rest(mut rest) => {
                        let frame = rest.frame().await?;
                        return Some((frame, (Some(Left::Rest(rest)), None)));
                    }
                };
                let (opening, word) = match first {
                    Some((opening, first)) => (opening, first),
                    None => (Bytes::new(), said.next().await?),
                };
                let (piece, more) = match word {
                    Word::Event(event, number) => (named(event, number), Some(Left::Words(said))),
                    Word::Last(ending, number) => {
                        (named(sse_message(&last_message(id.as_ref(), &ending)), Some(number)), None)
                    }
                    Word::Rest(rest) => (Bytes::new(), Some(Left::Rest(rest))),
                };
                let piece = if opening.is_empty() { piece } else { [opening, piece].concat().into() };
                Some((Ok::<_, io::Error>(Frame::data(piece)), (more, None)))
            }
        });
        event_stream(StreamBody::new(events).boxed_unsync())
    }
}

/// What is left of a stream.
enum Left {
    Words(Said),
    Rest(ResponseBody),
}

/// Whether streams of this version have event ids. There is no other way to a version before but streams without.
pub(super) fn can_resume(version: ProtocolVersion) -> bool {
    version >= ProtocolVersion::V2025_03_26
}

/// Takes up the stream of a call from behind this event (LEG-09); `None` for one that is not kept, or never was.
pub(in crate::face::session) fn take_up(shared: &Shared, session: &Session, last_event: &str) -> Option<Response> {
    let (stream, number) = read_event_id(last_event)?;
    let (request, words) = shared.desk.logs.take_up((session.token.nonce, stream), number)?;
    Some(Said { words }.stream(None, Some(request), Some(stream)))
}

fn last_message(id: Option<&RequestId>, ending: &Ending) -> Bytes {
    match (id, ending) {
        (Some(id), Ok(result)) => envelope::result(id, result),
        (_, Err(error)) => envelope::error(id, error),
        (None, Ok(_)) => envelope::error(None, &gateway_error(&GatewayFault::new(Reason::Internal, Executed::Unknown))),
    }
}
