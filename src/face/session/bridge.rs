//! Serves session clients of a server without sessions (2026-07-28 only).
//! The gateway acts as their server: it answers the handshake from the server's description, makes each request a call
//! of the engine (`bridged_call`), and sends its questions on the call's stream (`bridged_call::ask_client`).
//! Notifications go to the session's own stream ([`mod@bridge_stream`]). Only open questions are lost with the process.

mod bridge_stream;

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::bridged_call::{self, BridgedCaller, BridgedClient};
use super::forwarded_questions::AskingTool;
use super::in_flight::RequestStage;
use super::session_cache::ClientSession;
use super::{SessionFaceState, refuse};
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::dialect::negotiate::LogLevel;
use crate::dialect::session_results::{initialize_result, session_error};
use crate::face::answer::{accepted, addressee, bare};
use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::http::{FaceResponse, Inbound};
use crate::face::rewrite::ClientInitialize;
use crate::task::{Answer, Executed, GatewayFault, Principal, Reason};
use crate::upstream::own_ids::is_own;
use crate::upstream::session::own::PreferenceChange;
use crate::upstream::{BeginError, ForwardedHeaders};
use crate::wire::envelope::{Notification, Request, Response as Answered};
use crate::wire::{Message, Object, Payload, RpcError, method};

pub(super) use bridge_stream::get;

/// Answers one message. Dropping the future means that the client disconnected, which cancels nothing (T-81).
pub(super) async fn post(
    shared: &Arc<SessionFaceState>,
    session: ClientSession,
    message: Message,
    inbound: &Inbound,
) -> FaceResponse {
    let addressee = addressee(message.request().map(|request| &request.id), inbound.accepted);
    if let Message::Request(request) = &message
        && let Some(answering) = bridge_stream::subscription(shared, &session, request, &inbound.caller.principal)
    {
        return RequestAnswer::from(answering.await).into_response(&addressee);
    }
    match message {
        Message::Request(request) => match own_answer(shared, &session, &request) {
            Some(Ok(result)) => addressee.result(result),
            Some(Err(complaint)) => refuse(&addressee, &complaint),
            None => match bridged_call::begin(shared, &session, &request, BridgedCaller::of(inbound)) {
                Ok(stream) => stream.respond(&shared.open.replays, &shared.served, &session.token, addressee).await,
                Err(error) => addressee.error(StatusCode::OK, &error),
            },
        },
        Message::Notification(notification) => {
            note(shared, &session, &notification);
            accepted()
        }
        Message::Response(response) => {
            deliver_answer(shared, &session, response);
            accepted()
        }
    }
}

pub(super) fn delete(shared: &SessionFaceState, session: &ClientSession) -> FaceResponse {
    shared.end_here(session);
    bare(StatusCode::OK)
}

/// `None` for a request that goes to the server.
fn own_answer(
    shared: &SessionFaceState,
    session: &ClientSession,
    request: &Request,
) -> Option<Result<Payload, RequestError>> {
    match &*request.method {
        method::PING => Some(Ok(Payload::empty_object())),
        method::SET_LEVEL => {
            let params = request.params.object();
            let level = params.and_then(|params| params.get_string("level"));
            Some(match (params, level.as_deref().and_then(LogLevel::parse)) {
                (Some(params), Some(_)) => {
                    shared.own.record_preference(&session.own, PreferenceChange::Level(params.payload().clone()));
                    Ok(Payload::empty_object())
                }
                _ => Err(RequestError::params("level must be a log level")),
            })
        }
        method::DISCOVER | method::LISTEN => Some(Err(RequestError::UnknownMethod(request.method.clone()))),
        name if name.starts_with("tasks/") => Some(Err(RequestError::UnknownMethod(request.method.clone()))),
        _ => None,
    }
}

/// The server needs no notification but cancellations.
fn note(shared: &SessionFaceState, session: &ClientSession, notification: &Notification) {
    shared.meter.notifications.increment(1);
    if let Some(id) = notification.cancelled() {
        // In this order: a call that begins meanwhile either sees the first or is found by the second.
        shared.open.in_flight.withdraw(session.token.nonce, session.counted_as(), &id);
        shared.open.in_flight.cancel(session.token.nonce, &id, RequestStage::Driven);
    }
}

/// An answer without a waiting question is dropped.
fn deliver_answer(shared: &SessionFaceState, session: &ClientSession, response: Answered) {
    shared.meter.responses.increment(1);
    let Some(id) = response.id.filter(is_own) else { return };
    let answer = response.outcome.map_or_else(Answer::Error, |result| Answer::Result(result.detached()));
    let question = id.as_text().and_then(|id| shared.open.questions.take(session.token.nonce, &id));
    if let Some(question) = question {
        let refusal = shared.refusal_of_answer(session, question.tool.as_deref().map(AskingTool::Named));
        question.answer(refusal.map_or(answer, Answer::Error));
    }
}

const HANDSHAKE_MAX: Duration = Duration::from_secs(30);

/// The result of `initialize`, or an error for the client.
pub(super) async fn bridged_initialize(
    shared: &SessionFaceState,
    asker: &Principal,
    forwarded: &ForwardedHeaders,
    initialize: &ClientInitialize,
) -> Result<Object, RpcError> {
    let client = BridgedClient::of(initialize.version, &initialize.capabilities);
    let context = shared.served.context(asker, client.capabilities(), forwarded);
    let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
    let asking = tokio::time::timeout(HANDSHAKE_MAX, shared.served.stateless.handshake(&context));
    let handshake = match asking.await.unwrap_or(Err(BeginError::Gateway(late))) {
        Ok(handshake) => handshake,
        Err(BeginError::Gateway(fault)) => return Err(gateway_error(&fault)),
        Err(BeginError::Refused(error)) => return Err(session_error(&error, None)),
    };
    let result = initialize_result(&handshake.description(), initialize.version);
    Object::of(&result).ok_or_else(|| gateway_error(&GatewayFault::new(Reason::Internal, Executed::No)))
}
