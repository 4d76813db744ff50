//! Remembers the servers' questions that the pipe forwarded: the audit distinguishes their answers from other responses, and
//! a client that may no longer use the asking call's tool cannot answer them (SEC-62).

use std::sync::{Arc, Weak};

use super::in_flight::request_key;
use super::session_cache::ClientSession;
use crate::upstream::recent_map::{RecentMap, RecentValue};
use crate::wire::RequestId;

/// The most questions that are remembered.
const QUESTIONS_MAX: usize = 16_384;
/// The longest name of a tool that is remembered with each of its questions.
const TOOL_BYTES_MAX: usize = 1_024;

#[derive(Clone, Debug)]
pub(super) struct ForwardedQuestion {
    /// The tool of the call that asked; `None` for other requests, and on the session's own stream.
    pub(super) tool: Option<Box<str>>,
    /// The call's own name of its tool, which exists as long as the call.
    call: Option<Weak<str>>,
}

impl ForwardedQuestion {
    fn of_call(tool: Option<&Arc<str>>) -> Self {
        match tool {
            Some(tool) if tool.len() <= TOOL_BYTES_MAX => {
                Self { tool: Some((**tool).into()), call: Some(Arc::downgrade(tool)) }
            }
            // Too long to keep. No tool has an empty name, so a caller with rights to named tools alone cannot answer.
            Some(_) => Self { tool: Some("".into()), call: None },
            None => Self { tool: None, call: None },
        }
    }
}

impl RecentValue for ForwardedQuestion {
    fn is_in_use(&self) -> bool {
        self.call.as_ref().is_some_and(|call| call.strong_count() > 0)
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
        assert!(questions.iter().all(|question| question.tool.as_deref() == Some("ask")));
        assert!(!ForwardedQuestion::of_call(None).is_in_use());
    }

    #[test]
    fn a_long_tool_name_is_kept_as_an_empty_one() {
        let tool: Arc<str> = Arc::from("x".repeat(TOOL_BYTES_MAX + 1));
        let question = ForwardedQuestion::of_call(Some(&tool));
        assert_eq!((question.tool.as_deref(), question.is_in_use()), (Some(""), false));
    }
}
