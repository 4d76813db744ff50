//! Defines an instant on the machine's own clock.

use std::time::Duration;

/// The time since the machine's boot, including sleep (`CLOCK_BOOTTIME`). This clock is never set, and its values are meaningless
/// on other machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(pub Duration);

impl BootTime {
    /// Zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Saturates.
    #[must_use]
    pub const fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}
