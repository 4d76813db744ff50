//! Delays a task handle by up to 100 ms, for calls that settle first (T-79). A client polls at once, then after the
//! poll interval: without the delay a call of milliseconds takes a whole interval.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::engine::{CallEvent, CallStream, Engine};
use crate::task::{Failure, GatewayFault, Outcome, Phase, Reason, TaskKey};
use crate::upstream::ForwardedHeaders;

const MOMENT: Duration = Duration::from_millis(100);

/// Waits for a settled task or a stored question, at most the delay. A disconnect cancels an unnamed task (T-27).
pub(in crate::face) async fn pass(engine: &Arc<Engine>, key: &TaskKey, is_named: bool) {
    let unsent = UnsentHandle { engine, key: Some(key).filter(|_| !is_named) };
    let news = async {
        let Ok(mut watcher) = engine.watchers().watch(key) else { return };
        while let Ok(task) = engine.load_visible(key).await {
            match task.phase {
                Phase::Queued | Phase::Working => watcher.changed().await,
                Phase::AwaitingInput(_) | Phase::Settled(_) => return,
            }
        }
    };
    // A longer call counts as slow.
    let _ = timeout(MOMENT, news).await;
    unsent.sent();
}

/// The fault of a task that its server refused for the credential: its client gets the challenge, and logs in.
pub(in crate::face) async fn refusal(
    engine: &Arc<Engine>,
    key: &TaskKey,
    forwarded: &ForwardedHeaders,
) -> Option<GatewayFault> {
    forwarded.refusal()?;
    match engine.load_visible(key).await.ok()?.outcome() {
        Some(Outcome::Faulted(Failure::Gateway(fault))) if fault.reason == Reason::UpstreamAuth => Some(*fault),
        Some(_) | None => None,
    }
}

/// The first event of a call that is a task from the start, after the delay. Fails if its credential was refused.
pub(in crate::face) async fn first_event(
    engine: &Arc<Engine>,
    call: &mut CallStream,
    forwarded: &ForwardedHeaders,
) -> Result<Option<CallEvent>, GatewayFault> {
    let first = call.next().await;
    if let Some(CallEvent::Created(task)) = &first {
        pass(engine, &task.key, false).await;
        if let Some(fault) = refusal(engine, &task.key, forwarded).await {
            return Err(fault);
        }
    }
    Ok(first)
}

struct UnsentHandle<'a> {
    engine: &'a Arc<Engine>,
    key: Option<&'a TaskKey>,
}

impl UnsentHandle<'_> {
    fn sent(mut self) {
        self.key = None;
    }
}

impl Drop for UnsentHandle<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.engine.cancel_without_handle(key);
        }
    }
}
