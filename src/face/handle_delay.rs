//! Waits for a moment before a creation is answered (T-79).
//!
//! A client polls as soon as it has its handle, and again after the interval that it was told. A tool of a few
//! milliseconds is done by the first poll if the handle waits for them; without that its client waits a whole interval.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::engine::Engine;
use crate::task::{Phase, TaskKey};

/// The longest that a handle is held back.
const MOMENT: Duration = Duration::from_millis(100);

/// Returns once the task ended or asks something, and what it came to is stored; at the latest after a moment. Who drops
/// this left before it had its handle: nobody knows the task then, and it is cancelled (T-27), unless its client named
/// the call and finds it by that.
pub(super) async fn pass(engine: &Arc<Engine>, key: &TaskKey, is_named: bool) {
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
