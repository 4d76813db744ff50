//! Ends a listener without cutting off a client that can still be answered (F67).

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::listener::RunningListener;

/// After this many the tasks of aborted connections are no longer waited for.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// How long those who were let in last may take to make a request: longer than they may be silent.
const HEARD_OUT_MAX: Duration = Duration::from_secs(1);

/// How long each phase of a drain lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainPlan {
    /// New connections are still taken this long, each for one answer, until balancers have noticed.
    pub notice: Duration,
    /// From the end of the notice: how long requests in flight are waited for.
    pub max: Duration,
}

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that had to be cut off.
    pub aborted: usize,
}

/// The phases as connections see them. Each token is cancelled once and stays so.
#[derive(Clone, Debug, Default)]
pub(super) struct Phases {
    /// Connections end after what they are answering; new ones are for one answer.
    pub(super) notice: CancellationToken,
    /// Nothing is accepted any more.
    pub(super) stop: CancellationToken,
    /// What still runs is dropped.
    pub(super) abort: CancellationToken,
}

impl Phases {
    /// What asks a connection that begins now to end.
    pub(super) fn farewell(&self) -> &CancellationToken {
        if self.notice.is_cancelled() { &self.stop } else { &self.notice }
    }

    pub(super) fn end(&self) {
        self.notice.cancel();
        self.stop.cancel();
        self.abort.cancel();
    }
}

impl RunningListener {
    /// Is done once nothing is accepted any more and those who were let in have made their requests: when all of them
    /// have gone, and a second after the last could come at the latest.
    pub fn heard_out(&self) -> impl Future<Output = ()> + use<> {
        let (stop, tracker) = (self.phases().stop.clone(), self.tracker().clone());
        async move {
            stop.cancelled().await;
            // Whoever is still there then waits for an answer.
            let _ = tokio::time::timeout(HEARD_OUT_MAX, tracker.wait()).await;
        }
    }

    /// Ends the listener in the phases of `plan`, and returns once every connection has ended.
    ///
    /// HTTP/1 peers are told by `Connection: close`, HTTP/2 peers by GOAWAY. Dropping the future ends everything at
    /// once. Readiness is the caller's to take back before.
    pub async fn drain(self, plan: DrainPlan) -> Drained {
        let phases = self.phases();
        phases.notice.cancel();
        tokio::time::sleep(plan.notice).await;
        phases.stop.cancel();
        let tracker = self.tracker();
        tracker.close();
        if tokio::time::timeout(plan.max, tracker.wait()).await.is_ok() {
            return Drained { aborted: 0 };
        }
        let aborted = self.connections();
        phases.abort.cancel();
        if tokio::time::timeout(ABORT_GRACE, tracker.wait()).await.is_err() {
            tracing::warn!(tasks = tracker.len(), "tasks of aborted connections are still running");
        }
        Drained { aborted }
    }
}
