//! Refuses a client's answer to a question of a call whose tool it may not use any more.
//!
//! The server gets an error in its place, so that its call can end; the client sees no difference (B129).

use super::SessionFaceState;
use super::session_cache::ClientSession;
use crate::audit::{AuditAct, AuditEvent};
use crate::wire::{RpcError, rpc_error};

impl SessionFaceState {
    /// The answer that the server of a question gets in place of the client's, if the client may not use the call's
    /// tool.
    pub(super) fn refusal_of_answer(&self, session: &ClientSession, tool: Option<&str>) -> Option<RpcError> {
        let (tool, upstream) = (tool?, self.served.upstream.name());
        if self.served.engine.access().has_tool(&session.own.caller, upstream, tool) {
            return None;
        }
        if let Some(audit) = self.served.engine.audit() {
            audit.record(&AuditEvent {
                who: Some(&session.own.caller.principal),
                upstream: Some(upstream),
                tool: Some(tool),
                ..AuditEvent::new(AuditAct::RuleDenied)
            });
        }
        Some(RpcError::new(rpc_error::INTERNAL_ERROR, "the client may not use this tool any more"))
    }
}
