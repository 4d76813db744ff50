//! Defines the phases in which a listener ends, so that no client is cut off that can still be answered (F67).

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// When each phase of a drain ends. The caller decides, as it tells clients why their calls end before they are cut off.
#[derive(Clone, Debug, Default)]
pub struct DrainPlan {
    /// New connections are still taken this long, each for one answer, until balancers have noticed.
    pub notice: Duration,
    /// Cancelled once nothing is waited for that somebody might come to ask about.
    pub over: CancellationToken,
    /// Cancelled once what is in progress is waited for no longer.
    pub late: CancellationToken,
    /// Whether another process goes on with the socket: then whoever comes after the notice is left to it.
    pub is_socket_kept: bool,
}

impl DrainPlan {
    /// Waits for nothing.
    #[must_use]
    pub fn at_once() -> Self {
        let plan = Self::default();
        plan.over.cancel();
        plan.late.cancel();
        plan
    }
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
    /// The notice is over: who was let in until then is served as ever.
    pub(super) closing: CancellationToken,
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
        self.closing.cancel();
        self.stop.cancel();
        self.abort.cancel();
    }
}
