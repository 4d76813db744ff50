//! Refuses a client's answer to a question of a call whose tool it may not use any more. The server gets an error in
//! its place, so that its call can end; the client sees no difference (B129).

use super::SessionFaceState;
use super::session_cache::ClientSession;
use crate::audit::{AuditAct, AuditEvent};
use crate::wire::{RpcError, rpc_error};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AskingTool<'a> {
    Named(&'a str),
    /// Its name was not kept, so it may be any tool.
    Unnamed,
}

impl SessionFaceState {
    /// The answer that a question's server gets in place of the client's, if the client may not use the call's tool.
    pub(super) fn refusal_of_answer(&self, session: &ClientSession, tool: Option<AskingTool<'_>>) -> Option<RpcError> {
        let (access, upstream) = (self.served.engine.access(), self.served.upstream.name());
        let caller = &session.own.caller;
        let (tool, is_allowed) = match tool? {
            AskingTool::Named(tool) => (Some(tool), access.has_tool(caller, upstream, tool)),
            AskingTool::Unnamed => (None, access.has_every_tool(caller, upstream)),
        };
        if is_allowed {
            return None;
        }
        if let Some(audit) = self.served.engine.audit() {
            audit.record(&AuditEvent {
                who: Some(&caller.principal),
                upstream: Some(upstream),
                tool,
                ..AuditEvent::new(AuditAct::RuleDenied)
            });
        }
        Some(RpcError::new(rpc_error::INTERNAL_ERROR, "the client may not use this tool any more"))
    }
}
