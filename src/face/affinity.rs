//! Forwards each request to the replica that the request names, and serves the others here. A session's id names the
//! session's owner, an event's id the replica of its stream, a question's id the replica that asked, a `requestState`
//! the holder of the call. A request is forwarded once: the receiver answers, even if it is no owner.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, Method, StatusCode};
use tokio::time::{Instant, sleep};

use super::admitted_request::{AdmittedMessage, AdmittedRequest, admit};
use super::answer::{accepted, addressee, bare, too_many};
use super::array_answer::{self, ArrayItems};
use super::headers::{self, Face};
use super::http::{AcceptedTypes, FaceResponse, Inbound, ResponseBody, ending_with, is_event_stream};
use super::intake::{self, PathContext, PathFaces};
use super::pipe::body::{AnsweredRequest, BodyForm, PipeBody, PipeTimeouts};
use super::replica_array;
use super::sealed::{GatewayId, IdKind, Sealer, read_event_id, sealed_in};
use super::session_owners::{self, ForwardReason, SessionOwners, UNREACHABLE_RETRY, may_forward};
use crate::replica::{OwnerReplica, OwnerRequest, ReplicaPeer};
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::envelope::Response;
use crate::wire::{Message, RequestId, method};

/// How long a GET waits for an unreachable owner to return or be replaced: the default `lease`, and two seconds.
const TAKEOVER_MAX: Duration = Duration::from_secs(10);

enum Destination {
    Here,
    There(ReplicaPeer),
    All,
}

impl From<OwnerReplica> for Destination {
    fn from(owner: OwnerReplica) -> Self {
        match owner {
            OwnerReplica::Here => Self::Here,
            OwnerReplica::There(peer) => Self::There(peer),
        }
    }
}

pub(super) fn answer(faces: &impl PathFaces, inbound: Box<Inbound>) -> impl Future<Output = FaceResponse> + Send {
    let served = faces.path().served;
    let admitted = admit(served, inbound);
    match &served.owners {
        None => Either::Left(intake::serve(faces, admitted)),
        // Boxed, so that a single gateway does not reserve space for it in every request.
        Some(owners) => Either::Right(Box::pin(route(faces, owners, admitted))),
    }
}

async fn route(faces: &impl PathFaces, owners: &Arc<SessionOwners>, admitted: AdmittedRequest) -> FaceResponse {
    match admitted {
        AdmittedRequest::Message(message) if may_forward(&message.inbound) => {
            route_message(faces, owners, message).await
        }
        AdmittedRequest::Batch(inbound, batch) if may_forward(&inbound) => {
            route_batch(faces, owners, inbound, batch).await
        }
        AdmittedRequest::Operation(inbound) if may_forward(&inbound) => route_operation(faces, owners, inbound).await,
        own @ (AdmittedRequest::Message(_)
        | AdmittedRequest::Batch(..)
        | AdmittedRequest::Operation(_)
        | AdmittedRequest::Refused(_)) => intake::serve(faces, own).await,
    }
}

async fn route_message(faces: &impl PathFaces, owners: &Arc<SessionOwners>, message: AdmittedMessage) -> FaceResponse {
    let AdmittedMessage { inbound, message: content, face, refusable } = &message;
    let PathContext { served, .. } = faces.path();
    let peer = match destination(faces, owners, *face, inbound, content) {
        Destination::There(peer) => peer,
        Destination::Here => return intake::serve(faces, AdmittedRequest::Message(message)).await,
        Destination::All => {
            owners.broadcast(inbound, &served.scope);
            return intake::serve(faces, AdmittedRequest::Message(message)).await;
        }
    };
    let reason = match face {
        Face::Session => ForwardReason::Session,
        Face::Stateless => ForwardReason::HeldCall,
    };
    let answered = |response| match &**content {
        Message::Request(request) => ended_with_error(response, &request.id),
        Message::Notification(_) | Message::Response(_) => response,
    };
    match (owners.forward(inbound, peer, reason).await.map(answered), refusable) {
        (Ok(response), Some(refusable)) => refusable.count_miss(served, response),
        (Ok(response), None) => response,
        (Err(fault), _) if is_served_by_the_store(&served.sealer, content, fault.executed) => {
            intake::serve(faces, AdmittedRequest::Message(message)).await
        }
        (Err(fault), Some(refusable)) if refusable.has_id() => refusable.refuse_for_now(&fault),
        (Err(fault), _) => unanswered(&fault),
    }
}

/// The replica for a message of a session, or for the answers to a held call's questions. An `initialize` has none.
fn destination(
    faces: &impl PathFaces,
    owners: &SessionOwners,
    face: Face,
    inbound: &Inbound,
    message: &Message,
) -> Destination {
    let sealer = &faces.path().served.sealer;
    if face == Face::Stateless {
        let Message::Request(request) = message else { return Destination::Here };
        let params = request.params.object().filter(|_| method::may_ask(&request.method));
        let state = params.and_then(|params| params.get_string("requestState"));
        let call = state.and_then(|state| sealer.open(IdKind::RequestState, Some(&inbound.caller.principal), &state));
        let holder = call.and_then(|call| owners.named(&call.id));
        return holder.map_or(Destination::Here, Destination::from);
    }
    let Some(session) = session(sealer, inbound) else { return Destination::Here };
    match message {
        Message::Request(request) if request.method == method::INITIALIZE => Destination::Here,
        Message::Notification(notification) if notification.is_about_a_request() => {
            let is_own = |id| faces.has_in_flight(session.random, &id);
            match notification.cancelled().is_some_and(is_own) {
                true => Destination::Here,
                false => of_unknown_request(owners, &session),
            }
        }
        Message::Request(_) | Message::Notification(_) => owners.owner(&session, OwnerRequest::Begin).into(),
        Message::Response(response) => {
            match question(sealer, IdKind::Question, response).and_then(|id| owners.named(&id)) {
                Some(asked_by) => asked_by.into(),
                None => of_unknown_request(owners, &session),
            }
        }
    }
}

/// The session that a request names, if its principal owns it.
fn session(sealer: &Sealer, inbound: &Inbound) -> Option<GatewayId> {
    let sealed = headers::single(&inbound.headers, &headers::SESSION_ID).ok()??;
    Some(sealer.open(IdKind::Session, Some(&inbound.caller.principal), sealed)?.id)
}

fn question(sealer: &Sealer, kind: IdKind, response: &Response) -> Option<GatewayId> {
    Some(sealer.open(kind, None, sealed_in(&response.id.as_ref()?.as_text()?))?.id)
}

/// The replica of the stream that an event is of, if a gateway made it.
fn streamed_by(sealer: &Sealer, owners: &SessionOwners, last_event: Option<&HeaderValue>) -> Option<OwnerReplica> {
    let (sealed, _) = read_event_id(last_event?.to_str().ok()?)?;
    owners.named(&sealer.open(IdKind::EventStream, None, sealed)?.id)
}

/// The destination of a message if no id names its request's replica: broadcast while the session's owner drains.
fn of_unknown_request(owners: &SessionOwners, session: &GatewayId) -> Destination {
    owners.only_owner(session).map_or(Destination::All, Destination::from)
}

/// Whether any replica may serve a message about a task after the session's owner gave no response: a change only if
/// the owner did nothing; an answer always, because it takes effect once (EXT-39).
fn is_served_by_the_store(sealer: &Sealer, message: &Message, done_by_owner: Executed) -> bool {
    let request = match message {
        Message::Request(request) => request,
        Message::Response(response) => {
            return question(sealer, IdKind::TaskQuestion, response).is_some();
        }
        Message::Notification(_) => return false,
    };
    match &*request.method {
        method::TASKS_GET | method::TASKS_RESULT | method::TASKS_LIST => true,
        method::TASKS_CANCEL => done_by_owner == Executed::No,
        _ => false,
    }
}

/// A GET goes to its stream's replica, if one made it, else like a DELETE to the owner, which knows the calls (T-31).
async fn route_operation(faces: &impl PathFaces, owners: &Arc<SessionOwners>, inbound: Box<Inbound>) -> FaceResponse {
    let is_get = inbound.method == Method::GET;
    let sealer = &faces.path().served.sealer;
    let owner = || {
        session(sealer, &inbound).map(|session| match is_get {
            true => streamed_by(sealer, owners, inbound.headers.get(headers::LAST_EVENT_ID))
                .unwrap_or_else(|| owners.owner(&session, OwnerRequest::Begin)),
            false => owners.owner(&session, OwnerRequest::End),
        })
    };
    let answer = match owner() {
        Some(OwnerReplica::There(_)) if is_get => forward_stream(faces, owners, &inbound, owner).await,
        Some(OwnerReplica::There(peer)) => {
            let answer = owners.forward(&inbound, peer, ForwardReason::Session).await;
            Some(answer.unwrap_or_else(|_| unreachable_owner()))
        }
        Some(OwnerReplica::Here) | None => None,
    };
    match answer {
        Some(answer) => answer,
        None => intake::serve(faces, AdmittedRequest::Operation(inbound)).await,
    }
}

/// A forwarded stream takes a permit here, and ends with the gateway's other streams: its client resumes elsewhere.
/// Waits for an unreachable owner or its successor: SDKs open no stream after two refusals (F85). `None` for this replica.
async fn forward_stream(
    faces: &impl PathFaces,
    owners: &Arc<SessionOwners>,
    inbound: &Inbound,
    owner: impl Fn() -> Option<OwnerReplica>,
) -> Option<FaceResponse> {
    let PathContext { served, name, streams_end } = faces.path();
    // Taken before the owner replaces the stream's current reader.
    let permit = match served.listeners.take(&inbound.counted_as(), name) {
        Ok(permit) => permit,
        Err(fault) if fault.reason == Reason::Draining => return Some(bare(StatusCode::SERVICE_UNAVAILABLE)),
        Err(fault) => return Some(too_many(&fault)),
    };
    let mut wait_end = None;
    while let Some(OwnerReplica::There(peer)) = owner() {
        if let Ok(answer) = owners.forward(inbound, peer, ForwardReason::Session).await {
            let answer = ending_with(answer, || streams_end.clone().cancelled_owned());
            return Some(answer.map(|body| permit.keep(body)));
        }
        // A second attempt has no further effect, even if the owner has opened the stream.
        let is_over = Instant::now() >= *wait_end.get_or_insert_with(|| Instant::now() + TAKEOVER_MAX);
        if is_over || streams_end.run_until_cancelled(sleep(UNREACHABLE_RETRY)).await.is_none() {
            return Some(unreachable_owner());
        }
    }
    None
}

/// An array with requests goes to its session's owner; of one without, each message has its own destination.
async fn route_batch(
    faces: &impl PathFaces,
    owners: &Arc<SessionOwners>,
    inbound: Box<Inbound>,
    items: ArrayItems,
) -> FaceResponse {
    let sealer = &faces.path().served.sealer;
    let sealed = headers::single(&inbound.headers, &headers::SESSION_ID).ok().flatten();
    let token = sealed.and_then(|sealed| sealer.open_session(&inbound.caller.principal, sealed));
    let has_arrays = token.is_some_and(|token| token.client_version.traits().has_batches);
    let Some(session) = session(sealer, &inbound).filter(|_| has_arrays) else {
        return intake::serve(faces, AdmittedRequest::Batch(inbound, items)).await;
    };
    if items.iter().all(|(read, _)| array_answer::is_one_way(read)) {
        let route_alone = |inbound, message| {
            route_message(faces, owners, AdmittedMessage { inbound, message, face: Face::Session, refusable: None })
        };
        return array_answer::serve_one_way(&inbound, items, route_alone).await;
    }
    match owners.owner(&session, OwnerRequest::Begin) {
        OwnerReplica::There(peer) => {
            let request = |read| match read {
                Ok(Message::Request(request)) => Some(request.id),
                Ok(Message::Notification(_) | Message::Response(_)) | Err(_) => None,
            };
            let requests: Vec<RequestId> = items.into_iter().filter_map(|(read, _)| request(read)).collect();
            match owners.forward(&inbound, peer, ForwardReason::Session).await {
                Ok(response) => replica_array::completed(response, requests),
                Err(fault) if fault.executed == Executed::No => addressee(None, inbound.accepted).fault(&fault),
                Err(_) => {
                    array_answer::joined(stream::iter(requests).map(|id| replica_array::lost(&id)), inbound.accepted)
                }
            }
        }
        OwnerReplica::Here => intake::serve(faces, AdmittedRequest::Batch(inbound, items)).await,
    }
}

/// A request that another replica answers with a stream.
struct ReplicaStream(RequestId);

impl AnsweredRequest for ReplicaStream {
    fn id(&self) -> &RequestId {
        &self.0
    }

    fn is_resumable(&self) -> bool {
        true
    }

    fn fault_for_client(&self, _: &GatewayFault) -> GatewayFault {
        GatewayFault::new(Reason::ReplicaUnavailable, Executed::Unknown)
    }

    fn may_end_unanswered(&self) -> bool {
        true
    }
}

/// Another replica's response. If that ends, an event stream that the client cannot resume ends with an error (F92).
fn ended_with_error(response: FaceResponse, id: &RequestId) -> FaceResponse {
    if !is_event_stream(&response) {
        return response;
    }
    response.map(|body| {
        let request = ReplicaStream(id.clone());
        ResponseBody::new(PipeBody::new(body, BodyForm::Events, PipeTimeouts::default(), Some(request)))
    })
}

/// 503 if nothing was done, so that the client sends it again; 202 if a repetition could process it twice.
pub(super) fn unanswered(fault: &GatewayFault) -> FaceResponse {
    if fault.executed == Executed::No { unreachable_owner() } else { accepted() }
}

fn unreachable_owner() -> FaceResponse {
    addressee(None, AcceptedTypes::Json).fault(&session_owners::unreachable())
}
