//! Defines an instant by the machine's own clock.

use std::time::Duration;

/// An instant: what has passed since the machine was started, sleep included (`CLOCK_BOOTTIME`). Nobody sets that clock, and it
/// means nothing on another machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub Duration);

impl BootTime {
    /// What passed since `earlier`; zero if that lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The instant `span` later; saturates.
    #[must_use]
    pub const fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}
