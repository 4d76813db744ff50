//! Runs tools that a server runs only as tasks, for session clients (GW-11, GW-13). The gateway fetches the tools' task
//! support in a session with the client's capabilities: a client may not have listed the tools in this process. Skipped
//! if the server declared no tasks in its handshake.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::bridged_call::{self, AnswerEra, BridgedCaller, CallRoute};
use super::session_cache::ClientSession;
use super::{SessionFaceState, pipe, refuse};
use crate::dialect::relay_core_2025_11_25::{ToolTaskSupport, UpstreamTaskSupport};
use crate::dialect::split_call::SplitCall;
use crate::face::answer::addressee;
use crate::face::arrival::Arrival;
use crate::face::call_stream::replay::{self, ReplayStream};
use crate::face::http::{FaceResponse, Inbound};
use crate::face::idempotency_key;
use crate::face::named_item::tool_name;
use crate::task::{Caller, Principal};
use crate::upstream::{Upstream, UpstreamTaskMode};
use crate::wire::envelope::Request;
use crate::wire::{RpcError, method};

/// A call's longest wait for its tool's task support; then it is forwarded as usual.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Whether a plain call may need the engine, checked cheaply. In an array the key may be another call's: [`drive`].
pub(super) fn may_drive(
    shared: &SessionFaceState,
    session: &ClientSession,
    request: &Request,
    arrival: &Arrival,
) -> bool {
    request.method == method::TOOLS_CALL
        && (session.token.tasks.calls || is_split(shared, request) || arrival.has_key())
}

fn is_split(shared: &SessionFaceState, request: &Request) -> bool {
    let rules = &shared.served.settings.rules;
    let call = || {
        let params = request.params.object()?;
        SplitCall::read(rules.split_of(&params.get_str("name")?)?, params)
    };
    rules.any_is_split() && call().is_some()
}

/// Answers a plain call, by the pipe or the engine as a server's task (GW-11). A disconnect cancels nothing (T-81).
pub(super) async fn post(
    shared: &Arc<SessionFaceState>,
    session: ClientSession,
    request: Request,
    inbound: &Inbound,
) -> FaceResponse {
    let addressee = addressee(Some(&request.id), inbound.accepted);
    match drive(shared, &session, &request, inbound).await {
        Some(Ok(stream)) => {
            return stream.respond(&shared.open.replays, &shared.served, &session.token, addressee).await;
        }
        Some(Err(error)) => return addressee.error(StatusCode::OK, &error),
        None => (),
    }
    match pipe::request(request, Bytes::clone(&inbound.body), inbound.received_at, &shared.served) {
        Ok(message) => pipe::post(shared, session, message, inbound.accepted).await,
        Err(complaint) => refuse(&addressee, &complaint),
    }
}

/// Starts a call that needs the engine: its tool runs only as a task, it may return a task id, it is split, or it has
/// an idempotency key. `None` for every other, and without a readable tool name. An error if it was not started.
pub(super) async fn drive(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    request: &Request,
    inbound: &Inbound,
) -> Option<Result<ReplayStream, RpcError>> {
    let tool = tool_name(request.params.object()).ok()?;
    let served_natively =
        UpstreamTaskMode::WhereServed { deadline: shared.served.settings.rules.policy_of(&tool).deadline };
    let (upstream, native) = match shared.support(session, &inbound.caller.principal, &tool).await {
        ToolTaskSupport::Required => (shared.upstream_for_native(session), served_natively),
        ToolTaskSupport::Optional | ToolTaskSupport::Forbidden
            if !shared.falls_back(session, &tool)
                && !is_split(shared, request)
                && !idempotency_key::is_in_request(&inbound.headers, request) =>
        {
            return None;
        }
        ToolTaskSupport::Optional => (shared.upstream_of(session), served_natively),
        ToolTaskSupport::Forbidden => (shared.upstream_of(session), UpstreamTaskMode::Never),
    };
    let route = CallRoute { upstream, era: AnswerEra::Sessions, native };
    Some(bridged_call::begin_on(&route, shared, session, request, BridgedCaller::of(inbound)))
}

/// The rest of a stream that the gateway made; every other event is the server's own.
pub(super) fn resume_own_stream(
    shared: &SessionFaceState,
    session: &ClientSession,
    caller: &Caller,
    last_event: Option<&HeaderValue>,
) -> Option<FaceResponse> {
    let event = last_event?.to_str().ok()?;
    replay::resume_replay(&shared.open.replays, &shared.served, &session.token, caller, event)
}

impl SessionFaceState {
    /// The default if the server does not respond in time.
    async fn support(&self, session: &ClientSession, principal: &Principal, tool: &str) -> ToolTaskSupport {
        if !session.token.tasks.calls {
            return ToolTaskSupport::default();
        }
        let (context, pool) = (self.context(session, principal), &self.served.pool);
        let look = async {
            let handshake = pool.handshake(&context).await.ok()?;
            if !UpstreamTaskSupport::of(handshake.version, &handshake.capabilities).calls {
                return None;
            }
            Some(self.pool_tools.list_with(tool, &context).await.ok()?.tool(tool)?.task_support)
        };
        match tokio::time::timeout(LOOK_MAX, look).await {
            Ok(support) => support.unwrap_or_default(),
            Err(_) => {
                tracing::warn!(upstream = %pool.name(), tool, "the server did not list its tools in time; the call is forwarded as a plain one");
                ToolTaskSupport::default()
            }
        }
    }

    /// Whether a call that requests a task becomes one at the server: whenever its tool supports it (GW-11).
    pub(super) async fn native_task(
        &self,
        session: &ClientSession,
        principal: &Principal,
        tool: &str,
    ) -> UpstreamTaskMode {
        match self.support(session, principal, tool).await {
            ToolTaskSupport::Optional | ToolTaskSupport::Required => {
                UpstreamTaskMode::WhereServed { deadline: self.served.settings.rules.policy_of(tool).deadline }
            }
            ToolTaskSupport::Forbidden => UpstreamTaskMode::Never,
        }
    }

    /// The client's own session, if its version has tasks, else one of the gateway's.
    fn upstream_for_native(self: &Arc<Self>, session: &ClientSession) -> Arc<dyn Upstream> {
        if self.own.binding(&session.own).tasks.calls {
            self.upstream_of(session)
        } else {
            Arc::clone(&self.served.pool)
        }
    }
}
