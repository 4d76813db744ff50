//! Clients of sessions that know no tasks, where the operator gives them tools in their place.
//!
//! Their plain calls leave the pipe: each is a call of the engine's in the client's own upstream session, which ends in a
//! result that speaks of its task once it outlives its grace period. A client is taken for one that knows tasks if it said
//! so in its handshake, or has used any in this session.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::SessionFaceState;
use super::bridged_client::BridgedClient;
use super::session_cache::ClientSession;
use crate::dialect::fallback_tools::{FallbackTool, FallbackTools};
use crate::dialect::plain::PlainUpstream;
use crate::face::answer::addressee;
use crate::face::catalog::Catalog;
use crate::face::fallback::{
    FallbackAnswer, FallbackCall, FallbackResult, FallbackToolService, TaskAsker, answer, run,
};
use crate::face::http::{FaceResponse, Inbound};
use crate::task::{Principal, ToolRules};
use crate::upstream::Upstream;
use crate::wire::envelope::Request;
use crate::wire::{Object, method};

/// How long a call waits to learn which names are the upstream's, where nobody has listed its tools in this life of the
/// process. Then the name is taken for one of the gateway's tools, which need no upstream.
const LOOK_MAX: Duration = Duration::from_secs(3);

/// What the session face knows of the three tools.
#[derive(Debug)]
pub(super) struct SessionFallback {
    service: Arc<FallbackToolService>,
    /// The tools of a server without sessions.
    bridged: Catalog,
}

impl SessionFallback {
    /// `None` where no tool's rules ask for it.
    pub(super) fn new(rules: &ToolRules, stateless: &Arc<dyn Upstream>) -> Option<Self> {
        let bridged = || Catalog::new(Arc::clone(stateless), Arc::new(PlainUpstream));
        FallbackToolService::new(rules).map(|service| Self { service, bridged: bridged() })
    }

    /// Keeps what is cached small while nobody asks, until told to stop.
    pub(super) async fn keep_tidy(&self, stop: &tokio_util::sync::CancellationToken) {
        self.bridged.keep_tidy(stop).await;
    }
}

impl SessionFaceState {
    /// The tools that a session's client is given in place of tasks, if any.
    pub(in crate::face) fn fallback_for(&self, session: &ClientSession) -> Option<Arc<FallbackToolService>> {
        let fallback = self.fallback.as_ref()?;
        let knows_tasks = session.token.declares_tasks || self.sessions.uses_tasks(session);
        (!knows_tasks).then(|| Arc::clone(&fallback.service))
    }

    /// Whether a plain call of this tool may be answered with a word of its task.
    pub(super) fn falls_back(&self, session: &ClientSession, tool: &str) -> bool {
        self.fallback_for(session).is_some_and(|fallback| fallback.covers(tool))
    }

    /// Takes note that a session's client knows tasks. Means something only where others are given tools instead.
    pub(super) fn note_tasks(&self, session: &ClientSession) {
        if self.fallback.is_some() {
            self.sessions.note_tasks(session);
        }
    }

    /// The words for such a client, with the names that are in force.
    pub(super) fn fallback_words(&self) -> FallbackTools {
        FallbackTools::for_session(self.fallback.as_ref().map_or(0, |fallback| fallback.service.level()))
    }

    /// Learns which names are the upstream's, if nobody knows yet.
    async fn learn_names(&self, session: &ClientSession, principal: &Principal) {
        let Some(fallback) = self.fallback.as_ref().filter(|fallback| !fallback.service.has_learned()) else { return };
        let client = BridgedClient::of(session.token.client_version, &session.token.capabilities);
        let context = client.context((principal, &session.own.forwarded), &self.served);
        let catalog = match session.is_bridged() {
            true => &fallback.bridged,
            false => self.task_tools.catalog(),
        };
        if let Ok(Ok(list)) = tokio::time::timeout(LOOK_MAX, catalog.list(&context)).await
            && let Some(list) = Object::of(list.result())
        {
            fallback.service.learn(&list);
        }
    }
}

/// The tool of the gateway's own that a request calls, as far as is known.
pub(super) fn called(shared: &SessionFaceState, session: &ClientSession, request: &Request) -> Option<FallbackTool> {
    let fallback = shared.fallback.as_ref().filter(|_| request.method == method::TOOLS_CALL)?;
    if session.token.declares_tasks {
        return None;
    }
    let params = request.params.object().filter(|params| !params.contains("task"))?;
    fallback.service.named(&params.get_str("name")?)
}

/// Whether a plain call is one that may end in a word of its task.
pub(super) fn may_drive(shared: &SessionFaceState, session: &ClientSession, request: &Request) -> bool {
    shared.fallback.is_some()
        && request.method == method::TOOLS_CALL
        && request.params.object().and_then(|params| params.get_str("name")).is_some_and(|tool| {
            // Of another kind of server, which the bridge drives anyway.
            !session.is_bridged() && shared.falls_back(session, &tool)
        })
}

/// Answers a call of one of the tools, or gives it back: the upstream has a tool of this name after all. Dropping the future
/// means that the client left, which changes nothing about the task (T-81).
pub(super) async fn post(
    shared: &SessionFaceState,
    session: &ClientSession,
    request: Request,
    inbound: &Inbound,
) -> Result<FaceResponse, Request> {
    shared.learn_names(session, &inbound.principal).await;
    let Some(tool) = called(shared, session, &request) else { return Err(request) };
    let addressee = addressee(Some(&request.id), inbound.accepted);
    let asker = TaskAsker { owner: &inbound.principal, misses: shared.tasks.misses() };
    let call = FallbackCall { tool, request: &request, life_signs: shared.served.settings.life_signs };
    Ok(answer(&shared.served.engine, asker, call, shared.fallback_words(), addressee).await)
}

async fn errand(shared: &SessionFaceState, owner: &Principal, tool: FallbackTool, request: &Request) -> FallbackAnswer {
    let asker = TaskAsker { owner, misses: shared.tasks.misses() };
    run(&shared.served.engine, asker, (tool, request.params.object()), shared.fallback_words()).await
}

/// The same for one call of an array.
pub(super) fn in_batch(
    shared: &Arc<SessionFaceState>,
    session: &ClientSession,
    request: &Request,
    owner: &Principal,
) -> Option<BoxFuture<'static, FallbackResult>> {
    let tool = called(shared, session, request)?;
    let (shared, owner, request) = (Arc::clone(shared), owner.clone(), request.clone());
    Some(Box::pin(async move { errand(&shared, &owner, tool, &request).await.done().await }))
}
