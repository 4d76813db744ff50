//! Delays a task handle by up to 100 ms, for calls that settle first (T-79).
//!
//! A client polls at once, then after the poll interval: without the delay it waits a whole interval for a tool that
//! takes milliseconds.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::engine::{CallEvent, CallStream, Engine};
use crate::task::{Failure, GatewayFault, Outcome, Phase, Reason, TaskKey};
use crate::upstream::ForwardedHeaders;

const MOMENT: Duration = Duration::from_millis(100);

/// Returns once a settled task or its question is stored, at the latest after the delay. If the client disconnects
/// before, the task is cancelled (T-27), unless an idempotency key finds it.
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

/// The fault of a task that its server refused for the client's credential: the client gets the challenge in place of a
/// handle, logs in and calls again. The row has the same fault.
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

/// The first event of a call that is a task from its beginning, after the delay: a client with a handle never receives
/// the challenge. Fails if the server refused the client's credential.
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
