//! Serves clients with sessions at an endpoint of several upstreams. The endpoint's session id is sealed. Sessions at
//! the upstreams are opened on demand, with the client's `initialize`; their ids are lost with the process or under a
//! flood of sessions, then new ones are opened.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Method, StatusCode};

use super::admission::AnswerScope;
use super::member_answer::MemberRefusal;
use super::member_request::{EndpointClient, served};
use super::member_session::{CombinedSession, KnownSession, SessionOwner};
use super::merge::{self, ServerDescription};
use super::routing::RequestTarget;
use super::{ANSWER_MAX, CombinedUpstreams, HANDSHAKE_MAX, messages, own_stream};
use crate::dialect::RequestError;
use crate::dialect::fallback_tools::FallbackTools;
use crate::dialect::negotiate::LogLevel;
use crate::dialect::session_results::initialize_result;
use crate::face::answer::{Addressee, accepted, addressee, bare};
use crate::face::array_answer::{self, ArrayBounds, ArrayItems};
use crate::face::call_stream::request_answer::unanswered;
use crate::face::http::{AcceptedTypes, Endpoint as _, FaceResponse, Inbound};
use crate::face::rewrite::{ClientInitialize, edited_initialize};
use crate::face::sealed::SessionToken;
use crate::face::session::in_flight::RequestStage;
use crate::face::session::{self, SessionLookupError, refuse};
use crate::face::{headers, idempotency_key};
use crate::task::Drafts;
use crate::wire::envelope::{Notification, Request, Response};
use crate::wire::list_pages::sent_cursor;
use crate::wire::{Message, Object, Payload, ProtocolVersion, method};

const BATCH_PARALLEL: usize = 16;

enum AskedMember {
    Answered(FaceResponse),
    /// The upstream at this index must receive the request.
    Asked(usize, Box<Inbound>),
}

/// The first refusal of each kind by upstreams that were asked for an item.
#[derive(Default)]
struct SearchRefusals {
    lacks_scope: Option<MemberRefusal>,
    unknown: Option<MemberRefusal>,
    unavailable: Option<MemberRefusal>,
}

impl SearchRefusals {
    fn note(&mut self, upstreams: &CombinedUpstreams, client: &EndpointClient, at: usize, refusal: MemberRefusal) {
        let kind = match (refusal.needs_scopes(), refusal.may_be_known_elsewhere()) {
            (true, _) => &mut self.lacks_scope,
            (false, true) => &mut self.unknown,
            (false, false) => {
                upstreams.note_absence(client, at, &refusal.message());
                &mut self.unavailable
            }
        };
        kind.get_or_insert(refusal);
    }

    fn into_first(self) -> MemberRefusal {
        self.lacks_scope.or(self.unknown).or(self.unavailable).unwrap_or_else(MemberRefusal::late)
    }
}

/// A session before its client gets the id. Dropping it ends it and its sessions at the upstreams.
struct UnansweredSession<'a> {
    upstreams: &'a Arc<CombinedUpstreams>,
    nonce: u128,
    session: KnownSession<CombinedSession>,
    is_answered: bool,
}

impl Drop for UnansweredSession<'_> {
    fn drop(&mut self) {
        // Without a runtime nothing can be sent to the servers.
        if self.is_answered || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        // Sessions that are still being opened end once they are open.
        self.session.session.ended.cancel();
        self.upstreams.sessions.known.by_nonce.remove(self.nonce);
        self.upstreams.close_members(self.session.clone());
    }
}

fn params_of(request: &Request) -> Payload {
    request.params.object().map_or_else(Payload::empty_object, |params| params.payload().clone())
}

impl CombinedUpstreams {
    fn session(
        self: &Arc<Self>,
        inbound: &Inbound,
    ) -> Result<(Arc<SessionToken>, Arc<CombinedSession>), SessionLookupError> {
        let sealer = &self.common().sealer;
        let found = session::session_of(inbound, &self.settings.path, sealer, &self.sessions.tokens)?;
        let known = self.known_session(found.token.nonce, inbound);
        Ok((found.token, known))
    }

    /// Closes the upstream sessions of a session that made room.
    fn known_session(self: &Arc<Self>, nonce: u128, inbound: &Inbound) -> Arc<CombinedSession> {
        let owner = || SessionOwner { caller: inbound.caller.clone(), counted_as: inbound.counted_as() };
        let (session, evicted) = self.sessions.known.get_or_default(nonce, owner);
        evicted.into_iter().for_each(|session| self.close_members(session));
        session
    }

    /// Ends a session's sessions at the upstreams, in the background.
    fn close_members(self: &Arc<Self>, known: KnownSession<CombinedSession>) {
        let (shared, scope) = (Arc::clone(self), &self.common().scope);
        let closing = async move { shared.end_members(known).await };
        scope.tracker.spawn(scope.stop.clone().run_until_cancelled_owned(closing));
    }

    /// As [`Self::close_members`]; a session in which a task may continue stays (T-31).
    pub(super) async fn end_members(&self, KnownSession { session, caller }: KnownSession<CombinedSession>) {
        let ending = session.open_members().into_iter().filter_map(|(upstream, id)| {
            let inbound = self.gateways_message(&session, caller.clone(), id, Method::DELETE, Bytes::new());
            Some(self.members[self.index(&upstream)?].endpoint.serve(Box::new(inbound)))
        });
        join_all(ending).await;
    }

    pub(super) async fn post_in_session(
        self: &Arc<Self>,
        inbound: Box<Inbound>,
        message: Box<Message>,
    ) -> FaceResponse {
        let request = match &*message {
            Message::Request(request) if request.method == method::INITIALIZE => {
                return self.initialize(&inbound, request).await;
            }
            Message::Request(request) => Some(request),
            Message::Notification(_) | Message::Response(_) => None,
        };
        let addressee = addressee(request.map(|request| &request.id), inbound.accepted);
        let (token, session) = match self.session(&inbound) {
            Ok(session) => session,
            Err(none) => return none.answer(&addressee),
        };
        if let Err(complaint) = session::vet(&message) {
            return refuse(&addressee, &complaint);
        }
        let (text, arrived) = (inbound.body.clone(), inbound.received_at);
        let client = EndpointClient::in_session(self, inbound, &token, &session);
        match *message {
            // Reaches all open sessions even if the client cancels the request.
            Message::Request(request) if request.method == method::SET_LEVEL => {
                let sent = self.set_level(&client, &request, &addressee).await;
                sent.unwrap_or_else(|refusal| refusal.into_response(&addressee))
            }
            Message::Request(request) => {
                let id = request.id.clone();
                let mut voice = client.voice(0, AnswerScope::of(&request));
                let asked = pin!(self.asked(client, request, text, &addressee));
                // The request is not sent yet: a cancel drops the requests on the client's behalf.
                match self.sessions.in_flight.before_it_is_sent(token.nonce, &id, arrived, asked).await {
                    Some(Ok(AskedMember::Answered(answer))) => answer,
                    Some(Ok(AskedMember::Asked(at, inbound))) => {
                        voice.select(at);
                        let answer = served(Some(&session), self, at, *inbound).await;
                        own_stream::shown(answer, voice, &addressee).await
                    }
                    Some(Err(refusal)) => refusal.into_response(&addressee),
                    None => unanswered(addressee.accepted).into_response(&addressee),
                }
            }
            Message::Notification(notification) if self.is_cancelled_unsent(&client, &token, &notification) => {
                accepted()
            }
            Message::Notification(notification) => self.noted(&client, notification, &text).await,
            Message::Response(response) => self.answered(&client, &response).await,
        }
    }

    fn is_cancelled_unsent(&self, client: &EndpointClient, token: &SessionToken, notification: &Notification) -> bool {
        let in_flight = &self.sessions.in_flight;
        notification.cancelled().is_some_and(|id| {
            // A request that begins to wait meanwhile sees this.
            in_flight.withdraw(token.nonce, &client.counted_as(), &id);
            in_flight.cancel(token.nonce, &id, RequestStage::Queued)
        })
    }

    async fn asked(
        &self,
        client: EndpointClient,
        request: Request,
        text: Bytes,
        addressee: &Addressee,
    ) -> Result<AskedMember, MemberRefusal> {
        if request.method == method::PING {
            return Ok(AskedMember::Answered(addressee.result(Payload::empty_object())));
        }
        let target = match self.target(&client, &request).await {
            Ok(target) => target,
            Err(complaint) => return Ok(AskedMember::Answered(refuse(addressee, &complaint))),
        };
        if let (RequestTarget::Member(at, _), method::TOOLS_CALL) = (&target, &*request.method) {
            self.check_available(&client, *at).await?;
        }
        Ok(AskedMember::Answered(match target {
            RequestTarget::List(list) => {
                let cursor = request.params.object().and_then(sent_cursor);
                match self.page(&client, list, cursor.as_ref()).await? {
                    Ok(page) => addressee.result(page),
                    Err(complaint) => refuse(addressee, &complaint),
                }
            }
            RequestTarget::Member(at, params) => {
                let inbound = client.prepared(at, request, text, params).await?;
                return Ok(AskedMember::Asked(at, Box::new(inbound)));
            }
            RequestTarget::Unlisted(some)
                if matches!(&*request.method, method::RESOURCES_SUBSCRIBE | method::RESOURCES_UNSUBSCRIBE) =>
            {
                self.all_that_know(&client, &some, &request, addressee).await?
            }
            RequestTarget::Unlisted(some) => self.first_that_knows(&client, &some, &request, addressee).await?,
            RequestTarget::OwnTool(tool) => {
                self.own_tool(client.caller(), tool, &request, FallbackTools::for_session(0), addressee).await
            }
        }))
    }

    /// Tries upstreams in turn for an item that none lists. If none knows it, the client gets the refusal of one that
    /// responded, before all of one where the caller lacks a scope; an unavailable upstream does not stop the search.
    pub(super) async fn first_that_knows(
        &self,
        client: &EndpointClient,
        some: &[usize],
        request: &Request,
        addressee: &Addressee,
    ) -> Result<FaceResponse, MemberRefusal> {
        if client.names(request) {
            return Ok(addressee.complaint(&idempotency_key::of_an_unlisted_tool()));
        }
        let mut refusals = SearchRefusals::default();
        for at in some {
            match client.request(*at, &request.method, params_of(request)).await {
                Ok(result) => return Ok(addressee.result(result.payload().clone())),
                Err(refusal) => refusals.note(self, client, *at, refusal),
            }
        }
        Err(refusals.into_first())
    }

    /// Sends a subscription to an unlisted resource, or its end, to all of these. Fails as [`Self::first_that_knows`].
    async fn all_that_know(
        &self,
        client: &EndpointClient,
        all: &[usize],
        request: &Request,
        addressee: &Addressee,
    ) -> Result<FaceResponse, MemberRefusal> {
        let asking = all.iter().map(|at| async move {
            let asked = client.request(*at, &request.method, params_of(request));
            (*at, self.in_time(*at, ANSWER_MAX, asked).await.unwrap_or_else(|| Err(MemberRefusal::late())))
        });
        let (mut accepted, mut refusals) = (None, SearchRefusals::default());
        for (at, answer) in join_all(asking).await {
            match answer {
                Ok(result) => accepted = accepted.or(Some(result)),
                Err(refusal) => refusals.note(self, client, at, refusal),
            }
        }
        let accepted = accepted.ok_or_else(|| refusals.into_first())?;
        Ok(addressee.result(accepted.payload().clone()))
    }

    /// Sends the level to all open sessions; those opened later receive it then. Waits for no busy server (B269).
    async fn set_level(
        &self,
        client: &EndpointClient,
        request: &Request,
        addressee: &Addressee,
    ) -> Result<FaceResponse, MemberRefusal> {
        let Some(params) = request.params.object() else {
            return Ok(refuse(addressee, &RequestError::params("params must be an object")));
        };
        let Some(level) = params.get_str("level").as_deref().and_then(LogLevel::parse) else {
            return Ok(refuse(addressee, &RequestError::params("level must be a log level")));
        };
        let Some(session) = &client.session else { return Err(MemberRefusal::late()) };
        session.set_level(level);
        let open = session.open_members();
        let open = open.iter().filter_map(|(upstream, _)| self.position(upstream, client.caller()));
        let asked = open.map(|at| (at, client.request(at, method::SET_LEVEL, params.payload().clone())));
        let sent = join_all(asked.map(|(at, asked)| self.in_time(at, HANDSHAKE_MAX, asked))).await;
        let refusal = sent.into_iter().flatten().filter_map(Result::err).find(MemberRefusal::is_about_params);
        refusal.map_or_else(|| Ok(addressee.result(Payload::empty_object())), Err)
    }

    /// Forwards a notification to the upstream that it concerns, or to all open sessions.
    async fn noted(&self, client: &EndpointClient, notification: Notification, body: &Bytes) -> FaceResponse {
        if notification.method == method::INITIALIZED {
            return accepted();
        }
        let (only, text) = match messages::progress(&notification) {
            Some((upstream, text)) => (Some(upstream), text),
            None if notification.method == method::PROGRESS => return accepted(),
            None => (None, body.clone()),
        };
        self.forward_to_sessions(client, only.as_deref(), &text).await
    }

    /// Forwards a response to the upstream that asked, and to no other (B248). A task's question needs no session
    /// there: its task is stored.
    async fn answered(&self, client: &EndpointClient, response: &Response) -> FaceResponse {
        if let Some((upstream, id)) = response.id.as_ref().and_then(messages::unmarked)
            && self.members[0].endpoint.is_asked_by_a_task(&id)
        {
            let Some(at) = self.position(&upstream, client.caller()) else { return accepted() };
            let response = Response { id: Some(id), ..response.clone() };
            return self.members[at].endpoint.take_answer(client.caller(), response).await;
        }
        let Some((upstream, text)) = messages::answer(response) else { return accepted() };
        self.forward_to_sessions(client, Some(&upstream), &text).await
    }

    async fn forward_to_sessions(&self, client: &EndpointClient, only: Option<&str>, text: &Bytes) -> FaceResponse {
        let open = client.session.iter().flat_map(|session| session.open_members());
        let open = open.filter(|(upstream, _)| only.is_none_or(|only| **upstream == *only));
        let sending = open.filter_map(|(upstream, _)| self.position(&upstream, client.caller())).map(|at| async move {
            let inbound = client.inbound(at, text.clone()).await.ok()?;
            Some(served(client.session.as_ref(), self, at, inbound).await)
        });
        let mut answers: Vec<_> = join_all(sending).await.into_iter().flatten().collect();
        match answers.len() {
            // A 404 concerns the server's session, not the endpoint's.
            1 if answers[0].status() != StatusCode::NOT_FOUND => answers.remove(0),
            _ => accepted(),
        }
    }

    async fn initialize(self: &Arc<Self>, inbound: &Inbound, request: &Request) -> FaceResponse {
        let addressee = addressee(Some(&request.id), inbound.accepted);
        let Some(initialize) = ClientInitialize::read(request) else {
            let what = "initialize needs protocolVersion, capabilities and clientInfo";
            return refuse(&addressee, &RequestError::params(what));
        };
        let token = SessionToken {
            upstream: self.settings.path.to_string(),
            principal: inbound.caller.principal.clone(),
            nonce: (self.common().random)(),
            client_version: initialize.version,
            upstream_version: initialize.version,
            capabilities: initialize.capabilities,
            client_info: initialize.client_info,
            issued_at: self.common().clock.now(),
            replica: self.common().own_replica(),
            upstream_session: None,
            tasks: crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport::default(),
            declares_tasks: initialize.declares_tasks,
        };
        let sealed = self.common().sealer.seal_session(&token).and_then(|id| HeaderValue::try_from(id).ok());
        let Some(sealed) = sealed else {
            let what = "the capabilities are too large for a session id";
            return refuse(&addressee, &RequestError::params(what));
        };
        let (nonce, session) = (token.nonce, self.known_session(token.nonce, inbound));
        session.is_begun_here.store(true, Ordering::Relaxed);
        let client = EndpointClient::in_session(self, Box::new(inbound.clone()), &Arc::new(token), &session);
        let session = KnownSession { session, caller: inbound.caller.clone() };
        let mut opened = UnansweredSession { upstreams: self, nonce, session, is_answered: false };
        let descriptions = match self.descriptions(&client).await {
            Ok(descriptions) => descriptions,
            Err(refusal) => return refusal.into_response(&addressee),
        };
        let result = initialize_result(&merge::described(&descriptions), initialize.version);
        let offer = session::tasks::offer(initialize.version, &inbound.caller.principal, Drafts::default());
        let Some(result) = Object::of(&result).map(|result| edited_initialize(&result, initialize.version, offer))
        else {
            return bare(StatusCode::INTERNAL_SERVER_ERROR);
        };
        let mut response = addressee.result(result);
        response.headers_mut().insert(headers::SESSION_ID, sealed);
        opened.is_answered = true;
        response
    }

    pub(super) async fn fetch_description(
        &self,
        client: &EndpointClient,
        at: usize,
    ) -> Result<Arc<ServerDescription>, MemberRefusal> {
        if client.session.is_some() {
            return Ok(client.opened(at).await?.description.unwrap_or_default());
        }
        let said = client.request(at, method::DISCOVER, client.params(None)).await?;
        let description = Arc::new(ServerDescription::of(&said));
        self.cache_description(at, &description);
        Ok(description)
    }

    /// Descriptions that are known or arrive in time. Opens a session at an upstream without a known description;
    /// later sessions renew that. For clients without sessions a known one is asked for again after a while.
    pub(super) async fn descriptions(
        &self,
        client: &EndpointClient,
    ) -> Result<Vec<(Arc<str>, Arc<ServerDescription>)>, MemberRefusal> {
        let asking = self.members_for(client.caller()).map(|at| async move {
            let (member, known) = (&self.members[at], self.members[at].last_description());
            let is_asked = client.session.is_none() && member.fresh_description().is_none();
            match known {
                Some(known) if !is_asked => (at, Ok(known)),
                known => {
                    let asked = self.in_time(at, HANDSHAKE_MAX, self.fetch_description(client, at)).await;
                    let asked = asked.unwrap_or_else(|| Err(MemberRefusal::late()));
                    (at, asked.or_else(|refusal| known.ok_or(refusal)))
                }
            }
        });
        let (mut descriptions, mut absent, mut refused) = (Vec::new(), Vec::new(), None);
        for (at, description) in join_all(asking).await {
            let name = Arc::clone(&self.settings.upstreams[at]);
            match description {
                Ok(description) => descriptions.push((name, description)),
                Err(refusal) => {
                    self.note_absence(client, at, &refusal.message());
                    if let Some(cause) = self.cause_for(client, at) {
                        absent.push((name, Arc::new(ServerDescription::absent(&cause))));
                    }
                    refused = refused.or(Some(refusal));
                }
            }
        }
        match refused {
            Some(refusal) if descriptions.is_empty() => Err(refusal),
            Some(_) | None => Ok([descriptions, absent].concat()),
        }
    }

    pub(super) async fn post_batch_in_session(self: &Arc<Self>, inbound: &Inbound, items: ArrayItems) -> FaceResponse {
        let bounds = ArrayBounds { result_bytes_max: self.result_bytes_max, parallel: BATCH_PARALLEL };
        let (served, shared) = (&self.members[0].served, Arc::clone(self));
        // Boxed: arrays are rare, and every request's future would be as large.
        Box::pin(array_answer::respond(served, inbound, items, bounds, move |item, message| {
            let shared = Arc::clone(&shared);
            async move { shared.post_in_session(item, message).await }
        }))
        .await
    }

    pub(super) fn client_version(&self, inbound: &Inbound) -> Result<ProtocolVersion, SessionLookupError> {
        let found = session::session_of(inbound, &self.settings.path, &self.common().sealer, &self.sessions.tokens)?;
        Ok(found.token.client_version)
    }

    pub(super) async fn get_in_session(self: &Arc<Self>, inbound: &Inbound) -> FaceResponse {
        if matches!(inbound.accepted, AcceptedTypes::Json | AcceptedTypes::Neither) {
            return bare(StatusCode::NOT_ACCEPTABLE);
        }
        match self.session(inbound) {
            Ok((token, session)) => {
                let client = EndpointClient::in_session(self, Box::new(inbound.clone()), &token, &session);
                own_stream::open(self, client, session, inbound).await
            }
            Err(none) => none.answer(&addressee(None, inbound.accepted)),
        }
    }

    pub(super) async fn delete_in_session(self: &Arc<Self>, inbound: &Inbound) -> FaceResponse {
        let (token, session) = match self.session(inbound) {
            Ok(session) => session,
            Err(none) => return none.answer(&addressee(None, AcceptedTypes::Json)),
        };
        self.sessions.in_flight.mark_unwanted(token.nonce, &inbound.counted_as());
        // Before the servers end theirs: a request meanwhile would open another session there (B247).
        self.sessions.tokens.ended(token.nonce, &inbound.counted_as());
        self.sessions.known.by_nonce.remove(token.nonce);
        session.ended.cancel();
        let ending = session.open_members().into_iter().filter_map(|(upstream, id)| {
            let mut inbound = Inbound { is_counted: true, ..inbound.clone() };
            inbound.headers.insert(headers::SESSION_ID, id);
            Some(self.members[self.index(&upstream)?].endpoint.serve(Box::new(inbound)))
        });
        join_all(ending).await;
        bare(StatusCode::OK)
    }
}
