//! Admits a request of a path: reads its message, counts it, and refuses it if it cannot be served now.

use http::{HeaderMap, Method, StatusCode};

use super::answer::{Addressee, UnknownTaskMarker, addressee, only_post, stateless_addressee, too_often, unreadable};
use super::array_answer::ArrayItems;
use super::headers::{self, Face, face_of, header_is_stateless};
use super::http::{FaceResponse, Inbound, empty_body};
use super::idempotency_key;
use super::served::Served;
use super::session::refuse;
use crate::answer_budget::BudgetRefusal;
use crate::dialect::RequestError;
use crate::dialect::fallback_tools::FallbackTool;
use crate::dialect::faults::{bound_error, gateway_error, rate_error};
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::task::{Executed, GatewayFault, Principal, RateRefusal, Reason};
use crate::wire::envelope::{self, EnvelopeError, Request, is_batch, split_batch};
use crate::wire::{Message, RpcError, ScanLimits, method};

const UNRECORDED: GatewayFault = GatewayFault::new(Reason::AuditUnavailable, Executed::No);
const LATE: GatewayFault = GatewayFault::new(Reason::Draining, Executed::No);

pub(super) enum AdmittedRequest {
    Message(AdmittedMessage),
    Batch(Box<Inbound>, ArrayItems),
    /// GET or DELETE in a session.
    Operation(Box<Inbound>),
    Refused(FaceResponse),
}

/// A message with the request that carried it. Both are boxed: each future that has them would hold them twice.
pub(super) struct AdmittedMessage {
    pub(super) inbound: Box<Inbound>,
    pub(super) message: Box<Message>,
    pub(super) face: Face,
    /// Absent if the request was counted before.
    pub(super) refusable: Option<RefusableRequest>,
}

/// Admits a request, unless its client has disconnected and needs no response.
pub(super) fn admit(served: &Served, mut inbound: Box<Inbound>) -> AdmittedRequest {
    if is_batch(&inbound.body) && !header_is_stateless(&inbound.headers) {
        return admit_batch(served, inbound);
    }
    if inbound.method != Method::POST {
        return match count_many(served, &inbound, 1) {
            Ok(()) if is_in_session(&inbound.headers) => AdmittedRequest::Operation(inbound),
            Ok(()) => AdmittedRequest::Refused(only_post()),
            Err(refusal) => AdmittedRequest::Refused(too_often(&refusal)),
        };
    }
    match inbound.message.take().map_or_else(|| envelope::read(&inbound.body, ScanLimits::CLIENT), Ok) {
        Ok(message) if !inbound.arrival.is_wanted([&message]) => {
            AdmittedRequest::Refused(FaceResponse::new(empty_body()))
        }
        Ok(message) => admit_message(served, inbound, Box::new(message)),
        Err(error) => AdmittedRequest::Refused(refuse_unreadable(served, &inbound, error)),
    }
}

fn refuse_unreadable(served: &Served, inbound: &Inbound, error: EnvelopeError) -> FaceResponse {
    if let Err(refusal) = count_many(served, inbound, 1) {
        return too_often(&refusal);
    }
    let (id, complaint) = unreadable(error);
    if header_is_stateless(&inbound.headers) {
        stateless_addressee(inbound, id).complaint(&complaint)
    } else {
        refuse(&addressee(id.as_ref(), inbound.accepted), &complaint)
    }
}

/// Whether a GET or DELETE may be of a session; stateless clients have none (B53).
fn is_in_session(all: &HeaderMap) -> bool {
    (all.contains_key(headers::SESSION_ID) || all.contains_key(headers::PROTOCOL_VERSION)) && !header_is_stateless(all)
}

fn admit_message(served: &Served, inbound: Box<Inbound>, message: Box<Message>) -> AdmittedRequest {
    let face = era_of(&message, &inbound.headers);
    let unserved = unserved(served, &message);
    if inbound.is_counted && unserved.is_none() {
        return AdmittedRequest::Message(AdmittedMessage { inbound, message, face, refusable: None });
    }
    let refusable = RefusableRequest::of(&message, face, &inbound);
    if !inbound.is_counted
        && let Err(refusal) = count(served, &refusable, &inbound, &message)
    {
        return AdmittedRequest::Refused(refusable.refuse(&refusal));
    }
    if let Some(fault) = unserved {
        return AdmittedRequest::Refused(refusable.refuse_for_now(fault));
    }
    if let Message::Request(request) = &*message
        && let Some(full) = no_bytes(served, &inbound, &request.method)
    {
        return AdmittedRequest::Refused(
            refusable.refuse_in_words(&full.fault, &bound_error(&full.fault, full.bytes_max)),
        );
    }
    AdmittedRequest::Message(AdmittedMessage { inbound, message, face, refusable: Some(refusable) })
}

fn admit_batch(served: &Served, inbound: Box<Inbound>) -> AdmittedRequest {
    let items = match split_batch(&inbound.body, ScanLimits::CLIENT, envelope::BATCH_MAX) {
        Ok(items) => items,
        Err(error) => {
            return AdmittedRequest::Refused(refuse(&addressee(None, inbound.accepted), &unreadable(error).1));
        }
    };
    if let Err(refusal) = count_many(served, &inbound, items.len()) {
        return AdmittedRequest::Refused(too_often(&refusal));
    }
    let batch: ArrayItems = items.into_iter().map(|item| (envelope::read(&item, ScanLimits::CLIENT), item)).collect();
    match refusal_of_batch(served, &inbound, &batch) {
        Some(refusal) => AdmittedRequest::Refused(refusal),
        None => AdmittedRequest::Batch(inbound, batch),
    }
}

fn refusal_of_batch(served: &Served, inbound: &Inbound, batch: &ArrayItems) -> Option<FaceResponse> {
    let addressee = addressee(None, inbound.accepted);
    let messages = || batch.iter().filter_map(|(read, _)| read.as_ref().ok());
    if !inbound.arrival.is_wanted(messages()) {
        return Some(FaceResponse::new(empty_body()));
    }
    if let Some(fault) = messages().find_map(|message| unserved(served, message)) {
        return Some(addressee.fault(fault));
    }
    if !inbound.is_counted
        && let Some(full) = no_bytes(served, inbound, method::RESOURCES_READ)
    {
        return Some(addressee.fault_in_words(&full.fault, &bound_error(&full.fault, full.bytes_max)));
    }
    if messages().any(|message| era_of(message, &inbound.headers) == Face::Stateless) {
        let complaint = RequestError::not_a_request("stateless requests cannot be in a batch");
        return Some(refuse(&addressee, &complaint));
    }
    let has_key = inbound.headers.contains_key(idempotency_key::HEADER);
    has_key.then(|| refuse(&addressee, &idempotency_key::of_an_array()))
}

fn count_many(served: &Served, inbound: &Inbound, many: usize) -> Result<(), RateRefusal> {
    if inbound.is_counted { Ok(()) } else { served.rates.admit(&inbound.counted_as(), many) }
}

/// Counts a message. A client with many tasks may poll often.
fn count(
    served: &Served,
    refusable: &RefusableRequest,
    inbound: &Inbound,
    message: &Message,
) -> Result<(), RateRefusal> {
    let Served { rates, engine, .. } = served;
    match message {
        Message::Request(request) if matches!(&*request.method, method::TASKS_GET | method::TASKS_RESULT) => {
            rates.poll(&refusable.principal, || engine.unfinished_of(&inbound.caller.principal))
        }
        Message::Request(_) | Message::Notification(_) | Message::Response(_) => rates.admit(&refusable.principal, 1),
    }
}

/// Why a request with a possibly large response is refused: responses in progress hold all bytes.
fn no_bytes(served: &Served, inbound: &Inbound, name: &str) -> Option<BudgetRefusal> {
    let is_short = matches!(name, method::PING | method::INITIALIZE | method::TASKS_CANCEL | method::TASKS_UPDATE);
    if is_short { None } else { served.engine.limits().refusal_of_answers(&inbound.caller.principal) }
}

/// Why a message is refused for now: the gateway drains, or cannot write a required audit record.
fn unserved(served: &Served, message: &Message) -> Option<&'static GatewayFault> {
    if begins_late(served, message) {
        return Some(&LATE);
    }
    served.engine.audit().filter(|audit| !audit.is_available())?;
    let is_refused = matches!(message, Message::Request(request) if is_recorded(request));
    is_refused.then_some(&UNRECORDED)
}

/// Whether a request, or the state of a task in its response, is an event of the audit.
fn is_recorded(request: &Request) -> bool {
    let name = &*request.method;
    let names_tasks = || request.params.object().is_some_and(SubscriptionFilter::speak_of_tasks);
    name == method::TOOLS_CALL || name.starts_with("tasks/") || (name == method::LISTEN && names_tasks())
}

/// Whether a message would begin a call during the drain. Tasks can be polled until its end.
fn begins_late(served: &Served, message: &Message) -> bool {
    let Message::Request(request) = message else { return false };
    if request.method != method::TOOLS_CALL || !served.engine.is_draining() {
        return false;
    }
    let Some(params) = request.params.object() else { return true };
    // A request with answers to a call's questions continues that call. A tool with a fallback name is probably the gateway's.
    let goes_on = params.contains("requestState");
    !goes_on && params.get_string("name").is_none_or(|name| FallbackTool::named(&name).is_none())
}

/// The parts of a request that a refusal needs after its face or another replica took the rest.
pub(super) struct RefusableRequest {
    principal: Principal,
    addressee: Addressee,
    face: Face,
}

impl RefusableRequest {
    fn of(message: &Message, face: Face, inbound: &Inbound) -> Self {
        let id = message.request().map(|request| request.id.clone());
        let addressee = match face {
            Face::Stateless => stateless_addressee(inbound, id),
            Face::Session => addressee(id.as_ref(), inbound.accepted),
        };
        Self { principal: inbound.counted_as(), addressee, face }
    }

    /// 503, except for requests of session clients (GW-04): a retry here or at another replica succeeds.
    pub(super) fn refuse_for_now(&self, fault: &GatewayFault) -> FaceResponse {
        self.refuse_in_words(fault, &gateway_error(fault))
    }

    fn refuse_in_words(&self, fault: &GatewayFault, error: &RpcError) -> FaceResponse {
        match self.face {
            Face::Stateless => self.addressee.fault_in_words(fault, error),
            Face::Session => self.addressee.error(StatusCode::OK, error),
        }
    }

    pub(super) const fn has_id(&self) -> bool {
        self.addressee.id.is_some()
    }

    /// Counts a response about an unknown task, and refuses the client if there were too many.
    pub(super) fn count_miss(&self, served: &Served, response: FaceResponse) -> FaceResponse {
        if response.extensions().get::<UnknownTaskMarker>().is_none() {
            return response;
        }
        match served.rates.missed(&self.principal) {
            Ok(()) => response,
            Err(refusal) => self.refuse(&refusal),
        }
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

pub(super) fn refuse_all(inbound: &Inbound, fault: &GatewayFault) -> FaceResponse {
    let read = (inbound.method == Method::POST).then(|| envelope::read(&inbound.body, ScanLimits::CLIENT));
    match read {
        Some(Ok(message)) => {
            RefusableRequest::of(&message, era_of(&message, &inbound.headers), inbound).refuse_for_now(fault)
        }
        Some(Err(_)) | None => stateless_addressee(inbound, None).fault(fault),
    }
}

fn era_of(message: &Message, all: &HeaderMap) -> Face {
    let params = match message {
        Message::Request(request) => request.params.object(),
        Message::Notification(notification) => notification.params.object(),
        Message::Response(_) => None,
    };
    face_of(params, all)
}
