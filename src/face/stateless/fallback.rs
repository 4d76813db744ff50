//! Serves clients without the extension, if the operator gives them tools instead.

use std::sync::Arc;
use std::time::Duration;

use super::{FaceResponse, Promotable, StatelessFace, StatelessRequestContext};
use crate::dialect::fallback_tools::FallbackTools;
use crate::dialect::negotiate::StatelessRequest;
use crate::engine::{CallEvent, CallStream};
use crate::face::fallback::{FallbackCall, FallbackToolService, TaskAsker, answer};
use crate::task::{HandleSupport, TaskMode, ToolPolicy};
use crate::wire::{Object, method};

/// A call's longest wait for the upstream's tool names, as for sessions.
const LOOK_MAX: Duration = Duration::from_secs(3);

/// A tool that runs only as a task is still refused to clients without the extension (GW-13).
pub(super) fn takes_tasks(metadata: &StatelessRequest, policy: ToolPolicy) -> (ToolPolicy, HandleSupport) {
    match metadata.takes_tasks() {
        HandleSupport::No if policy.falls_back_to_tools() && policy.mode != TaskMode::Required => {
            (policy.asking_first(), HandleSupport::ByTools)
        }
        takes @ (HandleSupport::No | HandleSupport::AfterGrace | HandleSupport::AtOnce | HandleSupport::ByTools) => {
            (policy, takes)
        }
    }
}

impl StatelessFace {
    /// The tools that the client gets in place of tasks, if any.
    pub(super) fn fallback_for(&self, metadata: &StatelessRequest) -> Option<Arc<FallbackToolService>> {
        self.fallback.as_ref().filter(|_| metadata.takes_tasks() == HandleSupport::No).cloned()
    }

    pub(super) fn fallback_texts(&self) -> FallbackTools {
        FallbackTools::for_stateless(self.fallback.as_ref().map_or(0, |fallback| fallback.level()), self.identity())
    }

    pub(super) async fn respond(
        &self,
        inquiry: StatelessRequestContext<'_>,
        promotable: Promotable,
        (first, call): (Option<CallEvent>, CallStream),
    ) -> FaceResponse {
        match inquiry.metadata.takes_tasks() {
            HandleSupport::No | HandleSupport::ByTools => {
                let dialect = self.fallback_texts();
                self.view(inquiry, promotable, dialect).respond_from(first, call).await
            }
            HandleSupport::AfterGrace | HandleSupport::AtOnce => {
                let dialect = self.dialect();
                self.view(inquiry, promotable, dialect).respond_from(first, call).await
            }
        }
    }

    /// Whether a request calls one of the gateway's own tools, as far as is known.
    pub(super) fn is_own_tool_call(&self, name: &str, params: Option<&Object>) -> bool {
        let Some(fallback) = self.fallback.as_ref().filter(|_| name == method::TOOLS_CALL) else { return false };
        params.and_then(|params| params.get_str("name")).is_some_and(|tool| fallback.named(&tool).is_some())
    }

    /// `None` for a call of another tool. Dropping the future does not affect the task.
    pub(super) async fn own_tool_call(&self, inquiry: &StatelessRequestContext<'_>) -> Option<FaceResponse> {
        let fallback = self
            .fallback_for(&inquiry.metadata)
            .filter(|_| self.is_own_tool_call(inquiry.method, Some(inquiry.params)))?;
        if !fallback.has_learned() {
            let context = self.context(inquiry);
            if let Ok(Ok(list)) = tokio::time::timeout(LOOK_MAX, self.catalog.list(&context)).await
                && let Some(list) = Object::of(list.result())
            {
                fallback.learn(&list);
            }
        }
        let tool = fallback.named(&inquiry.params.get_str("name")?)?;
        let asker = TaskAsker { owner: &inquiry.principal, misses: &self.misses };
        let call = FallbackCall { tool, request: inquiry.request, life_signs: self.served.settings.life_signs };
        Some(answer(&self.served.engine, asker, call, self.fallback_texts(), inquiry.addressee.clone()).await)
    }
}
