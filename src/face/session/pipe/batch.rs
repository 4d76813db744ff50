//! Forwards batches of 2025-03-26 clients message by message, as upstreams never get any (UPC-26).
//!
//! The responses are sent together.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::StatusCode;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Frame;

use super::{OneWayKind, PipeForward, PipedCall, PipedMessage, PipedRequest, note, one_way_messages};
use crate::answer_budget::{AnswerShare, as_one_request};
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::face::answer::{Addressee, addressee, bare, event_stream};
use crate::face::array_answer;
use crate::face::call_stream;
use crate::face::call_stream::replay::BatchedMessage;
use crate::face::call_stream::request_answer::{AnswerContent, LateAnswer, RequestAnswer};
use crate::face::http::{AcceptedTypes, FaceResponse, ResponseBody, empty_body, full_body};
use crate::face::pipe::body::{BodyForm, PipeBody, PipeTimeouts};
use crate::face::session::SessionFaceState;
use crate::face::session::session_cache::ClientSession;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::body::{GatedBody, GatedPart};
use crate::upstream::reply::{self, ReadLimits};
use crate::wire::framing::{BodyPart, EventGate, HoldPolicy, PrimerPolicy};
use crate::wire::{MessageText, ProtocolVersion, RequestId, envelope};

/// A message of a batch, or its fault. `None` is a message to the gateway itself.
pub(in crate::face) type BatchItem = Result<Option<PipedMessage>, (Option<RequestId>, RequestError)>;

/// The messages of a call that the gateway makes itself.
pub(in crate::face) type DrivenMessages = BoxStream<'static, BatchedMessage>;

/// A batch, sorted by processing.
#[derive(Default)]
struct SortedBatch {
    requests: Vec<PipedRequest>,
    notes: Vec<(OneWayKind, Option<RequestId>, MessageText)>,
    /// The responses to refused messages.
    refusals: Vec<Bytes>,
}

/// Forwards the messages of a batch. Messages without response go first, in order; requests run concurrently.
pub(in crate::face) async fn post_batch(
    shared: &Arc<SessionFaceState>,
    session: ClientSession,
    (items, driven): (Vec<BatchItem>, Vec<DrivenMessages>),
    accepted: AcceptedTypes,
) -> FaceResponse {
    let sorted = sort(items);
    let mut status = StatusCode::ACCEPTED;
    for (kind, cancels, text) in sorted.notes {
        let taken = match cancels {
            Some(id) => one_way_messages::cancel(shared, &session, &id, text).await,
            None => note(shared, &session, text, kind).await,
        };
        status = if status == StatusCode::ACCEPTED { taken } else { status };
    }
    if sorted.requests.is_empty() && sorted.refusals.is_empty() && driven.is_empty() {
        return bare(status);
    }
    let pipings = sorted.requests.into_iter().map(|request| {
        let signs = request.signs().filter(|_| shared.served.settings.life_signs);
        PipeForward { shared: Arc::clone(shared), session: session.clone(), request: Box::new(request), signs }
    });
    if accepted == AcceptedTypes::Json || (pipings.len() == 0 && driven.is_empty()) {
        return array(pipings, driven, sorted.refusals, shared.read_limits(&session).share).await;
    }
    let refused = stream::iter(sorted.refusals).map(|error| Ok(BodyPart::message(error))).boxed();
    let share = shared.read_limits(&session).share;
    let driven = driven.into_iter().map(|said| {
        let share = share.clone();
        said.map(move |saying| Ok(saying.within(share.as_ref()).into_event())).boxed()
    });
    let answers = pipings.map(events).chain(driven).chain([refused]);
    let merged = stream::select_all(answers).map(|event| event.map(Frame::data));
    let source = StreamBody::new(merged).boxed_unsync();
    event_stream(PipeBody::<PipedCall>::new(source, BodyForm::Events, PipeTimeouts::default(), None).boxed_unsync())
}

fn sort(items: Vec<BatchItem>) -> SortedBatch {
    let mut sorted = SortedBatch::default();
    for item in items {
        match item {
            Ok(Some(PipedMessage::Request(request))) => sorted.requests.push(*request),
            Ok(Some(PipedMessage::Notification(kind, text))) => sorted.notes.push((kind, None, text)),
            Ok(Some(PipedMessage::Cancel(id, text))) => sorted.notes.push((OneWayKind::AboutRequest, Some(id), text)),
            Ok(Some(PipedMessage::Response(text))) => sorted.notes.push((OneWayKind::Response, None, text)),
            Ok(None) => (),
            Err((id, complaint)) => {
                let error = complaint.to_error(ProtocolVersion::NEWEST_SESSION);
                sorted.refusals.push(envelope::error(id.as_ref(), &error));
            }
        }
    }
    sorted
}

/// All responses in one array; of a stream only its response.
async fn array(
    pipings: impl Iterator<Item = PipeForward>,
    driven: Vec<DrivenMessages>,
    refusals: Vec<Bytes>,
    share: Option<AnswerShare>,
) -> FaceResponse {
    let answers = pipings.map(|piping| {
        // An answer and its copy are one request's: the copy does not wait for the answer.
        let answering = as_one_request(async move {
            let addressee = addressee(Some(&piping.request.id), AcceptedTypes::Json);
            let limits = piping.shared.read_limits(&piping.session);
            message(piping.run(AcceptedTypes::Json).await, &addressee, &limits).await
        });
        answering.boxed()
    });
    let driven = driven.into_iter().map(|said| last(said, share.clone()).boxed());
    let refusals = refusals.into_iter().map(|refusal| std::future::ready(Some(refusal)).boxed());
    array_answer::respond(answers.chain(driven).chain(refusals)).await
}

/// The response of the gateway's own call; `None` if it was cancelled.
async fn last(mut said: DrivenMessages, share: Option<AnswerShare>) -> Option<Bytes> {
    while let Some(saying) = said.next().await {
        match saying {
            last @ BatchedMessage::Last(_) => match last.within(share.as_ref()) {
                BatchedMessage::Last(message) => return Some(message),
                BatchedMessage::Event(_) => (),
            },
            BatchedMessage::Event(_) => (),
        }
    }
    None
}

/// One response as a message; `None` for a cancelled request.
async fn message(answer: RequestAnswer, addressee: &Addressee, limits: &ReadLimits) -> Option<Bytes> {
    let fault = match answer.written(addressee) {
        AnswerContent::Message(message) => return Some(message),
        AnswerContent::Json(body) => match reply::read_whole(body, limits).await {
            Ok(message) => return Some(message),
            Err(fault) => fault,
        },
        AnswerContent::Events(_) => GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown),
        AnswerContent::Nothing => return None,
    };
    Some(envelope::error(addressee.id.as_ref(), &gateway_error(&fault)))
}

/// One response as complete events, which can be interleaved with others. Each has its own life signs.
fn events(piping: PipeForward) -> BoxStream<'static, io::Result<BodyPart>> {
    let bytes_max = piping.shared.served.settings.result_bytes_max;
    let addressee = addressee(Some(&piping.request.id), AcceptedTypes::Both);
    let (whole, signs) = (addressee.clone(), piping.signs.clone());
    let share = piping.shared.read_limits(&piping.session).share;
    let answering = as_one_request(async move {
        let limits = piping.shared.read_limits(&piping.session);
        let answer = piping.run(AcceptedTypes::Both).await;
        if matches!(answer, RequestAnswer::Events(_)) {
            return answer;
        }
        let message = message(answer, &whole, &limits).await;
        message.map_or_else(|| RequestAnswer::Events(empty_body()), |message| RequestAnswer::Json(full_body(message)))
    });
    let late = LateAnswer { answering: Box::pin(answering), signs };
    whole_events(call_stream::stream(late, addressee, None), bytes_max, share).boxed()
}

/// Only events: comments and empty events are dropped.
fn whole_events(
    body: ResponseBody,
    bytes_max: usize,
    share: Option<AnswerShare>,
) -> impl futures_util::Stream<Item = io::Result<BodyPart>> {
    let gate = EventGate::new(PrimerPolicy::Withhold, HoldPolicy::Messages, bytes_max);
    // So is an incomplete last event.
    let body = StreamBody::new(BodyStream::new(body).take_while(|frame| std::future::ready(frame.is_ok())));
    stream::unfold(GatedBody::new(body, gate).within(share), |mut events| async move {
        loop {
            match events.next().await? {
                Ok(GatedPart::Event(event)) => return Some((Ok(event), events)),
                Ok(GatedPart::Through(_)) => (),
                Err(error) => return Some((Err(error), events)),
            }
        }
    })
}
