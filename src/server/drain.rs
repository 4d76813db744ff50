//! Defines the phases in which a listener ends, so that no client is cut off that can still be answered (F67).

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// How long each phase of a drain lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainPlan {
    /// New connections are still taken this long, each for one answer, until balancers have noticed.
    pub notice: Duration,
    /// From the end of the notice: how long what is in progress is waited for.
    pub max: Duration,
    /// Whether another process goes on with the socket: then whoever comes after the notice is left to it.
    pub is_socket_kept: bool,
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
