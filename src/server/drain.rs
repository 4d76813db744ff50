//! Defines the phases of a listener's drain, which answers every client that it can (F67).

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// When each phase of a drain ends. The caller decides, since it informs clients before they are cut off.
#[derive(Clone, Debug, Default)]
pub struct DrainPlan {
    /// How long new connections are still accepted, each for one response, until load balancers have noticed.
    pub notice: Duration,
    /// Cancelled once no call is awaited that a client might poll.
    pub over: CancellationToken,
    /// Cancelled once the wait for requests in progress ends.
    pub late: CancellationToken,
    /// Whether another process continues with the socket, and accepts the connections after the notice.
    pub is_socket_kept: bool,
}

impl DrainPlan {
    #[must_use]
    pub fn at_once() -> Self {
        let plan = Self::default();
        plan.over.cancel();
        plan.late.cancel();
        plan
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    pub aborted: usize,
}

/// The drain's phases as connections see them. Each token is cancelled once.
#[derive(Clone, Debug, Default)]
pub(super) struct Phases {
    /// Connections end after their responses in progress; new ones get one response.
    pub(super) notice: CancellationToken,
    /// The notice is over: connections accepted until then are served as usual.
    pub(super) closing: CancellationToken,
    /// No connection is accepted any more.
    pub(super) stop: CancellationToken,
    /// Connections still running are dropped.
    pub(super) abort: CancellationToken,
}

impl Phases {
    /// The token that ends a connection that begins now.
    pub(super) fn ending(&self) -> &CancellationToken {
        if self.notice.is_cancelled() { &self.stop } else { &self.notice }
    }

    pub(super) fn end(&self) {
        self.notice.cancel();
        self.closing.cancel();
        self.stop.cancel();
        self.abort.cancel();
    }
}
