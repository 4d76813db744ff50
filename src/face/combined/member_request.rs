//! Puts a request of an endpoint's client to one of the upstreams, in that client's name, and reads a whole answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;

use super::CombinedUpstreams;
use super::messages::metadata_alone;
use super::session::CombinedSession;
use crate::dialect::faults::gateway_error;
use crate::dialect::initialize::initialize_request;
use crate::face::answer::Addressee;
use crate::face::headers;
use crate::face::http::{AcceptedTypes, Endpoint as _, FaceResponse, Inbound, ResponseBody};
use crate::face::sealed::SessionToken;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::header_annotations;
use crate::wire::envelope::{self, Request};
use crate::wire::framing::BodyPart;
use crate::wire::object::ObjectWriter;
use crate::wire::{Message, Object, Payload, RequestId, RpcError, ScanLimits, rpc_error};

/// How long an upstream may take to say what it is or has, before it is taken for one that is away.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A client of an endpoint, by the request in hand.
#[derive(Clone)]
pub(super) struct EndpointClient {
    /// The request without its message.
    head: Inbound,
    /// Its session at the endpoint; `None` for one whose requests stand alone.
    pub(super) session: Option<Arc<CombinedSession>>,
    /// What it said of itself when it began that session.
    token: Option<Arc<SessionToken>>,
    /// Params of what is asked on its behalf beside its own request.
    metadata: Payload,
}

/// Why an upstream gave no result.
#[derive(Clone, Debug)]
pub(super) struct MemberRefusal(Arc<RefusedAnswer>);

/// The answer that was none.
#[derive(Debug)]
struct RefusedAnswer {
    status: StatusCode,
    headers: HeaderMap,
    error: Option<RpcError>,
}

impl MemberRefusal {
    fn of(status: StatusCode, headers: HeaderMap, error: Option<RpcError>) -> Self {
        Self(Arc::new(RefusedAnswer { status, headers, error }))
    }

    fn fault(reason: Reason) -> Self {
        let error = gateway_error(&GatewayFault::new(reason, Executed::No));
        Self::of(StatusCode::OK, HeaderMap::new(), Some(error))
    }

    /// That it did not answer in time.
    pub(super) fn late() -> Self {
        Self::fault(Reason::UpstreamTimeout)
    }

    fn malformed() -> Self {
        Self::fault(Reason::UpstreamMalformed)
    }

    /// Whether the server does not know what it was asked for: it has nothing of the kind.
    pub(super) fn is_unknown_method(&self) -> bool {
        self.0.error.as_ref().is_some_and(|error| error.code == rpc_error::METHOD_NOT_FOUND)
    }

    /// Whether another upstream may know what this one does not.
    pub(super) fn may_be_known_elsewhere(&self) -> bool {
        const RESOURCE_NOT_FOUND: i64 = -32002;
        let codes = [RESOURCE_NOT_FOUND, rpc_error::INVALID_PARAMS, rpc_error::METHOD_NOT_FOUND];
        self.0.error.as_ref().is_some_and(|error| codes.contains(&error.code))
    }

    /// Whether it is the client's mistake.
    pub(super) fn is_about_params(&self) -> bool {
        self.0.error.as_ref().is_some_and(|error| error.code == rpc_error::INVALID_PARAMS)
    }

    /// For a line of the log.
    pub(super) fn words(&self) -> String {
        match &self.0.error {
            Some(error) => crate::wire::one_line::name(&error.message),
            None => format!("HTTP {}", self.0.status.as_u16()),
        }
    }

    /// The same answer for a client of the endpoint.
    pub(super) fn into_response(self, addressee: &Addressee) -> FaceResponse {
        let error = self
            .0
            .error
            .clone()
            .unwrap_or_else(|| gateway_error(&GatewayFault::new(Reason::UpstreamRefused, Executed::No)));
        let mut response = addressee.error(self.0.status, &error);
        for name in [WWW_AUTHENTICATE, RETRY_AFTER] {
            for value in self.0.headers.get_all(&name) {
                response.headers_mut().append(name.clone(), value.clone());
            }
        }
        response
    }
}

impl EndpointClient {
    /// Of a request that stands alone, with these params.
    pub(super) fn stateless(inbound: &Inbound, params: Option<&Object>) -> Self {
        Self { head: head_of(inbound), session: None, token: None, metadata: metadata_alone(params) }
    }

    /// Of a request in a session.
    pub(super) fn in_session(inbound: &Inbound, token: &Arc<SessionToken>, session: &Arc<CombinedSession>) -> Self {
        let (session, token) = (Some(Arc::clone(session)), Some(Arc::clone(token)));
        Self { head: head_of(inbound), session, token, metadata: Payload::empty_object() }
    }

    /// The client's own words with which a session at an upstream is begun.
    pub(super) fn introduction(&self) -> Bytes {
        let Some(token) = &self.token else { return Bytes::new() };
        let declared = Object::of(&token.capabilities).filter(|_| token.declares_tasks);
        let with_tasks = declared.map(|declared| declared.edit().set("tasks", Payload::empty_object()).finish());
        let capabilities = with_tasks.as_ref().unwrap_or(&token.capabilities);
        let id = RequestId::text("taskgate-initialize");
        initialize_request(&id, token.client_version, capabilities, token.client_info.as_ref())
    }

    pub(super) const fn principal(&self) -> &crate::task::Principal {
        &self.head.principal
    }

    /// The request in hand without its message, as another one of the same client.
    pub(super) fn head(&self) -> Inbound {
        self.head.clone()
    }

    /// A message of this client for the upstream at `at`, in its session there.
    ///
    /// # Errors
    /// If there is no session to be had.
    pub(super) async fn inbound(
        &self,
        upstreams: &Arc<CombinedUpstreams>,
        at: usize,
        (text, message): (Bytes, Option<Message>),
    ) -> Result<Inbound, MemberRefusal> {
        let mut inbound = Inbound { body: text, message, ..self.head() };
        if let Some(session) = &self.session {
            let opened = upstreams.member_session(session, at, self).await?;
            inbound.headers.insert(headers::SESSION_ID, opened.id);
        }
        Ok(inbound)
    }

    /// Params for what is asked beside the client's own request: `member` besides what each request of the client has.
    pub(super) fn params(&self, member: Option<(&str, Payload)>) -> Payload {
        match (Object::of(&self.metadata), member) {
            (Some(own), Some((key, value))) => own.edit().set(key, value).finish(),
            (None, Some((key, value))) => ObjectWriter::new().member(key, &value).finish(),
            (Some(_) | None, None) => self.metadata.clone(),
        }
    }

    /// Asks the upstream at `at` for something, and reads the whole result.
    ///
    /// # Errors
    /// If it gives none.
    pub(super) async fn ask(
        &self,
        upstreams: &Arc<CombinedUpstreams>,
        at: usize,
        method: &str,
        params: Payload,
    ) -> Result<Object, MemberRefusal> {
        let id = RequestId::text(&format!("taskgate-{:032x}", (upstreams.common().random)()));
        let text = envelope::request(&id, method, Some(&params));
        let mut inbound = self.inbound(upstreams, at, (text, None)).await?;
        inbound.accepted = AcceptedTypes::Json;
        if self.session.is_none() {
            let name = headers::naming_member(method).and_then(|member| Object::of(&params)?.get_string(member));
            named(&mut inbound.headers, method, name.and_then(|name| header_annotations::encode(&name)));
        }
        let answer = upstreams.members[at].endpoint.serve(inbound).await;
        read_result(answer, upstreams.members[at].served.settings.result_bytes_max).await
    }

    /// Passes the client's own request to the upstream at `at`, with `params` in place of its own where these are edited.
    pub(super) async fn pass(
        &self,
        upstreams: &Arc<CombinedUpstreams>,
        at: usize,
        (request, original): (&Request, &Bytes),
        params: Option<Payload>,
    ) -> Result<FaceResponse, MemberRefusal> {
        let parcel = match &params {
            Some(params) => (envelope::request(&request.id, &request.method, Some(params)), None),
            None => (original.clone(), Some(Message::Request(request.clone()))),
        };
        let mut inbound = self.inbound(upstreams, at, parcel).await?;
        if self.session.is_none()
            && let Some(params) = params.as_ref().and_then(Object::of)
        {
            renamed(&mut inbound.headers, request, &params);
        }
        Ok(upstreams.members[at].endpoint.serve(inbound).await)
    }
}

/// A request without its message, which is counted by now.
fn head_of(inbound: &Inbound) -> Inbound {
    Inbound {
        method: Method::POST,
        path: inbound.path.clone(),
        query: None,
        headers: inbound.headers.clone(),
        body: Bytes::new(),
        message: None,
        principal: inbound.principal.clone(),
        client: inbound.client,
        accepted: inbound.accepted,
        received_at: inbound.received_at,
        carriage: inbound.carriage,
        is_counted: true,
    }
}

/// Has the headers of a stateless request say what its body says: which method, and about what.
fn named(all: &mut HeaderMap, method: &str, name: Option<HeaderValue>) {
    if let Ok(value) = HeaderValue::from_str(method) {
        all.insert(headers::METHOD, value);
    }
    match name {
        Some(name) => _ = all.insert(headers::NAME, name),
        None => _ = all.remove(headers::NAME),
    }
}

/// The same for a request whose params were edited. A header that said another thing than the body stays, and is refused by
/// whoever reads both (MOD-06).
fn renamed(all: &mut HeaderMap, request: &Request, edited: &Object) {
    let Some(member) = headers::naming_member(&request.method) else { return };
    if headers::check_name(all, &request.method, request.params.object()).is_err() || !all.contains_key(headers::NAME) {
        return;
    }
    if let Some(name) = edited.get_string(member).and_then(|name| header_annotations::encode(&name)) {
        all.insert(headers::NAME, name);
    }
}

/// Reads the result out of a whole answer.
///
/// # Errors
/// If it holds none.
pub(super) async fn read_result(answer: FaceResponse, bytes_max: usize) -> Result<Object, MemberRefusal> {
    let (head, body) = answer.into_parts();
    let Some(text) = whole(body, bytes_max).await else { return Err(MemberRefusal::malformed()) };
    let outcome = match envelope::read(&text, ScanLimits::UPSTREAM) {
        Ok(Message::Response(response)) => response.into_outcome(),
        Ok(Message::Request(_) | Message::Notification(_)) | Err(_) if head.status.is_success() => {
            return Err(MemberRefusal::malformed());
        }
        Ok(Message::Request(_) | Message::Notification(_)) | Err(_) => {
            return Err(MemberRefusal::of(head.status, head.headers, None));
        }
    };
    match outcome {
        Ok(result) => Object::of(&result).ok_or_else(MemberRefusal::malformed),
        Err(error) => Err(MemberRefusal::of(head.status, head.headers, Some(error))),
    }
}

/// A whole body of at most `bytes_max` bytes and its envelope.
pub(super) async fn whole(mut body: ResponseBody, bytes_max: usize) -> Option<Bytes> {
    const ENVELOPE_BYTES: usize = 64 << 10;
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(bytes) = frame.ok()?.into_data().map(BodyPart::into_bytes) else { continue };
        if all.len() + bytes.len() > bytes_max.saturating_add(ENVELOPE_BYTES) {
            return None;
        }
        if all.is_empty() && body.is_end_stream() {
            return Some(bytes);
        }
        all.extend_from_slice(&bytes);
    }
    Some(all.freeze())
}
