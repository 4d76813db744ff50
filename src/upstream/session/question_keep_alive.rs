//! Sends an upstream progress while its question waits for a human (T-47).
//!
//! Servers time out after a minute or so; progress under the question's token resets their timer. Without a token they
//! ignore it.

use std::sync::Arc;
use std::time::Duration;

use super::UpstreamSession;
use super::calls::SessionCall;
use crate::wire::envelope::Params;
use crate::wire::object::ObjectWriter;
use crate::wire::{Payload, RequestId, envelope, meta, method};

/// The interval of progress: twice within the timeout of SDKs.
const EVERY: Duration = Duration::from_secs(20);

pub(super) struct QuestionKeepAlive {
    ask: Payload,
    token: Payload,
    /// The upstream's task that asks, which every message about it must name.
    related: Option<Payload>,
}

impl QuestionKeepAlive {
    /// `None` if the question has no valid token.
    pub(super) fn of(id: &RequestId, params: &Params) -> Option<Self> {
        let question_meta = params.object()?.get_object(meta::META)?;
        let token = RequestId::from_payload(&question_meta.get(meta::PROGRESS_TOKEN)?)?;
        let related = question_meta.get(meta::RELATED_TASK).map(|related| related.detached());
        Some(Self { ask: id.payload().clone(), token: token.payload().clone(), related })
    }

    /// Sends progress in the background until the question is closed, or its call or session is gone.
    pub(super) fn keep(self, session: &Arc<UpstreamSession>, call: &Arc<SessionCall>) {
        let (link, over) = (Arc::clone(&session.link), session.over().clone());
        let (session, call) = (Arc::downgrade(session), Arc::downgrade(call));
        let showing = async move {
            for count in 1_u32.. {
                tokio::time::sleep(EVERY).await;
                let Some(session) = session.upgrade() else { break };
                if !call.upgrade().is_some_and(|call| call.is_open(&self.ask)) {
                    break;
                }
                // An upstream that refuses it has lost the session, or will report the fault elsewhere.
                if session.tell(self.sign(count)).await.is_err() {
                    break;
                }
            }
        };
        link.tracker.spawn(over.run_until_cancelled_owned(Box::pin(showing)));
    }

    fn sign(&self, count: u32) -> bytes::Bytes {
        let params = ObjectWriter::new()
            .member(meta::PROGRESS_TOKEN, &self.token)
            .number("progress", u64::from(count))
            .text("message", "waiting for an answer");
        let params = match &self.related {
            Some(related) => {
                params.member(meta::META, &ObjectWriter::new().member(meta::RELATED_TASK, related).finish())
            }
            None => params,
        };
        envelope::notification(method::PROGRESS, Some(&params.finish()))
    }
}
