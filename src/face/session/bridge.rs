//! Serves session clients of a server without sessions (2026-07-28 only).
//!
//! The gateway acts as the server that they expect: it answers the handshake from the server's description
//! ([`mod@bridged_handshake`]), makes each request a call of the engine (`bridged_call`), and sends the server's questions, which
//! are results there, as requests on the call's stream (`bridged_call::ask_client`). Other notifications are sent on the
//! session's own stream ([`mod@bridge_stream`]). Only `bridged_questions` is in memory alone. The session itself is in its id,
//! like any other, and outlives the process.

mod bridge_stream;
mod bridged_handshake;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt, select_all};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use super::bridged_call::{self, BridgedCaller};
use super::in_flight::RequestStage;
use super::known_tools::ServerTools;
use super::message_check::vet;
use super::session_cache::ClientSession;
use super::{SessionFaceState, fallback, refuse};
use crate::answer_budget::AnswerShare;
use crate::dialect::RequestError;
use crate::dialect::negotiate::LogLevel;
use crate::face::answer::{accepted, addressee, bare, event_stream, unreadable};
use crate::face::array_answer;
use crate::face::call_stream::replay::{BatchedMessage, ReplayStream};
use crate::face::call_stream::replay_buffer::CallResult;
use crate::face::http::{AcceptedTypes, FaceResponse, Inbound, events_body, full_body};
use crate::task::Answer;
use crate::upstream::own_ids::is_own;
use crate::upstream::session::own::PreferenceChange;
use crate::wire::envelope::{EnvelopeError, Notification, Request, Response as Answered};
use crate::wire::framing::BodyPart;
use crate::wire::{JsonPieces, Message, Payload, RequestId, RpcError, envelope, method};

pub(super) use bridge_stream::get;
pub(super) use bridged_handshake::introduce;

/// Answers one message. Dropping the future means that the client disconnected, which cancels nothing (T-81).
pub(super) async fn post(
    shared: &Arc<SessionFaceState>,
    session: ClientSession,
    message: Message,
    inbound: &Inbound,
) -> FaceResponse {
    let id = match &message {
        Message::Request(request) => Some(request.id.clone()),
        Message::Notification(_) | Message::Response(_) => None,
    };
    let addressee = addressee(id.as_ref(), inbound.accepted);
    if let Err(complaint) = vet(&message) {
        return refuse(&addressee, &complaint);
    }
    if let Message::Request(request) = &message
        && let Some(answering) = bridge_stream::subscription(shared, &session, request, &inbound.principal)
    {
        return match answering.await {
            Ok(result) => addressee.result(result),
            Err(error) => addressee.error(StatusCode::OK, &error),
        };
    }
    match message {
        Message::Request(request) => match own_answer(shared, &session, &request) {
            Some(Ok(result)) => addressee.result(result),
            Some(Err(complaint)) => refuse(&addressee, &complaint),
            None => match bridged_call::begin(shared, &session, &request, BridgedCaller::of(inbound)) {
                Ok(said) => said.respond(&shared.open.replays, &session.token, addressee).await,
                Err(error) => addressee.error(StatusCode::OK, &error),
            },
        },
        Message::Notification(notification) => {
            note(shared, &session, &notification);
            accepted()
        }
        Message::Response(response) => {
            hear(shared, &session, response);
            accepted()
        }
    }
}

/// Answers a batch. A message before the last response, such as a life sign, turns the response into an event stream.
pub(super) async fn post_batch(
    shared: &Arc<SessionFaceState>,
    session: ClientSession,
    batch: Vec<(Result<Message, EnvelopeError>, Bytes)>,
    inbound: &Inbound,
) -> FaceResponse {
    let caller = || BridgedCaller::of(inbound);
    let share = shared.served.engine.limits().answers_to(&inbound.principal);
    let (mut answers, mut calls, mut asked) = (BTreeMap::new(), Vec::new(), ServerTools::default());
    for (place, (read, _)) in batch.into_iter().enumerate() {
        if let Ok(Message::Request(request)) = &read
            && let Some(hidden) = Box::pin(shared.hidden(&session, &inbound.principal, request, &mut asked)).await
        {
            answers.insert(place, hidden.message(request));
            continue;
        }
        match batch_answer(shared, &session, read, &caller) {
            Some(BatchReply::Now(message)) => {
                answers.insert(place, message);
            }
            Some(BatchReply::Later(id, said)) => {
                calls.push(said.sayings(id).map(move |saying| (place, saying)).boxed())
            }
            Some(BatchReply::Subscribed(id, answering)) => {
                let last = async move { BatchedMessage::last(&id, &answering.await) };
                calls.push(stream::once(last).map(move |saying| (place, saying)).boxed());
            }
            None => (),
        }
    }
    if !inbound.accepted.takes_stream() {
        let first = answers.into_values().map(|answer| std::future::ready(Some(answer)).boxed());
        let calls = calls.into_iter().map(|said| last_of(said, share.clone()).boxed());
        return array_answer::respond(first.chain(calls)).await;
    }
    let mut calls = select_all(calls).map(move |(place, saying)| (place, saying.within(Some(&share))));
    let mut bytes = 0;
    while let Some((place, saying)) = calls.next().await {
        let event = match saying {
            BatchedMessage::Last(message) if bytes + message.len() <= array_answer::WAITING_MAX => {
                bytes += message.len();
                answers.insert(place, message);
                continue;
            }
            // A large response does not wait for earlier ones.
            saying @ (BatchedMessage::Event(_) | BatchedMessage::Last(_)) => saying.into_event(),
        };
        let first = answers.into_values().map(BodyPart::message).chain([event]);
        let rest = calls.map(|(_, saying)| saying.into_event());
        let events = stream::iter(first).chain(rest);
        let frames = events.map(|event| Ok::<_, io::Error>(Frame::data(event)));
        return event_stream(StreamBody::new(frames).boxed_unsync());
    }
    together(answers.into_values().collect(), inbound.accepted)
}

/// The response of one call; `None` if it was cancelled.
async fn last_of(mut said: BoxStream<'static, (usize, BatchedMessage)>, share: AnswerShare) -> Option<Bytes> {
    while let Some((_, saying)) = said.next().await {
        if let BatchedMessage::Last(message) = saying.within(Some(&share)) {
            return Some(message);
        }
    }
    None
}

/// The responses to a batch, once all are available.
fn together(answers: Vec<Bytes>, taken: AcceptedTypes) -> FaceResponse {
    if answers.is_empty() {
        return accepted();
    }
    if taken == AcceptedTypes::EventStream {
        return event_stream(events_body(answers));
    }
    let array = [b"[", answers.join(&b',').as_slice(), b"]"].concat();
    let mut response = FaceResponse::new(full_body(Bytes::from(array)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

enum BatchReply {
    Now(Bytes),
    Later(RequestId, ReplayStream),
    Subscribed(RequestId, BoxFuture<'static, CallResult>),
}

/// `None` for a message without response.
fn batch_answer(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    read: Result<Message, EnvelopeError>,
    caller: &dyn Fn() -> BridgedCaller,
) -> Option<BatchReply> {
    let error = |id: Option<&RequestId>, error: &RpcError| Some(BatchReply::Now(envelope::error(id, error)));
    let version = session.token.client_version;
    let message = match read.map_err(unreadable) {
        Ok(message) => message,
        Err((id, complaint)) => return error(id.as_ref(), &complaint.to_error(version)),
    };
    let refused = vet(&message).err().map(|complaint| complaint.to_error(version));
    match message {
        Message::Request(request) => {
            let id = Some(&request.id);
            if let Some(refused) = refused {
                return error(id, &refused);
            }
            if request.method == method::INITIALIZE {
                let alone = RequestError::NotARequest(Cow::Borrowed("initialize stands alone, not in a batch"));
                return error(id, &alone.to_error(version));
            }
            if let Some(running) = fallback::in_batch(shared, session, &request, &caller().principal) {
                return Some(BatchReply::Subscribed(request.id, running));
            }
            if let Some(answering) = bridge_stream::subscription(shared, session, &request, &caller().principal) {
                let answering = Box::pin(async move { answering.await.map(JsonPieces::from) });
                return Some(BatchReply::Subscribed(request.id, answering));
            }
            match own_answer(shared, session, &request) {
                Some(Ok(result)) => Some(BatchReply::Now(envelope::result(&request.id, &result))),
                Some(Err(complaint)) => error(id, &complaint.to_error(version)),
                None => match bridged_call::begin(shared, session, &request, caller()) {
                    Ok(said) => Some(BatchReply::Later(request.id, said)),
                    Err(refused) => error(id, &refused),
                },
            }
        }
        Message::Notification(_) | Message::Response(_) if refused.is_some() => error(None, &refused?),
        Message::Notification(notification) => {
            note(shared, session, &notification);
            None
        }
        Message::Response(response) => {
            hear(shared, session, response);
            None
        }
    }
}

/// Ends a session and its calls.
pub(super) fn delete(shared: &SessionFaceState, session: &ClientSession) -> FaceResponse {
    shared.is_ended(session);
    bare(StatusCode::OK)
}

/// The gateway's own response; `None` for a request that goes to the server.
fn own_answer(
    shared: &SessionFaceState,
    session: &ClientSession,
    request: &Request,
) -> Option<Result<Payload, RequestError>> {
    match request.method.as_str() {
        method::PING => Some(Ok(Payload::empty_object())),
        method::SET_LEVEL => {
            let params = request.params.object();
            let level = params.and_then(|params| params.get_string("level"));
            Some(match (params, level.as_deref().and_then(LogLevel::parse)) {
                (Some(params), Some(_)) => {
                    shared.own.remember(&session.own, PreferenceChange::Level(params.payload().clone()));
                    Ok(Payload::empty_object())
                }
                _ => Err(RequestError::Params(Cow::Borrowed("level must be a log level"))),
            })
        }
        // Methods of another version: no client with a session knows them.
        method::DISCOVER | method::LISTEN => Some(Err(RequestError::UnknownMethod(request.method.clone()))),
        name if name.starts_with("tasks/") => Some(Err(RequestError::UnknownMethod(request.method.clone()))),
        _ => None,
    }
}

/// Processes a notification. The server needs none but cancellations.
fn note(shared: &SessionFaceState, session: &ClientSession, notification: &Notification) {
    shared.meter.notifications.increment(1);
    if let Some(id) = notification.cancelled() {
        // In this order: a call that begins meanwhile either sees the first or is found by the second.
        shared.open.in_flight.take_back(session.token.nonce, &id);
        shared.open.in_flight.cancel(session.token.nonce, &id, RequestStage::Driven);
    }
}

/// Delivers an answer to the call that asked. An answer without a waiting question is dropped.
fn hear(shared: &SessionFaceState, session: &ClientSession, response: Answered) {
    shared.meter.responses.increment(1);
    let Some(id) = response.id.filter(is_own) else { return };
    let answer = match response.outcome {
        Ok(result) => Answer::Result(result.detached()),
        Err(error) => Answer::Error(error),
    };
    if let Some(id) = id.as_text() {
        shared.open.questions.answer(session.token.nonce, &id, answer);
    }
}
