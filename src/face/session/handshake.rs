//! Answers `initialize` and ends sessions. Opens the client's session at the server, or a bridged one, and seals the
//! session id.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{HeaderValue, StatusCode};

use super::bridge::bridged_initialize;
use super::session_cache::{ClientSession, SessionAsker};
use super::{SessionFaceState, not_allowed, refuse};
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::face::answer::{addressee, bare};
use crate::face::headers;
use crate::face::http::{FaceResponse, Inbound};
use crate::face::rewrite::{self, ClientInitialize};
use crate::face::sealed::{IdKind, SessionToken};
use crate::task::Reason;
use crate::upstream::era::{denies_sessions, is_for_good};
use crate::upstream::raw_channel::SessionBinding;
use crate::upstream::upstream_health::UpstreamHealth;
use crate::upstream::{BeginError, Era, own_ids};
use crate::wire::envelope::Request;
use crate::wire::{Payload, ProtocolVersion, RequestId, RpcError};

pub(super) async fn open(shared: &Arc<SessionFaceState>, inbound: &Inbound, request: &Request) -> FaceResponse {
    let addressee = addressee(Some(&request.id), inbound.accepted);
    let Some(initialize) = ClientInitialize::read(request) else {
        let what = "initialize needs protocolVersion, capabilities and clientInfo";
        return refuse(&addressee, &RequestError::params(what));
    };
    let opened = match open_either(shared, inbound, request, &initialize).await {
        Ok(opened) => opened,
        Err(error) => return addressee.error(StatusCode::OK, &error),
    };
    let token = SessionToken {
        upstream: shared.served.channel.name().to_string(),
        principal: inbound.caller.principal.clone(),
        nonce: inbound.endpoint_session.unwrap_or_else(shared.served.random),
        client_version: initialize.version,
        upstream_version: opened.version,
        capabilities: initialize.capabilities,
        client_info: initialize.client_info,
        issued_at: shared.served.clock.now(),
        replica: shared.served.own_replica(),
        upstream_session: opened.binding.session.as_ref().and_then(|id| id.to_str().ok()).map(str::to_owned),
        tasks: opened.tasks,
        declares_tasks: initialize.declares_tasks,
    };
    let sealed = shared.served.sealer.seal_session(&token).and_then(|id| HeaderValue::try_from(id).ok());
    let Some(sealed) = sealed else {
        shared.own.end_unused(opened.binding, &inbound.forwarded.credential());
        let what = "the capabilities are too large for a session id";
        return refuse(&addressee, &RequestError::params(what));
    };
    let counted_as = SessionAsker::of(inbound).counted_as();
    if inbound.endpoint_session.is_some() {
        shared.own.remove_memory(token.nonce);
        shared.sessions.begins_again(&token, &counted_as);
    }
    shared.keep_called(token.nonce, &inbound.caller, &counted_as);
    tracing::debug!(upstream = %token.upstream, client = %token.client_version, server = %token.upstream_version, "opened a session");
    let mut response = addressee.result(opened.result);
    response.headers_mut().insert(headers::SESSION_ID, sealed);
    response
}

struct InitializedSession {
    binding: SessionBinding,
    version: ProtocolVersion,
    result: Payload,
    tasks: UpstreamTaskSupport,
}

async fn open_either(
    shared: &Arc<SessionFaceState>,
    inbound: &Inbound,
    request: &Request,
    initialize: &ClientInitialize,
) -> Result<InitializedSession, RpcError> {
    let tasks = super::tasks::offer(initialize.version, &inbound.caller.principal, shared.served.settings.drafts);
    let bridged = async || {
        let result = bridged_initialize(shared, &inbound.caller.principal, &inbound.forwarded, initialize).await?;
        let result = rewrite::edited_initialize(&result, initialize.version, tasks.clone());
        let (binding, tasks) = (SessionBinding::default(), UpstreamTaskSupport::default());
        Ok(InitializedSession { binding, version: ProtocolVersion::STATELESS, result, tasks })
    };
    if shared.served.is_stateless {
        return bridged().await;
    }
    let health = shared.served.channel.health();
    let mark = health.map(UpstreamHealth::mark).unwrap_or_default();
    let message = |version| (request.id.clone(), initialize.message(&request.id, version, &inbound.body));
    let opening = shared.own.open(&inbound.caller.principal, &inbound.forwarded, initialize.version, message);
    let refusal = match opening.await {
        Ok(agreed) => {
            let result = rewrite::edited_initialize(&agreed.result, initialize.version, tasks);
            let (binding, version, tasks) = (agreed.binding(), agreed.version, agreed.tasks());
            shared.gives_no_ids.store(binding.session.is_none(), Ordering::Relaxed);
            return Ok(InitializedSession { binding, version, result, tasks });
        }
        Err(refusal) => refusal,
    };
    // A server that refused a session may have none, also if another one at its address had.
    if let BeginError::Refused(error) = &refusal
        && denies_sessions(error)
        && shared.served.upstream.era(&inbound.forwarded).await == Era::Session
    {
        shared.served.upstream.discard_era();
    }
    if is_for_good(&refusal) && shared.served.upstream.era(&inbound.forwarded).await == Era::Stateless {
        return bridged().await;
    }
    if let (Some(health), BeginError::Gateway(fault)) = (health, &refusal)
        && fault.reason == Reason::UpstreamMalformed
    {
        health.ended(mark, fault);
    }
    Err(match refusal {
        BeginError::Refused(error) => error,
        BeginError::Gateway(fault) => gateway_error(&fault),
    })
}

impl SessionFaceState {
    pub(in crate::face) fn question_id(&self) -> RequestId {
        own_ids::of(&self.served.seal_own(IdKind::Question, (self.served.random)()))
    }

    pub(super) async fn end(&self, session: &ClientSession) -> FaceResponse {
        if self.own.end_after_calls(&session.own) || self.may_be_needed(session) {
            // Tasks may still run in the upstream session; the client's session ends regardless.
            self.end_here(session);
            return bare(StatusCode::OK);
        }
        let is_replaced = self.sessions.is_replaced(session);
        if !is_replaced {
            self.sessions.begins_to_end(session);
        }
        let status = self.own.end(&session.own).await.unwrap_or(StatusCode::OK);
        if status == StatusCode::METHOD_NOT_ALLOWED && !is_replaced {
            self.sessions.goes_on(session.token.nonce);
            self.open.in_flight.goes_on(session.token.nonce);
            return not_allowed(&http::Method::DELETE);
        }
        // An endpoint may meanwhile have opened another session under this nonce: it continues.
        if self.sessions.has_ended(session.token.nonce) {
            self.end_here(session);
        }
        bare(if status == StatusCode::NO_CONTENT { status } else { StatusCode::OK })
    }

    /// Whether another process may resume a task in the session, which is then left open: servers may end both (T-31).
    fn may_be_needed(&self, session: &ClientSession) -> bool {
        let is_earlier = match (session.token.replica, self.served.own_replica()) {
            (Some(owner), Some(own)) => owner != own,
            (Some(_), None) | (None, _) => session.token.issued_at < self.served.engine.began(),
        };
        // A renewed session belongs to this process, which counts its calls until it ends.
        let is_earlier = is_earlier && !self.own.is_renewed(&session.own);
        self.served.engine.may_go_on(&session.own.opened.owner, is_earlier)
    }

    /// Ends a session that the server refuses with an unknown error: its client gets 404 and opens another one.
    pub(super) fn end_if_over(&self, session: &ClientSession) {
        if self.own.is_over(&session.own) {
            self.end_here(session);
        }
    }

    /// Ends a bridged session if a server with sessions has replaced its own: its client gets 404 and opens another one.
    pub(super) async fn end_if_replaced(&self, session: &ClientSession) {
        let (upstream, own) = (&self.served.upstream, &session.own);
        if upstream.era(&own.forwarded).await != Era::Session {
            return;
        }
        let opened = upstream.handshake(&self.context(session, &own.caller.principal)).await;
        let has_sessions = opened.is_ok_and(|opened| !opened.version.is_stateless());
        if has_sessions && !self.sessions.is_replaced(session) {
            // Calls that run go on: the server that was replaced may still answer them.
            self.sessions.ended(session.token.nonce, session.counted_as());
            self.open.streams.end(session.token.nonce);
        }
    }

    pub(super) fn end_here(&self, session: &ClientSession) {
        // A late refusal of an earlier session does not end the one that replaced it.
        if self.sessions.is_replaced(session) {
            return;
        }
        // First, so that a stream which opens meanwhile either is ended here or sees the end.
        self.sessions.ended(session.token.nonce, session.counted_as());
        self.open.end(session.token.nonce);
        self.own.remove_memory(session.token.nonce);
        self.called.remove(session.token.nonce);
        // Last, so that a call which is paused meanwhile sees the end.
        self.paused.release(session.token.nonce);
    }
}

/// A session for one request, for a server that issues no ids. `None` if it does, or the gateway keeps its sessions.
pub(super) fn session_without_id(shared: &SessionFaceState, inbound: &Inbound) -> Option<ClientSession> {
    let served = &shared.served;
    if !shared.gives_no_ids.load(Ordering::Relaxed) || served.channel.makes_streams() {
        return None;
    }
    let named = headers::single(&inbound.headers, &headers::PROTOCOL_VERSION).ok()?;
    // The version of a request without the header (2025-11-25, Transports).
    let version = named.map_or(Some(ProtocolVersion::V2025_03_26), ProtocolVersion::parse)?;
    let token = SessionToken {
        upstream: served.channel.name().to_string(),
        principal: inbound.caller.principal.clone(),
        nonce: (served.random)(),
        client_version: version,
        upstream_version: version,
        capabilities: Payload::empty_object(),
        client_info: None,
        issued_at: served.clock.now(),
        replica: served.own_replica(),
        upstream_session: None,
        tasks: UpstreamTaskSupport::default(),
        declares_tasks: false,
    };
    (!version.is_stateless()).then(|| ClientSession::for_one_request(token, SessionAsker::of(inbound)))
}
