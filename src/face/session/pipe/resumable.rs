//! Gives piped calls a resumable stream (T-81), with event ids from 2025-03-26 on and a replay buffer: used if the upstream
//! sends no response head for 15 s, or its transport has no stream for each call. Other streams are forwarded unchanged.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::face::answer::{Addressee, event_stream};
use crate::face::call_stream::replay::{ReplayStream, can_resume};
use crate::face::call_stream::replay_buffer::{ReplayItem, ReplayWriter, UnreadPolicy};
use crate::face::call_stream::request_answer::{LateAnswer, RequestAnswer, brings_answer};
use crate::face::call_stream::{self, CallMessages as _, Silence};
use crate::face::http::{FaceResponse, ResponseBody, broken_body, empty_body, full_body};
use crate::face::lazy_timer::within;
use crate::face::named_item::NamedItem;
use crate::face::sealed::SessionToken;
use crate::face::session::SessionFaceState;
use crate::face::session::in_flight::RequestStage;
use crate::upstream::body::{GatedBody, GatedPart, PartlyReadBody};
use crate::upstream::reply;
use crate::wire::framing::{BodyPart, EventGate, HoldPolicy, PrimerPolicy};

/// How long a call continues without a reader.
const DESERTED_MAX: Duration = Duration::from_secs(5 * 60);
/// How long a stream may take to turn out as a response only, which needs no ids and is not buffered.
const ALONE_MAX: Duration = Duration::from_millis(100);
/// The largest buffered response of an upstream over HTTP. A larger one is forwarded once, as it arrives.
const KEPT_BYTES_MAX: usize = 1024 * 1024;

pub(super) struct RequestOrigin {
    pub(super) token: Arc<SessionToken>,
    /// The tool of a call; `None` for other requests, which are short.
    pub(super) tool: Option<Arc<str>>,
}

/// Sends the response, or moves the call to a stream of the gateway.
pub(super) async fn respond(
    shared: &Arc<SessionFaceState>,
    origin: RequestOrigin,
    mut late: LateAnswer,
    addressee: Addressee,
) -> FaceResponse {
    let is_kept = |tool: &Arc<str>| NamedItem::Tool(Arc::clone(tool)).is_short();
    if !origin.tool.as_ref().is_some_and(is_kept)
        || !addressee.accepted.takes_stream()
        || !can_resume(origin.token.client_version)
    {
        return call_stream::respond(late, addressee).await;
    }
    match within(Silence::begin().ends_at(), &mut late.answering).await {
        Some(RequestAnswer::Events(body)) if shared.served.channel.makes_streams() => {
            Box::pin(begin_made(shared, origin, body, addressee)).await
        }
        Some(answer) => answer.into_response(&addressee),
        None => {
            let first = late.life_sign().await;
            let source = ResumableSource::Answer(late, addressee.clone());
            Box::pin(begin(shared, origin, Some(first), source, addressee)).await
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "it is moved once, into the task that reads it")]
enum ResumableSource {
    Answer(LateAnswer, Addressee),
    Events(GatedEvents),
}

/// Buffers a stream that was made from another transport, unless it is only a response.
async fn begin_made(
    shared: &Arc<SessionFaceState>,
    origin: RequestOrigin,
    body: ResponseBody,
    addressee: Addressee,
) -> FaceResponse {
    let mut events = GatedEvents::of(body);
    let Ok(first) = tokio::time::timeout(ALONE_MAX, events.next()).await else {
        return begin(shared, origin, None, ResumableSource::Events(events), addressee).await;
    };
    let first = match first {
        Some(Ok(first)) => first,
        None => return event_stream(empty_body()),
        Some(Err(error)) => return event_stream(broken_body(error)),
    };
    let is_answer =
        addressee.id.as_ref().is_some_and(|id| first.event().is_some_and(|event| brings_answer(&event.data, id)));
    if is_answer {
        return event_stream(full_body(first));
    }
    begin(shared, origin, Some(first), ResumableSource::Events(events), addressee).await
}

async fn begin(
    shared: &Arc<SessionFaceState>,
    RequestOrigin { token, tool }: RequestOrigin,
    first: Option<BodyPart>,
    source: ResumableSource,
    addressee: Addressee,
) -> FaceResponse {
    let Some(id) = &addressee.id else { return event_stream(empty_body()) };
    let (writer, mut reader) = shared.open.replays.begin((shared.served.random)());
    let stream = reader.stream();
    let (event, number) = match first {
        Some(first) => {
            writer.write(first, UnreadPolicy::Kept).await;
            match reader.next().await {
                Some(ReplayItem::Event(event, number)) => (event, number),
                Some(ReplayItem::Last(..) | ReplayItem::Rest(_)) | None => return event_stream(empty_body()),
            }
        }
        // The head is sent with some bytes.
        None if !token.client_version.traits().has_primers => (BodyPart::comment(), None),
        None => (BodyPart::default(), None),
    };
    let held = shared.open.in_flight.enter(token.nonce, id, RequestStage::Held);
    let response = ReplayStream::new(reader, tool.map(NamedItem::Tool)).begin(
        &shared.open.replays,
        &shared.served,
        &token,
        addressee,
        event,
        number,
    );
    let pumping = {
        let (shared, nonce) = (Arc::clone(shared), token.nonce);
        async move {
            tokio::select! {
                biased;
                () = held.cancelled().cancelled() => (),
                () = pump(&writer, source, &shared) => (),
                () = writer.deserted(DESERTED_MAX) => tracing::debug!("a call was released: its client did not resume the stream"),
            }
            writer.close();
            shared.open.replays.answered(nonce, stream);
        }
    };
    let stop = shared.served.scope.stop.clone();
    shared.served.scope.tracker.spawn(stop.run_until_cancelled_owned(Box::pin(pumping)));
    response
}

async fn pump(writer: &ReplayWriter, source: ResumableSource, shared: &SessionFaceState) {
    let mut events = match source {
        ResumableSource::Events(events) => events,
        ResumableSource::Answer(mut late, addressee) => {
            let answer = loop {
                match within(Silence::begin().ends_at(), &mut late.answering).await {
                    Some(answer) => break answer,
                    None => writer.write(late.life_sign().await, UnreadPolicy::Dropped).await,
                };
            };
            let RequestAnswer::Events(body) = answer else {
                if let Some(event) = answer.into_events(&addressee) {
                    keep(writer, event).await;
                }
                return;
            };
            if !shared.served.channel.makes_streams() {
                // The rest comes from the upstream, with or without event ids.
                return writer.hand_over(body).await;
            }
            GatedEvents::of(body)
        }
    };
    while let Some(Ok(event)) = events.next().await {
        writer.write(event, UnreadPolicy::Kept).await;
    }
}

/// Buffers the only event of a response, and its error if it broke, unless it is too large.
async fn keep(writer: &ReplayWriter, mut event: ResponseBody) {
    let (mut parts, mut length) = (VecDeque::new(), 0);
    loop {
        let Ok(next) = reply::next_part(&mut event, None).await else { return };
        let Some(part) = next else { break };
        length += part.len();
        parts.push_back(part);
        if length > KEPT_BYTES_MAX {
            return writer.hand_over(ResponseBody::new(PartlyReadBody { parts, rest: event })).await;
        }
    }
    if parts.len() > 1 {
        let mut whole = Vec::with_capacity(length);
        parts.drain(..).for_each(|part| whole.extend_from_slice(&part.into_bytes()));
        parts.push_back(BodyPart::Bytes(whole.into()));
    }
    if let Some(whole) = parts.pop_front() {
        writer.write(whole, UnreadPolicy::Kept).await;
    }
}

struct GatedEvents(GatedBody<ResponseBody>);

impl GatedEvents {
    /// The stream's producer has limited its events.
    fn of(body: ResponseBody) -> Self {
        Self(GatedBody::new(body, EventGate::new(PrimerPolicy::Pass, HoldPolicy::Messages, usize::MAX)))
    }

    /// The next event or comment; `None` at the end. Cancel safe.
    async fn next(&mut self) -> Option<io::Result<BodyPart>> {
        let gated = self.0.next().await?;
        Some(gated.map(|(GatedPart::Through(part) | GatedPart::Event(part))| part))
    }
}
