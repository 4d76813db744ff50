//! Tracks a resumed or resent call that the upstream has not confirmed yet.

use std::time::Duration;

use tokio::time::Instant;

/// A call that is up for this long did not cause the earlier crashes: it is longer than the window in which a stream is resumed
/// (U24).
const STEADY_AFTER: Duration = Duration::from_secs(35);

#[derive(Debug)]
pub(super) struct UnconfirmedCall {
    what: ResumeMethod,
    since: Instant,
    /// Whether the row says that this process resumed the call.
    is_counted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResumeMethod {
    Up,
    Again,
}

impl UnconfirmedCall {
    pub(super) fn new(what: ResumeMethod, is_counted: bool) -> Self {
        Self { what, since: Instant::now(), is_counted }
    }

    pub(super) fn is_resumed(&self) -> bool {
        self.what == ResumeMethod::Up
    }

    pub(super) const fn is_counted(&self) -> bool {
        self.is_counted
    }

    pub(super) fn is_steady(&self) -> bool {
        self.since.elapsed() >= STEADY_AFTER
    }
}
