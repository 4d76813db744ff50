//! Waits for a moment before a creation is answered (T-79).
//!
//! A client polls as soon as it has its handle, and again after the interval that it was told. A tool of a few
//! milliseconds is done by the first poll if the handle waits for them; without that its client waits a whole interval.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::engine::{CallEvent, CallStream, Engine};
use crate::task::{Failure, GatewayFault, Outcome, Phase, Reason, TaskKey};
use crate::upstream::ForwardedHeaders;

/// The longest that a handle is held back.
const MOMENT: Duration = Duration::from_millis(100);

/// Returns once the task ended or asks something, and what it came to is stored; at the latest after a moment. Who drops
/// this left before it had its handle: nobody knows the task then, and it is cancelled (T-27), unless its client named
/// the call and finds it by that.
pub(in crate::face) async fn pass(engine: &Arc<Engine>, key: &TaskKey, is_named: bool) {
    let unheard = UnsentHandle { engine, key: Some(key).filter(|_| !is_named) };
    let news = async {
        let Ok(mut watcher) = engine.watchers().watch(key) else { return };
        while let Ok(task) = engine.get(key).await {
            match task.phase {
                Phase::Queued | Phase::Working => watcher.changed().await,
                Phase::AwaitingInput(_) | Phase::Settled(_) => return,
            }
        }
    };
    // One that takes longer is a slow call.
    let _ = timeout(MOMENT, news).await;
    unheard.heard();
}

/// The fault of a task that its server refused for its client's credential, if that is how it ended in that moment: its client
/// is asked to log in in place of being given a handle, and calls again. The row says the same for as long as it is kept.
pub(in crate::face) async fn refusal(
    engine: &Arc<Engine>,
    key: &TaskKey,
    forwarded: &ForwardedHeaders,
) -> Option<GatewayFault> {
    forwarded.refusal()?;
    match engine.get(key).await.ok()?.outcome() {
        Some(Outcome::Faulted(Failure::Gateway(fault))) if fault.reason == Reason::UpstreamAuth => Some(*fault),
        Some(_) | None => None,
    }
}

/// The first event of a call that is a task from its beginning, once its server had a moment to refuse its client: a handle is
/// given out before the server is asked, and whoever has one never hears that there is a login. `None` for any other call.
///
/// # Errors
/// If the server did.
pub(in crate::face) async fn first_event(
    engine: &Arc<Engine>,
    call: Option<&mut CallStream>,
    forwarded: &ForwardedHeaders,
) -> Result<Option<CallEvent>, GatewayFault> {
    let Some(call) = call else { return Ok(None) };
    let first = call.next().await;
    if let Some(CallEvent::Created(task)) = &first {
        pass(engine, &task.key, false).await;
        if let Some(fault) = refusal(engine, &task.key, forwarded).await {
            return Err(fault);
        }
    }
    Ok(first)
}

/// A task whose handle was not sent yet.
struct UnsentHandle<'a> {
    engine: &'a Arc<Engine>,
    key: Option<&'a TaskKey>,
}

impl UnsentHandle<'_> {
    fn heard(mut self) {
        self.key = None;
    }
}

impl Drop for UnsentHandle<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.engine.cancel_unheard(key);
        }
    }
}
