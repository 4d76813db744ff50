//! Refuses a client's answer to a question of a call whose tool it may not use any more.
//!
//! The server gets an error in its place, so that its call can end; the client sees no difference (B129).

use std::sync::Arc;

use super::SessionFaceState;
use super::in_flight::request_key;
use super::session_cache::ClientSession;
use crate::audit::{AuditAct, AuditEvent};
use crate::upstream::recent_map::RecentMap;
use crate::wire::{RequestId, RpcError, rpc_error};

/// The most remembered questions of piped calls. An answer to a forgotten one is forwarded.
const QUESTIONS_MAX: usize = 16_384;

/// The tools of the piped calls that asked, by session and question. An entry is in use as long as its call runs.
#[derive(Debug)]
pub(super) struct AskedTools(RecentMap<Arc<str>>);

impl Default for AskedTools {
    fn default() -> Self {
        Self(RecentMap::new(QUESTIONS_MAX))
    }
}

impl AskedTools {
    pub(super) fn note(&self, session: &ClientSession, question: &RequestId, tool: &Arc<str>) {
        self.0.insert(request_key(session.token.nonce, question), session.counted_as(), Arc::clone(tool));
    }

    /// The tool of the call that asked, once.
    pub(super) fn take(&self, session: &ClientSession, question: &RequestId) -> Option<Arc<str>> {
        self.0.remove(request_key(session.token.nonce, question))
    }
}

impl SessionFaceState {
    /// The answer that the server of a question gets in place of the client's, if the client may not use the call's
    /// tool.
    pub(super) fn refusal_of_answer(&self, session: &ClientSession, tool: Option<&str>) -> Option<RpcError> {
        let (tool, upstream) = (tool?, self.served.upstream.name());
        if self.served.engine.access().has_tool(&session.caller, upstream, tool) {
            return None;
        }
        if let Some(audit) = self.served.engine.audit() {
            audit.record(&AuditEvent {
                who: Some(&session.caller.principal),
                upstream: Some(upstream),
                tool: Some(tool),
                ..AuditEvent::new(AuditAct::RuleDenied)
            });
        }
        Some(RpcError::new(rpc_error::INTERNAL_ERROR, "the client may not use this tool any more"))
    }
}
