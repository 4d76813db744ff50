//! Holds the permit and the count of a forwarded `tools/call`.

use std::sync::Arc;

use crate::engine::CallsEnd;
use crate::face::served::Served;
use crate::task::{Executed, GatewayFault, Principal};
use crate::upstream::limits::{CallInProgress, CallPermit};

#[derive(Debug)]
pub(in crate::face) struct HeldCall {
    _permit: CallPermit,
    in_progress: CallInProgress,
    calls_end: CallsEnd,
}

impl HeldCall {
    /// Waits for a permit within the queue's deadline. Cancel safe: a dropped wait gives its turn to the next.
    ///
    /// # Errors
    /// As [`crate::upstream::limits::CallPermits::acquire`]; and if the gateway ends meanwhile.
    pub(in crate::face) async fn begin(
        served: &Served,
        owner: &Principal,
        tool: Arc<str>,
    ) -> Result<Self, GatewayFault> {
        let in_progress = served.permits.call_begins(tool, owner.clone());
        let calls_end = served.engine.calls_end();
        let permit = match served.permits.try_acquire(owner) {
            Some(permit) => permit,
            None => {
                let waiting = served.permits.acquire(owner, Some(served.settings.queue_deadline));
                until_calls_end(Some(calls_end), Executed::No, waiting).await?
            }
        };
        Ok(Self { _permit: permit, in_progress, calls_end: calls_end.clone() })
    }

    /// Records whether the client can resume, also in a later process.
    pub(in crate::face) fn note_position(&mut self, has_position: bool) {
        self.in_progress.now_held(has_position);
    }

    /// Records a sign of life of the upstream.
    pub(in crate::face) fn record_activity(&self) {
        self.in_progress.heard();
    }

    /// The end of the wait for calls in progress.
    pub(in crate::face) const fn calls_end(&self) -> &CallsEnd {
        &self.calls_end
    }
}

/// Awaits a future, unless the gateway ends and waits for no more calls: then the call ends with a fault.
pub(super) async fn until_calls_end<T>(
    calls_end: Option<&CallsEnd>,
    executed: Executed,
    waiting: impl Future<Output = Result<T, GatewayFault>>,
) -> Result<T, GatewayFault> {
    let Some(calls_end) = calls_end else { return waiting.await };
    tokio::select! {
        // First: the permit of an ended call must not start the next one.
        biased;
        () = calls_end.token().cancelled() => Err(calls_end.fault(executed)),
        done = waiting => done,
    }
}
