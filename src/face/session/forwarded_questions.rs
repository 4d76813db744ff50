//! Records forwarded questions of servers: their answers are audited, and need access to the call's tool (SEC-62).

use std::sync::{Arc, Weak};

use super::SessionFaceState;
use super::in_flight::request_key;
use super::session_cache::ClientSession;
use crate::audit::{AuditAct, AuditEvent};
use crate::face::named_item::NAME_BYTES_MAX;
use crate::upstream::recent_map::{RecentMap, RecentValue};
use crate::wire::{RequestId, RpcError, rpc_error};

const QUESTIONS_MAX: usize = 16_384;

#[derive(Clone, Debug)]
pub(super) enum ForwardedQuestion {
    /// Of another request than a call, or on the session's own stream.
    OtherRequest,
    Call {
        tool: Box<str>,
        /// The call's own name of its tool, which exists as long as the call.
        call: Weak<str>,
    },
    /// The name of the call's tool is too long to be kept.
    UnnamedCall,
}

impl ForwardedQuestion {
    fn of_call(tool: Option<&Arc<str>>) -> Self {
        match tool {
            Some(tool) if tool.len() <= NAME_BYTES_MAX => {
                Self::Call { tool: (**tool).into(), call: Arc::downgrade(tool) }
            }
            Some(_) => Self::UnnamedCall,
            None => Self::OtherRequest,
        }
    }

    pub(super) fn asking_tool(&self) -> Option<AskingTool<'_>> {
        match self {
            Self::OtherRequest => None,
            Self::Call { tool, .. } => Some(AskingTool::Named(tool)),
            Self::UnnamedCall => Some(AskingTool::Unnamed),
        }
    }
}

impl RecentValue for ForwardedQuestion {
    fn is_in_use(&self) -> bool {
        match self {
            Self::Call { call, .. } => call.strong_count() > 0,
            Self::OtherRequest | Self::UnnamedCall => false,
        }
    }
}

/// By session and question. An entry is in use as long as its call runs.
#[derive(Debug)]
pub(super) struct ForwardedQuestions {
    unanswered: RecentMap<ForwardedQuestion>,
}

impl Default for ForwardedQuestions {
    fn default() -> Self {
        Self { unanswered: RecentMap::new(QUESTIONS_MAX) }
    }
}

impl ForwardedQuestions {
    pub(super) fn note(&self, session: &ClientSession, id: &RequestId, tool: Option<&Arc<str>>) {
        let question = ForwardedQuestion::of_call(tool);
        self.unanswered.insert(request_key(session.token.nonce, id), session.counted_as(), question);
    }

    /// The question that a response with this id answers. Only the first response does.
    pub(super) fn take(&self, session: &ClientSession, id: &RequestId) -> Option<ForwardedQuestion> {
        self.unanswered.remove(request_key(session.token.nonce, id))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_of_a_call_are_in_use_until_it_ends_however_many_there_are() {
        let tool: Arc<str> = Arc::from("ask");
        let questions = [(); 3].map(|()| ForwardedQuestion::of_call(Some(&tool)));
        assert!(questions.iter().all(RecentValue::is_in_use));
        drop(tool);
        assert!(!questions.iter().any(RecentValue::is_in_use));
        assert!(questions.iter().all(|question| question.asking_tool() == Some(AskingTool::Named("ask"))));
        assert!(!ForwardedQuestion::of_call(None).is_in_use());
    }

    #[test]
    fn a_long_tool_name_is_not_kept_and_counts_as_no_other_name() {
        let tool: Arc<str> = Arc::from("x".repeat(NAME_BYTES_MAX + 1));
        let question = ForwardedQuestion::of_call(Some(&tool));
        assert_eq!((question.asking_tool(), question.is_in_use()), (Some(AskingTool::Unnamed), false));
    }
}
