//! Serves session clients without tasks, if the operator gives them tools instead. Their plain calls bypass the pipe:
//! each is a call of the engine in the client's upstream session, and returns a task id after its grace period. A
//! client has tasks if it declared them in its handshake, or used any in this session.

use std::sync::Arc;

use super::SessionFaceState;
use super::session_cache::ClientSession;
use crate::dialect::fallback_tools::{FallbackTool, FallbackTools};
use crate::face::answer::addressee;
use crate::face::fallback::{FallbackCall, FallbackListing, FallbackToolService, TaskAsker, answer};
use crate::face::http::{FaceResponse, Inbound};
use crate::face::list_walks::ListReader;
use crate::wire::envelope::Request;
use crate::wire::list_pages::sent_cursor;
use crate::wire::{Payload, method};

impl SessionFaceState {
    /// The tools that the session's client gets in place of tasks, if any.
    pub(in crate::face) fn fallback_for(&self, session: &ClientSession) -> Option<Arc<FallbackToolService>> {
        let fallback = self.fallback.as_ref()?;
        let knows_tasks = session.token.declares_tasks || self.sessions.uses_tasks(session);
        (!knows_tasks).then(|| Arc::clone(fallback))
    }

    /// The edits of a page of the tool list, if the session's client gets tools in place of tasks.
    pub(super) fn fallback_listing(&self, session: &ClientSession, cursor: Option<Payload>) -> Option<FallbackListing> {
        let reader = || ListReader::in_session(session.token.nonce, session.counted_as().clone());
        self.fallback_for(session).map(|fallback| fallback.listing(Some(reader()), cursor))
    }

    /// As [`Self::fallback_listing`], for the response to this request, if it is for a page.
    pub(super) fn fallback_listing_of(&self, session: &ClientSession, request: &Request) -> Option<FallbackListing> {
        if request.method != method::TOOLS_LIST {
            return None;
        }
        let cursor = request.params.object().and_then(sent_cursor);
        self.fallback_listing(session, cursor)
    }

    pub(super) fn falls_back(&self, session: &ClientSession, tool: &str) -> bool {
        self.fallback_for(session).is_some_and(|fallback| fallback.covers(tool))
    }

    pub(super) fn note_tasks(&self, session: &ClientSession) {
        if self.fallback.is_some() {
            self.sessions.note_tasks(session);
        }
    }

    pub(super) fn fallback_texts(&self) -> FallbackTools {
        FallbackTools::for_session(self.fallback.as_ref().map_or(0, |fallback| fallback.level()))
    }
}

/// The gateway's tool that a request calls, as far as is known.
pub(super) fn called(shared: &SessionFaceState, session: &ClientSession, request: &Request) -> Option<FallbackTool> {
    let fallback = shared.fallback.as_ref().filter(|_| request.method == method::TOOLS_CALL)?;
    if session.token.declares_tasks {
        return None;
    }
    let params = request.params.object().filter(|params| !params.contains("task"))?;
    fallback.named(&params.get_str("name")?)
}

pub(super) fn may_drive(shared: &SessionFaceState, session: &ClientSession, request: &Request) -> bool {
    // A bridged session's calls always use the engine.
    let may_fall_back = shared.fallback.is_some() && !session.is_bridged() && request.method == method::TOOLS_CALL;
    let tool = || request.params.object()?.get_str("name");
    may_fall_back && tool().is_some_and(|tool| shared.falls_back(session, &tool))
}

/// Answers a call of one of the tools, or returns it if it is the upstream's. A disconnect leaves the task (T-81).
pub(super) async fn post(
    shared: &SessionFaceState,
    session: &ClientSession,
    request: Request,
    inbound: &Inbound,
) -> Result<FaceResponse, Request> {
    if let Some(fallback) = &shared.fallback {
        let catalog = shared.bridged_tools.as_ref().filter(|_| session.is_bridged()).unwrap_or(&shared.pool_tools);
        fallback.learn_names(catalog, || shared.context(session, &inbound.caller.principal)).await;
    }
    let Some(tool) = called(shared, session, &request) else { return Err(request) };
    let addressee = addressee(Some(&request.id), inbound.accepted);
    let asker = TaskAsker { caller: &inbound.caller, misses: &shared.tasks.misses };
    let withdrawn = Some(shared.tasks.withdrawal(session.token.nonce, &request.id));
    let call = FallbackCall { tool, request: &request, life_signs: shared.served.settings.life_signs, withdrawn };
    Ok(answer(&shared.served.engine, asker, call, shared.fallback_texts(), addressee).await)
}
