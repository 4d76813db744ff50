//! Holds what a `tools/call` in a pipe has while it is in progress: a permit, and a part in the count of calls; and ends it
//! with the gateway.

use std::sync::Arc;

use crate::engine::CallsEnd;
use crate::face::served::Served;
use crate::task::{Executed, GatewayFault, Principal};
use crate::upstream::limits::{CallInProgress, CallPermit};

/// A call at its upstream.
#[derive(Debug)]
pub(in crate::face) struct HeldCall {
    _permit: CallPermit,
    in_progress: CallInProgress,
    calls_end: CallsEnd,
}

impl HeldCall {
    /// Takes a permit, or waits for one within the queue's deadline.
    ///
    /// Cancel safe: a dropped wait gives its turn to the next.
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

    /// Counts it anew: whether its client can come back for the rest, also to a later process.
    pub(in crate::face) fn note_place(&mut self, has_place: bool) {
        self.in_progress.now_held(has_place);
    }

    /// Notes that the upstream said something of the call.
    pub(in crate::face) fn heard(&self) {
        self.in_progress.heard();
    }

    /// Says when no call is waited for any more.
    pub(in crate::face) const fn calls_end(&self) -> &CallsEnd {
        &self.calls_end
    }
}

/// Waits for something until the gateway ends and waits for no call any more: then this one ended with the gateway.
///
/// # Errors
/// As `waiting`; and then.
pub(super) async fn until_calls_end<T>(
    calls_end: Option<&CallsEnd>,
    executed: Executed,
    waiting: impl Future<Output = Result<T, GatewayFault>>,
) -> Result<T, GatewayFault> {
    let Some(calls_end) = calls_end else { return waiting.await };
    tokio::select! {
        // Before whatever else there is: the permit of one that ended must not send the next.
        biased;
        () = calls_end.token().cancelled() => Err(calls_end.fault(executed)),
        done = waiting => done,
    }
}
