//! Chooses the upstream's era for one request.

use super::{MessageContext, StatelessFace};
use crate::dialect::ext_tasks::ExtTasks;
use crate::dialect::negotiate::StatelessRequest;
use crate::upstream::Era;
use crate::wire::{Object, method};

impl StatelessFace {
    /// Requests about the gateway's own tasks, and subscriptions to them, need no upstream.
    pub(super) async fn era(
        &self,
        name: &str,
        params: Option<&Object>,
        metadata: Option<&StatelessRequest>,
        around: &MessageContext<'_>,
    ) -> Era {
        let wanted = || params.and_then(|params| params.get_object("notifications"));
        let is_about_tasks = ExtTasks::is_method(name)
            || (name == method::LISTEN && wanted().is_some_and(|wanted| wanted.contains("taskIds")));
        if is_about_tasks {
            return Era::Session;
        }
        let era = self.served.upstream.era(around.forwarded).await;
        match metadata.filter(|metadata| era == Era::Stateless && metadata.takes_questions()) {
            Some(metadata) => {
                let context = self.context_of(&around.principal, metadata, around.forwarded);
                self.served.upstream.era_for(&context).await
            }
            None => era,
        }
    }
}
