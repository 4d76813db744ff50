//! Admits the messages of one upstream to a client of its endpoint. Servers share the client's session, and ids alone
//! assign messages, so only messages about requests that the server received pass ([`admitted`]).

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, SizeHint};

use super::CombinedUpstreams;
use super::member_session::{CombinedSession, SentToken};
use super::messages::{
    RefusedMessage, RequestMark, SentRequests, admitted, answers_sent_request, plain, request_id_bytes_max,
};
use crate::dialect::faults::gateway_error;
use crate::face::answer::Addressee;
use crate::face::headers;
use crate::face::http::{Endpoint as _, FaceResponse, Inbound, ResponseBody, broken_body, full_body};
use crate::metric;
use crate::task::{Caller, Executed, GatewayFault, Principal, Reason, TaskId};
use crate::wire::envelope::{self, Request};
use crate::wire::framing::{BodyPart, MessageClassifier};
use crate::wire::meta::{META, RELATED_TASK};
use crate::wire::{MessageText, Object, RequestId, RpcError, progress, rpc_error};

/// The limit of concurrent error responses to the servers of one endpoint.
pub(super) const REFUSALS_MAX: usize = 64;

const UNREQUESTED: &str = "unrequested";
const UNREADABLE: &str = "unreadable";

#[derive(Clone, Debug)]
pub(super) enum AnswerScope {
    /// The session's own stream: servers send no responses there.
    None,
    Asked {
        id: RequestId,
        token: Option<RequestId>,
    },
    Resumed(RequestMark),
}

impl AnswerScope {
    pub(super) fn of(request: &Request) -> Self {
        Self::Asked { id: request.id.clone(), token: request.params.object().and_then(progress::token) }
    }

    pub(super) fn mark(&self) -> Option<RequestMark> {
        match self {
            Self::None => None,
            Self::Asked { id, token } => Some(RequestMark::of(id, token.as_ref())),
            Self::Resumed(mark) => Some(mark.clone()),
        }
    }
}

pub(super) struct ServerVoice {
    pub(super) upstreams: Arc<CombinedUpstreams>,
    pub(super) at: usize,
    pub(super) principal: Principal,
    pub(super) request: AnswerScope,
    pub(super) session: Option<(Arc<CombinedSession>, Caller)>,
    /// The request's progress token, which the upstream may use on other streams, too.
    pub(super) sent_token: Option<SentToken>,
}

impl SentRequests for ServerVoice {
    fn may_answer(&self, id: &RequestId) -> bool {
        match &self.request {
            AnswerScope::None => false,
            AnswerScope::Asked { id: asked, .. } => plain(asked) == plain(id),
            AnswerScope::Resumed(mark) => mark.names(id),
        }
    }

    fn may_report(&self, token: &RequestId, params: &Object) -> bool {
        let is_of_stream = match &self.request {
            AnswerScope::None => false,
            AnswerScope::Asked { token: asked, .. } => asked.as_ref().is_some_and(|asked| plain(asked) == plain(token)),
            AnswerScope::Resumed(mark) => mark.names_token(token),
        };
        is_of_stream
            || self.session.as_ref().is_some_and(|(session, caller)| {
                session.was_sent_token(self.upstream(), token) || self.is_of_running_task(caller, params)
            })
    }

    fn asked(&self) -> Option<&RequestId> {
        if let AnswerScope::Asked { id, .. } = &self.request { Some(id) } else { None }
    }
}

impl ServerVoice {
    pub(super) fn upstream(&self) -> &Arc<str> {
        &self.upstreams.settings.upstreams[self.at]
    }

    /// Selects the upstream that is about to receive the request.
    pub(super) fn select(&mut self, at: usize) {
        self.at = at;
        if let (AnswerScope::Asked { token: Some(token), .. }, Some((session, _))) = (&self.request, &self.session) {
            self.sent_token = Some(session.note_token(self.upstream(), token));
        }
    }

    /// Whether progress is for a running task of the gateway: its token outlives its call. Servers know no such ids.
    fn is_of_running_task(&self, caller: &Caller, params: &Object) -> bool {
        let related = params.get_object(META).and_then(|meta| meta.get_object(RELATED_TASK));
        let id = related.and_then(|related| TaskId::parse(&related.get_string("taskId")?));
        id.is_some_and(|id| self.upstreams.common().engine.is_running(&caller.task(id)))
    }

    /// An edited message takes the bytes that the upstream's held until now (B190).
    pub(super) fn admit(&self, text: MessageText) -> Option<MessageText> {
        let (mut refused, original) = (Vec::new(), text.as_ptr());
        let shown = admitted(self.upstream(), self, text, &mut refused);
        for message in refused {
            match message {
                RefusedMessage::Unrequested => self.note_dropped(UNREQUESTED),
                RefusedMessage::Unreadable(_) => self.note_dropped(UNREADABLE),
                RefusedMessage::LongId(id) => self.refuse(&id),
            }
        }
        match shown {
            Some(edited) if edited.as_ptr() != original => {
                let limits = self.upstreams.read_limits(self.at, &self.principal);
                Some(edited.held_by(|text| limits.rehold(text)))
            }
            same => same,
        }
    }

    fn note_dropped(&self, reason: &'static str) {
        let upstream = self.upstream();
        metric::count_dropped(upstream, reason);
        if self.upstreams.members[self.at].dropped_logged.is_due() {
            let endpoint = &self.upstreams.settings.path;
            tracing::warn!(
                %endpoint, %upstream, reason,
                "a server's message was dropped: it is about a request that the server did not receive, or it cannot be read"
            );
        }
    }

    /// Refuses a server's request in the background, best effort.
    fn refuse(&self, id: &RequestId) {
        let upstream = self.upstream();
        metric::count_dropped(upstream, "long_id");
        let Some((session, caller)) = &self.session else { return };
        let Some(opened) = session.open_member(upstream) else { return };
        let Ok(permit) = Arc::clone(&self.upstreams.refusals).try_acquire_owned() else { return };
        let what = format!(
            "the request's id has {} bytes, and an endpoint of several servers takes {} at most",
            id.as_json().len(),
            request_id_bytes_max(upstream)
        );
        let error = envelope::error(Some(id), &RpcError::new(rpc_error::INVALID_REQUEST, what));
        let inbound = self.upstreams.gateways_message(session, caller.clone(), opened, Method::POST, error);
        let (upstreams, at) = (Arc::clone(&self.upstreams), self.at);
        let refusing = async move {
            let _permit = permit;
            let _ = upstreams.members[at].endpoint.serve(Box::new(inbound)).await;
        };
        let scope = &self.upstreams.common().scope;
        scope.tracker.spawn(scope.stop.clone().run_until_cancelled_owned(refusing));
    }

    /// A response in several parts is aborted if it turns out not to be admitted.
    pub(super) async fn admit_answer(self, answer: FaceResponse, addressee: &Addressee) -> FaceResponse {
        if !answer.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json")) {
            return answer;
        }
        let (head, mut body) = answer.into_parts();
        let first = match body.frame().await {
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            Some(Err(error)) => return FaceResponse::from_parts(head, broken_body(error)),
            None => BodyPart::default(),
        };
        if !body.is_end_stream() {
            let body = JsonAnswer { voice: self, look: MessageClassifier::default(), held: Some(first), source: body };
            return FaceResponse::from_parts(head, ResponseBody::new(body));
        }
        let text = first.into_bytes();
        match text.is_empty() {
            true => FaceResponse::from_parts(head, full_body(text)),
            false => match self.admit(text.into()) {
                Some(text) => FaceResponse::from_parts(head, full_body(text.into_bytes())),
                None => {
                    let fault = GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown);
                    addressee.error(StatusCode::OK, &gateway_error(&fault))
                }
            },
        }
    }
}

impl CombinedUpstreams {
    pub(super) fn gateways_message(
        &self,
        session: &CombinedSession,
        caller: Caller,
        id: HeaderValue,
        method: Method,
        body: Bytes,
    ) -> Inbound {
        let mut all = session.identifying_headers();
        all.insert(headers::SESSION_ID, id);
        Inbound { headers: all, body, is_counted: true, ..Inbound::new(method, self.settings.path.to_string(), caller) }
    }
}

/// Holds each part until the next arrives: the last one is sent only after the id was checked.
struct JsonAnswer {
    voice: ServerVoice,
    look: MessageClassifier,
    held: Option<BodyPart>,
    source: ResponseBody,
}

impl Body for JsonAnswer {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        let this = self.get_mut();
        let next = ready!(Pin::new(&mut this.source).poll_frame(cx)).transpose()?;
        let next = next.map(|frame| frame.into_data().unwrap_or_default());
        let Some(held) = std::mem::replace(&mut this.held, next) else { return Poll::Ready(None) };
        this.look.feed(&held.clone().into_bytes());
        if this.held.is_none() && !answers_sent_request(&this.voice, &this.look) {
            let is_odd = this.look.may_be_request() || this.look.has_odd_id();
            this.voice.note_dropped(if is_odd { UNREADABLE } else { UNREQUESTED });
            return Poll::Ready(Some(Err(io::Error::other("the response is for another request"))));
        }
        Poll::Ready(Some(Ok(Frame::data(held))))
    }

    fn size_hint(&self) -> SizeHint {
        match self.source.size_hint().exact() {
            Some(rest) => SizeHint::with_exact(rest + self.held.as_ref().map_or(0, |held| held.len() as u64)),
            None => SizeHint::default(),
        }
    }
}
