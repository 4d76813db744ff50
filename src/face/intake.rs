//! Admits one request of a path: counts it, reads its message, chooses its face.
//!
//! Forwards a request to the replica that owns its session or its held call, and answers requests that no face serves.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, Method, StatusCode};

use super::answer::{
    Addressee, UnknownTaskMarker, accepted, addressee, bare, only_post, too_many, too_often, unreadable,
};
use super::array_answer::{self, ArrayItems, is_one_way};
use super::classify::{Face, face_of, header_is_stateless};
use super::headers;
use super::http::{AcceptedTypes, FaceResponse, Inbound, empty_body};
use super::idempotency_key;
use super::revocable_body::ending_with;
use super::sealed::IdKind;
use super::served::Served;
use super::session::{SessionLookupError, refuse};
use super::session_homes::{self, ForwardReason, SessionErrand};
use crate::answer_budget::BudgetRefusal;
use crate::dialect::RequestError;
use crate::dialect::fallback_tools::FallbackTool;
use crate::dialect::faults::{bound_error, gateway_error, rate_error};
use crate::task::{Executed, GatewayFault, Principal, RateRefusal, Reason};
use crate::wire::envelope::{self, Request, is_batch, split_batch};
use crate::wire::{Message, ProtocolVersion, RequestId, RpcError, ScanLimits, method};

/// Why no call begins while the gateway drains.
const LATE: GatewayFault = GatewayFault::new(Reason::Draining, Executed::No);

/// The faces of one path, for clients of either era.
pub(super) trait PathFaces: Send + Sync {
    /// The settings and counters of the path.
    fn served(&self) -> &Served;

    fn stateless(&self, inbound: &Inbound, request: Request) -> impl Future<Output = FaceResponse> + Send;

    fn post(&self, inbound: Box<Inbound>, message: Box<Message>) -> impl Future<Output = FaceResponse> + Send;

    /// Serves an array of messages.
    fn post_batch(&self, inbound: &Inbound, items: ArrayItems) -> impl Future<Output = FaceResponse> + Send;

    /// The version of the client's session.
    ///
    /// # Errors
    /// If the request has no session.
    fn client_version(&self, inbound: &Inbound) -> Result<ProtocolVersion, SessionLookupError>;

    /// Opens or resumes a stream of a session.
    fn get(&self, inbound: &Inbound) -> impl Future<Output = FaceResponse> + Send;

    fn delete(&self, inbound: &Inbound) -> impl Future<Output = FaceResponse> + Send;

    /// Whether a registered request of this session is in progress in this process.
    fn has_under_way(&self, nonce: u128, id: &RequestId) -> bool;

    /// Whether a task asked the question with this id.
    fn is_asked_by_a_task(&self, id: &RequestId) -> bool;

    /// The name by which the path's streams are counted.
    fn listened_as(&self) -> &Arc<str>;

    /// Returns once streams without another end must end.
    fn streams_end(&self) -> impl Future<Output = ()> + Send + 'static;
}

pub(super) async fn answer(faces: &impl PathFaces, mut inbound: Inbound) -> FaceResponse {
    if is_batch(&inbound.body) && !header_is_stateless(&inbound.headers) {
        return Box::pin(serve_batch(faces, &inbound)).await;
    }
    if inbound.method != Method::POST {
        return match admit_many(faces, &inbound, 1) {
            Ok(()) => Box::pin(operate(faces, &inbound)).await,
            Err(refusal) => too_often(&refusal),
        };
    }
    let read = match inbound.message.take() {
        Some(message) => Ok(message),
        None => envelope::read(&inbound.body, ScanLimits::CLIENT),
    };
    match read {
        Ok(message) if !inbound.arrival.is_wanted([&message], &inbound.headers) => FaceResponse::new(empty_body()),
        // Boxed: each of the futures below would hold it twice.
        Ok(message) => serve_message(faces, Box::new(inbound), Box::new(message)).await,
        Err(error) => {
            if let Err(refusal) = admit_many(faces, &inbound, 1) {
                return too_often(&refusal);
            }
            let (id, complaint) = unreadable(error);
            if header_is_stateless(&inbound.headers) {
                stateless_addressee(&inbound, id).complaint(&complaint)
            } else {
                refuse(&addressee(id.as_ref(), inbound.accepted), &complaint)
            }
        }
    }
}

/// GET and DELETE are operations on a session; stateless clients have none (B53).
async fn operate(faces: &impl PathFaces, inbound: &Inbound) -> FaceResponse {
    let is_session =
        inbound.headers.contains_key(headers::SESSION_ID) || inbound.headers.contains_key(headers::PROTOCOL_VERSION);
    if !is_session || header_is_stateless(&inbound.headers) {
        return only_post();
    }
    if inbound.method == Method::GET { get(faces, inbound).await } else { delete(faces, inbound).await }
}

async fn delete(faces: &impl PathFaces, inbound: &Inbound) -> FaceResponse {
    // The owner knows the calls that began there, which their session must outlive (T-31).
    match pass_on(faces, inbound, SessionErrand::End, |_| false).await {
        Some(answer) => answer.unwrap_or_else(|_| unreachable_home()),
        None => faces.delete(inbound).await,
    }
}

/// Forwards the GET of a session. A stream of a gateway is resumed at the replica that made it, any other at the session's owner.
/// A forwarded stream takes a permit here and ends with the gateway's other streams, so that it delays no shutdown: its client
/// resumes elsewhere.
async fn get(faces: &impl PathFaces, inbound: &Inbound) -> FaceResponse {
    let Served { homes, listeners, .. } = faces.served();
    if homes.is_none() || !session_homes::may_go_on(inbound) {
        return faces.get(inbound).await;
    }
    // Before the owner replaces the stream's current reader.
    let place = match listeners.take(&inbound.counted_as(), faces.listened_as()) {
        Ok(place) => place,
        Err(fault) if fault.reason == Reason::Draining => return bare(StatusCode::SERVICE_UNAVAILABLE),
        Err(fault) => return too_many(&fault),
    };
    let last_event = inbound.headers.get(headers::LAST_EVENT_ID).and_then(|event| event.to_str().ok());
    let named = last_event.and_then(|event| homes.as_ref()?.streamed_by(event));
    match pass_on(faces, inbound, named.map_or(SessionErrand::Begin, SessionErrand::GoOnAt), |_| false).await {
        Some(Ok(answer)) => ending_with(answer, || faces.streams_end()).map(|body| place.keep(body)),
        // Even if the owner may have opened it: a second attempt has no further effect.
        Some(Err(_)) => unreachable_home(),
        None => {
            drop(place);
            faces.get(inbound).await
        }
    }
}

/// Forwards a request to the owner of its session; `None` if that is this replica, or `is_known` finds it here by the session's
/// nonce.
async fn pass_on(
    faces: &impl PathFaces,
    inbound: &Inbound,
    errand: SessionErrand,
    is_known: impl Fn(u128) -> bool + Send,
) -> Option<Result<FaceResponse, GatewayFault>> {
    let Served { homes, life, .. } = faces.served();
    let homes = homes.as_ref()?;
    // Boxed, so that a single gateway does not reserve space for it in every request.
    Box::pin(homes.pass_on(inbound, errand, is_known, life)).await
}

/// Whether any replica may serve a message about a task after the session's owner gave no response.
///
/// The owner is asked first, because it has the stream for the client's notifications. A change is made here only if the owner
/// did nothing, except for an answer, which takes effect once however often it arrives (EXT-39).
fn is_told_by_the_store(faces: &impl PathFaces, message: &Message, done_at_home: Executed) -> bool {
    let request = match message {
        Message::Request(request) => request,
        Message::Response(response) => return response.id.as_ref().is_some_and(|id| faces.is_asked_by_a_task(id)),
        Message::Notification(_) => return false,
    };
    match &*request.method {
        method::TASKS_GET | method::TASKS_RESULT | method::TASKS_LIST => true,
        method::TASKS_CANCEL => done_at_home == Executed::No,
        _ => false,
    }
}

/// The purpose of a message of a session. A notification for the server goes to the session's current owner.
fn errand_of(faces: &impl PathFaces, message: &Message) -> SessionErrand {
    match message {
        Message::Request(_) => SessionErrand::Begin,
        Message::Notification(notification) if notification.is_about_a_request() => SessionErrand::Tell,
        Message::Notification(_) => SessionErrand::Begin,
        Message::Response(response) => {
            let named = response.id.as_ref().and_then(|id| faces.served().homes.as_ref()?.asked_by(id));
            named.map_or(SessionErrand::Tell, SessionErrand::GoOnAt)
        }
    }
}

/// Whether a message cancels a request that is registered here for this session.
fn is_known_here(faces: &impl PathFaces, nonce: u128, message: &Message) -> bool {
    let Message::Notification(notification) = message else { return false };
    notification.cancelled().is_some_and(|id| faces.has_under_way(nonce, &id))
}

/// Responds to messages without ids whose owner gave no response: 503 if nothing was done, so that they are sent again; 202 if
/// they may have been processed, as a repetition could process them twice.
pub(super) fn unanswered_home(fault: &GatewayFault) -> FaceResponse {
    if fault.executed == Executed::No { unreachable_home() } else { accepted() }
}

/// 503 for a message without id: its session's owner is unreachable, and it may be sent again.
fn unreachable_home() -> FaceResponse {
    addressee(None, AcceptedTypes::Json).fault(&session_homes::away())
}

async fn serve_message(faces: &impl PathFaces, inbound: Box<Inbound>, message: Box<Message>) -> FaceResponse {
    let face = era_of(&message, &inbound.headers);
    let is_late = begins_late(faces, &message);
    if inbound.is_counted && !is_late {
        return serve_one(faces, face, inbound, message).await;
    }
    let asker = RefusableRequest::of(&message, face, &inbound);
    if !inbound.is_counted
        && let Err(refusal) = admit(faces, &asker, &inbound, &message)
    {
        return asker.refuse(&refusal);
    }
    if is_late {
        return asker.refuse_for_now(&LATE);
    }
    if let Message::Request(request) = &*message
        && !inbound.is_counted
        && let Some(full) = no_bytes(faces, &inbound, &request.method)
    {
        return asker.refuse_in_words(&full.fault, &bound_error(&full.fault, full.bytes_max));
    }
    let response = match pass_on_message(faces, face, &inbound, &message).await {
        Some(Ok(answer)) => answer,
        Some(Err(fault)) if is_told_by_the_store(faces, &message, fault.executed) => {
            serve_one(faces, face, inbound, message).await
        }
        Some(Err(fault)) => return asker.refuse_away(&fault),
        None => serve_one(faces, face, inbound, message).await,
    };
    if response.extensions().get::<UnknownTaskMarker>().is_none() {
        return response;
    }
    match faces.served().rates.missed(&asker.principal) {
        Ok(()) => response,
        Err(refusal) => asker.refuse(&refusal),
    }
}

async fn serve_one(faces: &impl PathFaces, face: Face, inbound: Box<Inbound>, message: Box<Message>) -> FaceResponse {
    match face {
        Face::Stateless => serve_stateless(faces, &inbound, message).await,
        Face::Session => faces.post(inbound, message).await,
    }
}

/// Forwards a message to the owner of its session or of its held call. An `initialize` has no owner.
async fn pass_on_message(
    faces: &impl PathFaces,
    face: Face,
    inbound: &Inbound,
    message: &Message,
) -> Option<Result<FaceResponse, GatewayFault>> {
    match (face, message) {
        (Face::Session, Message::Request(request)) if request.method == method::INITIALIZE => None,
        (Face::Session, _) => {
            let is_known = |nonce| is_known_here(faces, nonce, message);
            pass_on(faces, inbound, errand_of(faces, message), is_known).await
        }
        (Face::Stateless, Message::Request(request)) => pass_on_answers(faces, inbound, request).await,
        (Face::Stateless, Message::Notification(_) | Message::Response(_)) => None,
    }
}

/// Forwards the answers to a held call's questions to its replica; `None` if that is this one, or the call is lost with its
/// replica.
async fn pass_on_answers(
    faces: &impl PathFaces,
    inbound: &Inbound,
    request: &Request,
) -> Option<Result<FaceResponse, GatewayFault>> {
    let Served { homes, sealer, .. } = faces.served();
    let homes = homes.as_ref()?;
    let state = request.params.object().filter(|_| method::may_ask(&request.method))?.get_string("requestState")?;
    let home = sealer.open_for(IdKind::RequestState, &inbound.principal, &state)?.id.replica?;
    // Boxed, as above.
    Box::pin(homes.pass_on_to(inbound, home, ForwardReason::HeldCall)).await
}

/// Counts requests that arrive together, unless they have been counted.
fn admit_many(faces: &impl PathFaces, inbound: &Inbound, many: usize) -> Result<(), RateRefusal> {
    if inbound.is_counted { Ok(()) } else { faces.served().rates.admit(&inbound.counted_as(), many) }
}

/// Counts a message. A client with many tasks may poll often.
fn admit(
    faces: &impl PathFaces,
    asker: &RefusableRequest,
    inbound: &Inbound,
    message: &Message,
) -> Result<(), RateRefusal> {
    let Served { rates, engine, .. } = faces.served();
    match message {
        Message::Request(request) if matches!(&*request.method, method::TASKS_GET | method::TASKS_RESULT) => {
            rates.poll(&asker.principal, engine.unfinished_of(&inbound.principal))
        }
        Message::Request(_) | Message::Notification(_) | Message::Response(_) => rates.admit(&asker.principal, 1),
    }
}

/// Why a request with a possibly large response is refused: responses in progress hold all bytes.
fn no_bytes(faces: &impl PathFaces, inbound: &Inbound, name: &str) -> Option<BudgetRefusal> {
    let is_short = matches!(name, method::PING | method::INITIALIZE | method::TASKS_CANCEL | method::TASKS_UPDATE);
    if is_short { None } else { faces.served().engine.limits().refusal_of_answers(&inbound.principal) }
}

/// Whether a message would begin a call during the drain. Tasks can be polled until its end.
fn begins_late(faces: &impl PathFaces, message: &Message) -> bool {
    let Message::Request(request) = message else { return false };
    if request.method != method::TOOLS_CALL || !faces.served().engine.is_leaving() {
        return false;
    }
    let Some(params) = request.params.object() else { return true };
    // A request with answers to a call's questions continues that call. A tool with a fallback name is probably the gateway's.
    let goes_on = params.contains("requestState");
    !goes_on && params.get_string("name").is_none_or(|name| FallbackTool::named(&name).is_none())
}

async fn serve_batch(faces: &impl PathFaces, inbound: &Inbound) -> FaceResponse {
    let addressee = addressee(None, inbound.accepted);
    let items = match split_batch(&inbound.body, ScanLimits::CLIENT, envelope::BATCH_MAX) {
        Ok(items) => items,
        Err(error) => return refuse(&addressee, &unreadable(error).1),
    };
    if let Err(refusal) = admit_many(faces, inbound, items.len()) {
        return too_often(&refusal);
    }
    let batch: ArrayItems = items.into_iter().map(|item| (envelope::read(&item, ScanLimits::CLIENT), item)).collect();
    let messages = batch.iter().filter_map(|(read, _)| read.as_ref().ok());
    if !inbound.arrival.is_wanted(messages, &inbound.headers) {
        return FaceResponse::new(empty_body());
    }
    if batch.iter().any(|(read, _)| read.as_ref().is_ok_and(|message| begins_late(faces, message))) {
        return addressee.fault(&LATE);
    }
    if !inbound.is_counted
        && let Some(full) = no_bytes(faces, inbound, method::RESOURCES_READ)
    {
        return addressee.fault_in_words(&full.fault, &bound_error(&full.fault, full.bytes_max));
    }
    let is_mixed = batch.iter().any(|(read, _)| match read {
        Ok(message) => era_of(message, &inbound.headers) == Face::Stateless,
        Err(_) => false,
    });
    if is_mixed {
        let complaint = RequestError::NotARequest(Cow::Borrowed("stateless requests come one by one"));
        return refuse(&addressee, &complaint);
    }
    if inbound.headers.contains_key(idempotency_key::HEADER) {
        return refuse(&addressee, &idempotency_key::of_an_array());
    }
    match faces.client_version(inbound) {
        Ok(version) if version.traits().has_batches => (),
        Ok(_) => {
            let what = Cow::Borrowed("a batch is accepted in sessions of 2025-03-26 only");
            return refuse(&addressee, &RequestError::NotARequest(what));
        }
        Err(none) => return none.answer(&addressee),
    }
    if batch.iter().all(|(read, _)| is_one_way(read)) {
        return serve_one_way(faces, inbound, batch).await;
    }
    match pass_on(faces, inbound, SessionErrand::Begin, |_| false).await {
        Some(answer) => answer.unwrap_or_else(|fault| addressee.fault(&fault)),
        None => faces.post_batch(inbound, batch).await,
    }
}

/// Processes an array without requests, each message as if alone. Returns the first failure, if there is one.
async fn serve_one_way(faces: &impl PathFaces, inbound: &Inbound, items: ArrayItems) -> FaceResponse {
    let mut refused = None;
    for (read, text) in items {
        let Ok(message) = read else { continue };
        let inbound = array_answer::alone(inbound, text);
        let answer = match pass_on_message(faces, Face::Session, &inbound, &message).await {
            // The client may send the whole array again.
            Some(Err(fault)) if fault.executed == Executed::No => return unreachable_home(),
            Some(answer) => answer.unwrap_or_else(|_| accepted()),
            None => faces.post(inbound, Box::new(message)).await,
        };
        if answer.status() != StatusCode::ACCEPTED {
            refused = refused.or(Some(answer));
        }
    }
    refused.unwrap_or_else(accepted)
}

async fn serve_stateless(faces: &impl PathFaces, inbound: &Inbound, message: Box<Message>) -> FaceResponse {
    let request = match *message {
        Message::Request(request) => request,
        // Notifications of stateless clients have no effect; they cancel by disconnecting (EXT-46).
        Message::Notification(notification) if is_request(&notification.method) => {
            let complaint = RequestError::NotARequest(Cow::Borrowed("this method needs an id"));
            return stateless_addressee(inbound, None).complaint(&complaint);
        }
        Message::Notification(_) => return accepted(),
        Message::Response(_) => {
            let complaint = RequestError::NotARequest(Cow::Borrowed("clients send no responses"));
            return stateless_addressee(inbound, None).complaint(&complaint);
        }
    };
    if is_handshake_without_metadata(&request) {
        let what = Cow::Borrowed("initialize is not sent with the header of a stateless version");
        return stateless_addressee(inbound, Some(request.id)).complaint(&RequestError::Header(what));
    }
    // Boxed, so that a session's request, which needs less, is not as large.
    Box::pin(faces.stateless(inbound, request)).await
}

/// The parts of a request that a refusal needs, once its face has the rest.
struct RefusableRequest {
    principal: Principal,
    addressee: Addressee,
    face: Face,
}

impl RefusableRequest {
    fn of(message: &Message, face: Face, inbound: &Inbound) -> Self {
        let id = match message {
            Message::Request(request) => Some(request.id.clone()),
            Message::Notification(_) | Message::Response(_) => None,
        };
        let addressee = match face {
            Face::Stateless => stateless_addressee(inbound, id),
            Face::Session => addressee(id.as_ref(), inbound.accepted),
        };
        Self { principal: inbound.counted_as(), addressee, face }
    }

    /// 503, except for requests of session clients (GW-04): a retry here or at another replica succeeds.
    fn refuse_for_now(&self, fault: &GatewayFault) -> FaceResponse {
        self.refuse_in_words(fault, &gateway_error(fault))
    }

    fn refuse_in_words(&self, fault: &GatewayFault, error: &RpcError) -> FaceResponse {
        match self.face {
            Face::Stateless => self.addressee.fault_in_words(fault, error),
            Face::Session => self.addressee.error(StatusCode::OK, error),
        }
    }

    /// As [`Self::refuse_for_now`], for a request whose owner gave no response.
    fn refuse_away(&self, fault: &GatewayFault) -> FaceResponse {
        if self.addressee.id.is_none() { unanswered_home(fault) } else { self.refuse_for_now(fault) }
    }

    /// 429, except for requests of session clients, which would drop their connection (GW-04).
    fn refuse(&self, refusal: &RateRefusal) -> FaceResponse {
        match (self.face, &self.addressee.id) {
            (_, None) => too_often(refusal),
            (Face::Stateless, Some(_)) => self.addressee.too_often(refusal),
            (Face::Session, Some(_)) => self.addressee.error(StatusCode::OK, &rate_error(refusal)),
        }
    }
}

/// Responds to a request while nothing can be served.
pub(super) fn refuse_all(inbound: &Inbound, fault: &GatewayFault) -> FaceResponse {
    let read = (inbound.method == Method::POST).then(|| envelope::read(&inbound.body, ScanLimits::CLIENT));
    match read {
        Some(Ok(message)) => {
            RefusableRequest::of(&message, era_of(&message, &inbound.headers), inbound).refuse_for_now(fault)
        }
        Some(Err(_)) | None => stateless_addressee(inbound, None).fault(fault),
    }
}

/// The addressee of the gateway's response to a stateless client.
pub(super) fn stateless_addressee(inbound: &Inbound, id: Option<RequestId>) -> Addressee {
    Addressee { id, version: ProtocolVersion::STATELESS, accepted: inbound.accepted }
}

/// The era of a message's client.
fn era_of(message: &Message, all: &HeaderMap) -> Face {
    let params = match message {
        Message::Request(request) => request.params.object(),
        Message::Notification(notification) => notification.params.object(),
        Message::Response(_) => None,
    };
    face_of(params, all)
}

fn is_handshake_without_metadata(request: &Request) -> bool {
    request.method == method::INITIALIZE && !crate::dialect::negotiate::names_version(request.params.object())
}

/// Whether a method requires a response (B104).
fn is_request(name: &str) -> bool {
    !name.starts_with("notifications/")
}
