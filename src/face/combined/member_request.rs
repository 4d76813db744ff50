//! Sends a request to an upstream on behalf of an endpoint's client.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::CombinedUpstreams;
use super::admission::{AnswerScope, ServerVoice};
use super::member_answer::{MemberRefusal, read_result};
use super::member_session::{CombinedSession, HandshakeSource, OpenedMember};
use super::messages::metadata_alone;
use crate::answer_budget::as_one_request;
use crate::face::headers;
use crate::face::http::{AcceptedTypes, Endpoint as _, FaceResponse, Inbound};
use crate::face::idempotency_key;
use crate::face::sealed::SessionToken;
use crate::task::{Caller, Principal};
use crate::upstream::ForwardedHeaders;
use crate::upstream::header_annotations;
use crate::wire::envelope::{self, Params, Request};
use crate::wire::object::ObjectWriter;
use crate::wire::{Message, Object, Payload, RequestId, method, progress};

#[derive(Clone)]
pub(super) struct EndpointClient {
    pub(super) upstreams: Arc<CombinedUpstreams>,
    /// The request without its message.
    head: Box<Inbound>,
    /// `None` for a stateless request.
    pub(super) session: Option<Arc<CombinedSession>>,
    token: Option<Arc<SessionToken>>,
    /// Params of requests that the gateway sends on the client's behalf.
    metadata: Payload,
}

impl EndpointClient {
    pub(super) fn stateless(upstreams: &Arc<CombinedUpstreams>, inbound: &Inbound, params: Option<&Object>) -> Self {
        let (upstreams, head) = (Arc::clone(upstreams), head_of(Box::new(inbound.clone())));
        Self { upstreams, head, session: None, token: None, metadata: metadata_alone(params) }
    }

    pub(super) fn in_session(
        upstreams: &Arc<CombinedUpstreams>,
        inbound: Box<Inbound>,
        token: &Arc<SessionToken>,
        session: &Arc<CombinedSession>,
    ) -> Self {
        let (session, token) = (Some(Arc::clone(session)), Some(Arc::clone(token)));
        let (upstreams, head) = (Arc::clone(upstreams), head_of(inbound));
        Self { upstreams, head, session, token, metadata: Payload::empty_object() }
    }

    /// The client of a stream, which keeps no part of its request's body.
    pub(super) fn without_metadata(&self) -> Self {
        Self { metadata: Payload::empty_object(), ..self.clone() }
    }

    pub(super) const fn caller(&self) -> &Caller {
        &self.head.caller
    }

    pub(super) fn counted_as(&self) -> Principal {
        self.head.counted_as()
    }

    pub(super) const fn principal(&self) -> &Principal {
        &self.head.caller.principal
    }

    /// Whether a request is a call with an idempotency key.
    pub(super) fn names(&self, request: &Request) -> bool {
        let is_given = |params| idempotency_key::is_given(&self.head.headers, params);
        request.method == method::TOOLS_CALL && request.params.object().is_some_and(is_given)
    }

    /// Opens a session at the upstream if there is none. Fails if the upstream refuses one.
    pub(super) async fn opened(&self, at: usize) -> Result<OpenedMember, MemberRefusal> {
        let (Some(session), Some(token)) = (&self.session, &self.token) else { return Err(MemberRefusal::late()) };
        self.upstreams.member_session(session, at, HandshakeSource { head: &self.head, token }).await
    }

    pub(super) fn voice(&self, at: usize, request: AnswerScope) -> ServerVoice {
        let session = self.session.as_ref().map(|session| (Arc::clone(session), self.head.caller.clone()));
        let principal = self.principal().clone();
        ServerVoice { upstreams: Arc::clone(&self.upstreams), at, principal, request, session, sent_token: None }
    }

    /// Builds a message of this client for an upstream, in its session there. Fails if no session can be opened.
    pub(super) async fn inbound(&self, at: usize, text: Bytes) -> Result<Inbound, MemberRefusal> {
        self.clone().into_inbound(at, text, None).await
    }

    /// As [`EndpointClient::inbound`], for the last message of the current request, which takes its headers.
    async fn into_inbound(self, at: usize, text: Bytes, message: Option<Message>) -> Result<Inbound, MemberRefusal> {
        let id = match &self.session {
            Some(_) => Some(self.opened(at).await.map_err(MemberRefusal::before_a_request)?.id),
            None => None,
        };
        let mut inbound = Inbound { body: text, message, ..*self.head };
        match (id, inbound.headers.get_mut(headers::SESSION_ID)) {
            (Some(id), Some(own)) => *own = id,
            (Some(id), None) => _ = inbound.headers.insert(headers::SESSION_ID, id),
            (None, _) => (),
        }
        Ok(inbound)
    }

    /// Params of the client's metadata and `member`.
    pub(super) fn params(&self, member: Option<(&'static str, Payload)>) -> Payload {
        match (Object::of(&self.metadata), member) {
            (Some(own), Some((key, value))) => own.edit().set(key, value).finish(),
            (None, Some((key, value))) => ObjectWriter::new().member(key, &value).finish(),
            (Some(_) | None, None) => self.metadata.clone(),
        }
    }

    pub(super) async fn request(&self, at: usize, method: &str, params: Payload) -> Result<Object, MemberRefusal> {
        let upstreams = &self.upstreams;
        let token = Object::of(&params).as_ref().and_then(progress::token);
        let noted = self.session.as_ref().zip(token);
        let _sent_token = noted.map(|(session, token)| session.note_token(&upstreams.settings.upstreams[at], &token));
        let id = RequestId::text(&format!("taskgate-{:032x}", (upstreams.common().random)()));
        let text = envelope::request(&id, method, Some(&params));
        let mut inbound = self.inbound(at, text).await?;
        inbound.accepted = AcceptedTypes::Json;
        if self.session.is_none() {
            let name = headers::naming_member(method).and_then(|member| Object::of(&params)?.get_string(member));
            named(&mut inbound.headers, method, name.and_then(|name| header_annotations::encode(&name)));
        }
        // The member's response and its copy here are one request's: neither waits for the other's bytes.
        as_one_request(async {
            let answer = served(self.session.as_ref(), upstreams, at, inbound).await;
            read_result(answer, &upstreams.read_limits(at, self.principal())).await
        })
        .await
    }

    /// Forwards the client's request, with `params` if these are edited. Fails as [`EndpointClient::inbound`].
    pub(super) async fn pass(
        self,
        at: usize,
        request: Request,
        text: Bytes,
        params: Option<Payload>,
    ) -> Result<FaceResponse, MemberRefusal> {
        let (upstreams, session) = (Arc::clone(&self.upstreams), self.session.clone());
        let inbound = self.prepared(at, request, text, params).await?;
        Ok(served(session.as_ref(), &upstreams, at, inbound).await)
    }

    /// Builds the forwarded request for that upstream's endpoint. Fails as [`EndpointClient::inbound`].
    pub(super) async fn prepared(
        mut self,
        at: usize,
        mut request: Request,
        mut text: Bytes,
        params: Option<Payload>,
    ) -> Result<Inbound, MemberRefusal> {
        if let Some(params) = params {
            text = envelope::request(&request.id, &request.method, Some(&params));
            let params = Object::of(&params);
            if self.session.is_none()
                && let Some(params) = &params
            {
                renamed(&mut self.head.headers, &request.method, params);
            }
            request.params = params.map_or(Params::Absent, Params::Object);
        }
        self.into_inbound(at, text, Some(Message::Request(request))).await
    }
}

/// If the session has ended, the next request opens a new one.
pub(super) async fn served(
    session: Option<&Arc<CombinedSession>>,
    upstreams: &CombinedUpstreams,
    at: usize,
    inbound: Inbound,
) -> FaceResponse {
    let id = inbound.headers.get(headers::SESSION_ID).cloned();
    let answer = upstreams.members[at].endpoint.serve(Box::new(inbound)).await;
    if let (Some(session), Some(id), StatusCode::NOT_FOUND) = (session, id, answer.status()) {
        session.remove_member(&upstreams.settings.upstreams[at], &id);
    }
    answer
}

/// The request without its message, marked as counted.
fn head_of(mut inbound: Box<Inbound>) -> Box<Inbound> {
    inbound.method = Method::POST;
    inbound.query = None;
    inbound.body = Bytes::new();
    inbound.message = None;
    inbound.forwarded = ForwardedHeaders::default();
    inbound.is_counted = true;
    inbound
}

fn named(all: &mut HeaderMap, method: &str, name: Option<HeaderValue>) {
    if let Ok(value) = HeaderValue::from_str(method) {
        all.insert(headers::METHOD, value);
    }
    match name {
        Some(name) => _ = all.insert(headers::NAME, name),
        None => _ = all.remove(headers::NAME),
    }
}

/// Updates the name header, which matched the body before its params were edited.
fn renamed(all: &mut HeaderMap, method: &str, edited: &Object) {
    let Some(member) = headers::naming_member(method).filter(|_| all.contains_key(headers::NAME)) else { return };
    if let Some(name) = edited.get_string(member).and_then(|name| header_annotations::encode(&name)) {
        all.insert(headers::NAME, name);
    }
}
