//! Calls in the pipe whose stream is the gateway's own: where the upstream gives no head for long, or speaks a transport
//! that knows no streams of one call (T-81).
//!
//! Such a stream has event ids from 2025-03-26 on, and is kept in the same log as that of a bridged call: a client that
//! lost it takes it up by its `Last-Event-ID`, and the call goes on meanwhile, for as long as an answer would be kept.
//! Streams that come from an upstream pass as they are: what they can be taken up by is the upstream's to say.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use super::replay::{Said, can_resume};
use super::replay_buffer::{Unheard, Word, Writer};
use crate::face::answer::{Addressee, event_stream};
use crate::face::call_stream::answer::{Answer, Late};
use crate::face::call_stream::silence::Silence;
use crate::face::call_stream::{self, CallMessages as _};
use crate::face::http::{Response, ResponseBody, empty_body, full_body};
use crate::face::pipe::edit::Gated;
use crate::face::pipe::read::{self, Resumed};
use crate::face::sealed::SessionToken;
use crate::face::session::Shared;
use crate::face::session::in_flight::RequestStage;
use crate::wire::ProtocolVersion;
use crate::wire::framing::{EventGate, Passage, Primers, Whole, read_event, sse_comment};

/// How long a call goes on that nobody reads.
const DESERTED_MAX: Duration = Duration::from_secs(5 * 60);
/// How long a stream out of another transport is waited for to be the answer alone: then it needs no names, and nothing
/// of it is kept.
const ALONE_MAX: Duration = Duration::from_millis(100);
/// Largest answer of an upstream over HTTP that is kept. A larger one goes out as it comes, once.
const KEPT_BYTES_MAX: usize = 1024 * 1024;

/// Who made a request.
pub(in crate::face) struct Whose {
    pub(in crate::face) token: Arc<SessionToken>,
    /// Whether it is a `tools/call`: nothing else takes long.
    pub(in crate::face) is_call: bool,
}

/// Answers as soon as there is an answer, or holds the call on a stream of the gateway's own.
pub(in crate::face) async fn respond(
    shared: &Arc<Shared>,
    whose: Whose,
    mut late: Late,
    addressee: Addressee,
) -> Response {
    if !whose.is_call || !addressee.accepted.takes_stream() || !can_resume(whose.token.client_version) {
        return call_stream::respond(late, addressee).await;
    }
    match Silence::begin().wait(&mut late.answering).await {
        Some(Answer::Events(body)) if shared.served.conduit.makes_streams() => {
            Box::pin(begin_made(shared, whose, body, addressee)).await
        }
        Some(answer) => answer.into_response(&addressee),
        None => {
            let first = late.sign().await;
            let source = Source::Answer(late, addressee.clone());
            Box::pin(begin(shared, whose, (Some(first), source), addressee)).await
        }
    }
}

/// Where what is said comes from.
enum Source {
    Answer(Late, Addressee),
    Events(Events),
}

/// Holds a stream that was made out of what came over another transport, unless it is the answer alone.
async fn begin_made(shared: &Arc<Shared>, whose: Whose, body: ResponseBody, addressee: Addressee) -> Response {
    let mut events = Events::of(body);
    let Ok(first) = tokio::time::timeout(ALONE_MAX, events.next()).await else {
        return begin(shared, whose, (None, Source::Events(events)), addressee).await;
    };
    let first = match first {
        Some(Ok(first)) => first,
        None => return event_stream(empty_body()),
        Some(Err(error)) => {
            let broken = futures_util::stream::iter([Err::<Frame<Bytes>, _>(error)]);
            return event_stream(StreamBody::new(broken).boxed_unsync());
        }
    };
    let is_answer = addressee
        .id
        .as_ref()
        .is_some_and(|id| read_event(&first).is_some_and(|event| read::brings_answer(&event.data, id)));
    if is_answer {
        return event_stream(full_body(first));
    }
    begin(shared, whose, (Some(first), Source::Events(events)), addressee).await
}

/// Begins a stream that can be taken up again.
async fn begin(
    shared: &Arc<Shared>,
    Whose { token, .. }: Whose,
    (first, source): (Option<Bytes>, Source),
    addressee: Addressee,
) -> Response {
    let Some(id) = &addressee.id else { return event_stream(empty_body()) };
    let (words, mut reader) = shared.desk.replays.begin((shared.served.random)());
    let stream = reader.stream();
    let first = match first {
        Some(first) => {
            words.say(first, Unheard::Kept).await;
            match reader.next().await {
                Some(Word::Event(event, number)) => (event, number),
                Some(Word::Last(..) | Word::Rest(_)) | None => return event_stream(empty_body()),
            }
        }
        // The head goes out with something.
        None if token.client_version < ProtocolVersion::V2025_11_25 => (sse_comment(), None),
        None => (Bytes::new(), None),
    };
    let held = shared.in_flight.enter(token.nonce, id, RequestStage::Held);
    let response = Said::new(reader).begin(shared, &token, addressee, first);
    let pumping = {
        let (shared, nonce) = (Arc::clone(shared), token.nonce);
        async move {
            tokio::select! {
                biased;
                () = held.cancelled().cancelled() => (),
                () = pump(&words, source, &shared) => (),
                () = words.deserted(DESERTED_MAX) => tracing::debug!("nobody came back for a call"),
            }
            words.close();
            shared.desk.replays.answered((nonce, stream));
        }
    };
    let stop = shared.served.life.stop.clone();
    shared.served.life.tracker.spawn(stop.run_until_cancelled_owned(pumping));
    response
}

/// Writes down what is said, to its end.
async fn pump(words: &Writer, source: Source, shared: &Shared) {
    let mut events = match source {
        Source::Events(events) => events,
        Source::Answer(mut late, addressee) => {
            let answer = loop {
                match Silence::begin().wait(&mut late.answering).await {
                    Some(answer) => break answer,
                    None => words.say(late.sign().await, Unheard::Dropped).await,
                };
            };
            let Answer::Events(body) = answer else {
                if let Some(event) = answer.into_events(&addressee) {
                    keep(words, event).await;
                }
                return;
            };
            if !shared.served.conduit.makes_streams() {
                // From here on it is the upstream's, with event ids or without.
                return words.hand_over(body).await;
            }
            Events::of(body)
        }
    };
    while let Some(Ok(event)) = events.next().await {
        words.say(event, Unheard::Kept).await;
    }
}

/// Writes down the one event of an answer, unless it is too large to be kept.
async fn keep(words: &Writer, mut event: ResponseBody) {
    let (mut pieces, mut length) = (VecDeque::new(), 0);
    loop {
        match read::next(&mut event).await {
            Ok(Some(piece)) => {
                length += piece.len();
                pieces.push_back(piece);
                if length > KEPT_BYTES_MAX {
                    return words.hand_over(Resumed { pieces, rest: event }.boxed_unsync()).await;
                }
            }
            Ok(None) => break,
            // It cannot be completed, and its client sees that it breaks off.
            Err(_) => {
                let broken = futures_util::stream::iter([Err(io::Error::other("the answer broke off"))]);
                let rest = StreamBody::new(broken).boxed_unsync();
                return words.hand_over(Resumed { pieces, rest }.boxed_unsync()).await;
            }
        }
    }
    let mut whole = Vec::with_capacity(length);
    pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
    words.say(whole.into(), Unheard::Kept).await;
}

/// A stream, event by event, comments among them.
struct Events(Gated<ResponseBody>);

impl Events {
    /// Whoever made the stream has bounded its events.
    fn of(body: ResponseBody) -> Self {
        Self(Gated::new(body, EventGate::new(Primers::Pass, Whole::Messages, usize::MAX)))
    }

    /// The next event or comment; `None` at the end. Cancel safe.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        let passage = self.0.next().await?;
        Some(passage.map(|(Passage::Through(bytes) | Passage::Event(bytes))| bytes))
    }
}
