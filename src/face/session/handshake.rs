//! Opening an upstream session: the client's own `initialize`, passed on and answered, and later the same
//! behind its back where the upstream has lost the session.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::bridge::introduce;
use super::session_cache::{ClientSession, SessionPreferences};
use super::{SessionFaceState, not_allowed, refuse};
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::dialect::initialize::{capabilities_in, initialize_request};
use crate::dialect::relay_core_2025_11_25::UpstreamTaskSupport;
use crate::face::answer::{addressee, bare};
use crate::face::http::{FaceResponse, Inbound};
use crate::face::rewrite::{self, ClientInitialize};
use crate::face::sealed::{SessionToken, digest_of};
use crate::metric;
use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::era::contradicts;
use crate::upstream::own_ids;
use crate::upstream::raw_channel::{RawMethod, RawRequest, RawResponse, SessionBinding};
use crate::upstream::reply::{self, ErrorAddressee, JudgedResponse, ReadLimits};
use crate::upstream::{Era, ForwardedHeaders};
use crate::wire::envelope::Request;
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, ProtocolVersion, RequestId, RpcError, envelope, method};

/// How long a handshake may take in all; no tool runs in it.
const HANDSHAKE_MAX: Duration = Duration::from_secs(30);
/// Largest answer to `initialize`, and to what a new session is told.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// How long the end of a session may take.
const END_MAX: Duration = Duration::from_secs(5);
/// Longest session id of an upstream (U39).
const SESSION_ID_BYTES_MAX: usize = 1024;
/// Handshakes at most, each for an older version than the one before.
const VERSIONS_MAX: usize = 4;

/// A session that the upstream has agreed to.
struct AgreedSession {
    binding: SessionBinding,
    version: ProtocolVersion,
    result: Object,
    /// What it declared of tasks of its own, whatever its version.
    tasks: UpstreamTaskSupport,
}

/// Why there is none.
enum AgreementError {
    Gateway(GatewayFault),
    Refused(RpcError),
}

impl AgreementError {
    /// Whether a server without sessions may have said this: it does not know the method, however it says so.
    fn may_be_for_good(&self) -> bool {
        match self {
            Self::Refused(_) => true,
            Self::Gateway(fault) => fault.reason == Reason::UpstreamMalformed || contradicts(fault.http_status, None),
        }
    }

    fn into_error(self) -> RpcError {
        match self {
            Self::Refused(error) => error,
            Self::Gateway(fault) => gateway_error(&fault),
        }
    }
}

impl From<GatewayFault> for AgreementError {
    /// Whatever failed, nothing of the client's was run.
    fn from(fault: GatewayFault) -> Self {
        Self::Gateway(GatewayFault { executed: Executed::No, ..fault })
    }
}

/// Answers a client's `initialize`. Its session id is given with the answer.
pub(super) async fn open(
    shared: &Arc<SessionFaceState>,
    inbound: &Inbound,
    request: &Request,
    forwarded: &ForwardedHeaders,
) -> FaceResponse {
    let addressee = addressee(Some(&request.id), inbound.accepted);
    let Some(introduction) = ClientInitialize::read(request) else {
        let what = "initialize needs protocolVersion, capabilities and clientInfo";
        return refuse(&addressee, &RequestError::Params(Cow::Borrowed(what)));
    };
    let opened = match open_either(shared, inbound, request, (&introduction, forwarded)).await {
        Ok(opened) => opened,
        Err(error) => return addressee.error(StatusCode::OK, &error),
    };
    let token = SessionToken {
        upstream: shared.served.conduit.name().to_string(),
        principal: digest_of(&inbound.principal),
        nonce: (shared.served.random)(),
        client_version: introduction.version,
        upstream_version: opened.version,
        capabilities: introduction.capabilities,
        client_info: introduction.client_info,
        issued_at: shared.served.clock.now(),
        upstream_session: opened.binding.session.as_ref().and_then(|id| id.to_str().ok()).map(str::to_owned),
        tasks: opened.tasks,
        declares_tasks: introduction.declares_tasks,
    };
    let sealed = shared.served.sealer.seal_session(&token).ok().and_then(|id| HeaderValue::try_from(id).ok());
    let Some(sealed) = sealed else {
        if !opened.version.is_stateless() {
            shared.let_go(opened.binding);
        }
        let what = "the capabilities are too large for a session id";
        return refuse(&addressee, &RequestError::Params(Cow::Borrowed(what)));
    };
    tracing::debug!(upstream = %token.upstream, client = %token.client_version, server = %token.upstream_version, "opened a session");
    let mut response = addressee.result(opened.result);
    response.headers_mut().insert(crate::face::headers::SESSION_ID, sealed);
    response
}

/// A client's session, and what its `initialize` is answered with.
struct InitializedSession {
    binding: SessionBinding,
    version: ProtocolVersion,
    result: Payload,
    tasks: UpstreamTaskSupport,
}

/// Opens a session at the upstream, or in front of one that turns out to know none.
async fn open_either(
    shared: &Arc<SessionFaceState>,
    inbound: &Inbound,
    request: &Request,
    (introduction, forwarded): (&ClientInitialize, &ForwardedHeaders),
) -> Result<InitializedSession, RpcError> {
    let tasks = super::tasks::offer(introduction.version, &inbound.principal);
    let bridged = async || {
        let result = introduce(shared, &inbound.principal, introduction).await?;
        let result = rewrite::introduction_result(&result, introduction.version, tasks.clone());
        let (binding, tasks) = (SessionBinding::default(), UpstreamTaskSupport::default());
        Ok(InitializedSession { binding, version: ProtocolVersion::STATELESS, result, tasks })
    };
    if shared.served.is_stateless {
        return bridged().await;
    }
    let message = |version| introduction.message(&request.id, version, &inbound.body);
    let asked = shared.served.conduit.version_for(introduction.version);
    let refusal = match in_time(agree(shared, (&request.id, &inbound.principal, forwarded), asked, message)).await {
        Ok(agreed) => {
            let result = rewrite::introduction_result(&agreed.result, introduction.version, tasks);
            let AgreedSession { binding, version, tasks, .. } = agreed;
            return Ok(InitializedSession { binding, version, result, tasks });
        }
        Err(refusal) => refusal,
    };
    // A server that refused a session may turn out to know none.
    match refusal.may_be_for_good() && shared.served.upstream.era().await == Era::Stateless {
        true => bridged().await,
        false => Err(refusal.into_error()),
    }
}

/// Asks for versions until one is agreed on.
async fn agree(
    shared: &SessionFaceState,
    (id, owner, forwarded): (&RequestId, &Principal, &ForwardedHeaders),
    mut asked: ProtocolVersion,
    message: impl Fn(ProtocolVersion) -> Bytes,
) -> Result<AgreedSession, AgreementError> {
    let conduit = &shared.served.conduit;
    for _ in 1..VERSIONS_MAX {
        match initialize(shared, (id, owner, forwarded), message(asked)).await {
            Err(AgreementError::Refused(error)) => match conduit.version_after(asked, &error) {
                Some(older) => asked = older,
                None => return Err(AgreementError::Refused(error)),
            },
            other => return other,
        }
    }
    initialize(shared, (id, owner, forwarded), message(asked)).await
}

async fn initialize(
    shared: &SessionFaceState,
    (id, owner, forwarded): (&RequestId, &Principal, &ForwardedHeaders),
    message: Bytes,
) -> Result<AgreedSession, AgreementError> {
    let verb = RawMethod::PostWith { message, headers: HeaderMap::new(), principal: owner.clone() };
    let request = RawRequest { binding: SessionBinding::default(), verb, forwarded: forwarded.clone() };
    let response = shared.served.conduit.send(request).await?;
    let session = response.session.clone();
    let response = match reply::judge(response, ErrorAddressee::Passed).await {
        JudgedResponse::Fine(response) => response,
        JudgedResponse::Refused { error: Some(error), .. } => return Err(AgreementError::Refused(error)),
        JudgedResponse::Refused { fault, error: None } => return Err(fault.into()),
        JudgedResponse::SessionLost => return Err(malformed()),
    };
    let answer = reply::answer(response, id, ReadLimits::of_bytes(ANSWER_BYTES_MAX)).await?;
    let result = match answer.outcome {
        Err(error) => return Err(AgreementError::Refused(error)),
        Ok(_) => answer.result.ok_or_else(malformed)?,
    };
    let version = result.get_string("protocolVersion").as_deref().and_then(ProtocolVersion::parse);
    let version = version.filter(|version| !version.is_stateless()).ok_or_else(malformed)?;
    if session.as_ref().is_some_and(|id| !is_session_id(id)) {
        return Err(malformed());
    }
    let tasks = result
        .get("capabilities")
        .map_or_else(UpstreamTaskSupport::default, |declared| UpstreamTaskSupport::declared(&declared));
    let binding = SessionBinding { session, version: Some(version), tasks: tasks.within(version) };
    Ok(AgreedSession { binding, version, result, tasks })
}

fn malformed() -> AgreementError {
    GatewayFault::new(Reason::UpstreamMalformed, Executed::No).into()
}

/// Visible ASCII alone, and not too much of it (U39).
fn is_session_id(id: &HeaderValue) -> bool {
    (1..=SESSION_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}

async fn in_time(
    agreeing: impl Future<Output = Result<AgreedSession, AgreementError>>,
) -> Result<AgreedSession, AgreementError> {
    let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
    tokio::time::timeout(HANDSHAKE_MAX, agreeing).await.unwrap_or(Err(AgreementError::Gateway(late)))
}

async fn post(
    shared: &SessionFaceState,
    binding: SessionBinding,
    forwarded: &ForwardedHeaders,
    message: Bytes,
) -> Result<RawResponse, GatewayFault> {
    let request = RawRequest { binding, verb: RawMethod::Post(message), forwarded: forwarded.clone() };
    shared.served.conduit.send(request).await
}

impl SessionFaceState {
    /// An upstream session in place of one that is lost: once for all who wait. The client keeps its id
    /// and hears nothing of it.
    pub(in crate::face) async fn renew(
        self: &Arc<Self>,
        session: &ClientSession,
        lost: &SessionBinding,
    ) -> Result<SessionBinding, GatewayFault> {
        let open = |told| {
            let (shared, token) = (Arc::clone(self), Arc::clone(&session.token));
            let (owner, forwarded) = (session.owner.clone(), session.forwarded.clone());
            let stop = self.served.life.stop.clone();
            // It goes on by itself, so that a waiter who leaves does not hold it up.
            let opening = self.served.life.tracker.spawn(stop.run_until_cancelled_owned(async move {
                let renewed = shared.open_anew(&token, (&owner, &forwarded), told).await;
                let outcome = if renewed.is_ok() { "renewed" } else { "failed" };
                let upstream = Arc::clone(shared.served.conduit.name());
                metrics::counter!(metric::SESSION_RENEWALS, "upstream" => upstream, "outcome" => outcome).increment(1);
                renewed
            }));
            let opened: futures_util::future::BoxFuture<'static, _> = Box::pin(async move {
                match opening.await {
                    Ok(Some(opened)) => opened,
                    Ok(None) => Err(GatewayFault::new(Reason::Draining, Executed::No)),
                    Err(_) => Err(GatewayFault::new(Reason::Internal, Executed::No)),
                }
            });
            opened
        };
        self.sessions.renew(session, lost, open).await
    }

    async fn open_anew(
        &self,
        token: &SessionToken,
        (owner, forwarded): (&Principal, &ForwardedHeaders),
        told: SessionPreferences,
    ) -> Result<SessionBinding, GatewayFault> {
        let id = self.mint();
        let message = |version| {
            let capabilities = capabilities_in(version, &token.capabilities);
            initialize_request(&id, version, &capabilities, token.client_info.as_ref())
        };
        let asked = self.served.conduit.version_for(token.upstream_version);
        let agreed = match in_time(agree(self, (&id, owner, forwarded), asked, message)).await {
            Ok(agreed) => agreed,
            Err(AgreementError::Gateway(fault)) => return Err(fault),
            Err(AgreementError::Refused(error)) => {
                tracing::warn!(upstream = %self.served.conduit.name(), code = error.code, "the upstream refused a session anew");
                return Err(GatewayFault::new(Reason::UpstreamRefused, Executed::No));
            }
        };
        let binding = agreed.binding;
        tracing::info!(upstream = %self.served.conduit.name(), "opened a session anew that the upstream had lost");
        self.tell(&binding, forwarded, envelope::notification(method::INITIALIZED, None)).await?;
        if let Some(level) = &told.level {
            self.tell(&binding, forwarded, envelope::request(&self.mint(), method::SET_LEVEL, Some(level))).await?;
        }
        for uri in &told.subscriptions {
            let params = ObjectWriter::new().text("uri", uri).finish();
            let again = envelope::request(&self.mint(), method::RESOURCES_SUBSCRIBE, Some(&params));
            self.tell(&binding, forwarded, again).await?;
        }
        Ok(binding)
    }

    /// Sends something whose answer is of no interest, and waits for it. What the upstream says to it is
    /// its own affair; only that it cannot be reached counts.
    async fn tell(
        &self,
        binding: &SessionBinding,
        forwarded: &ForwardedHeaders,
        message: Bytes,
    ) -> Result<(), GatewayFault> {
        let late = GatewayFault::new(Reason::UpstreamTimeout, Executed::No);
        let telling = tokio::time::timeout(HANDSHAKE_MAX, post(self, binding.clone(), forwarded, message));
        let told = telling.await.unwrap_or(Err(late));
        let response = told.map_err(|fault| GatewayFault { executed: Executed::No, ..fault })?;
        // Only a session that has answered is sure to have done what it was told.
        let _ = tokio::time::timeout(END_MAX, reply::read_whole(response.body, ReadLimits::of_bytes(ANSWER_BYTES_MAX)))
            .await;
        Ok(())
    }

    /// An id of the gateway's own.
    pub(in crate::face) fn mint(&self) -> RequestId {
        own_ids::of_bits((self.served.random)())
    }

    /// Ends a client's session for good, here and at the upstream.
    pub(super) async fn end(&self, session: &ClientSession) -> FaceResponse {
        let binding = self.sessions.binding(session);
        if self.tasks.lendings.put_off(session.token.nonce, &binding) {
            // Tasks still run in it; the client's session ends here all the same.
            self.is_ended(session);
            return bare(StatusCode::OK);
        }
        // Before the upstream hears of it, and ends what runs in it.
        self.open.in_flight.take_leave(session.token.nonce);
        let had_id = binding.session.is_some();
        let ended = RawRequest { binding, verb: RawMethod::Delete, forwarded: session.forwarded.clone() };
        // Without an id the upstream has nothing that could be ended.
        let status = if had_id {
            let ending = tokio::time::timeout(END_MAX, self.served.conduit.send(ended)).await;
            ending.ok().and_then(Result::ok).map_or(StatusCode::OK, |response| response.status)
        } else {
            StatusCode::OK
        };
        if status == StatusCode::METHOD_NOT_ALLOWED {
            return not_allowed(&http::Method::DELETE);
        }
        self.is_ended(session);
        bare(if status == StatusCode::NO_CONTENT { status } else { StatusCode::OK })
    }

    /// Ends a client's session here.
    pub(super) fn is_ended(&self, session: &ClientSession) {
        self.open.end(session.token.nonce);
        self.sessions.ended(session.token.nonce);
    }

    /// Ends an upstream session that nobody will use, in the background.
    pub(super) fn let_go(self: &Arc<Self>, binding: SessionBinding) {
        let shared = Arc::clone(self);
        self.served.life.tracker.spawn(async move {
            let end = RawRequest { binding, verb: RawMethod::Delete, forwarded: ForwardedHeaders::default() };
            let _ = tokio::time::timeout(END_MAX, shared.served.conduit.send(end)).await;
        });
    }
}
