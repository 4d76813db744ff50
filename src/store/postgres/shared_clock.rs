//! Tells the one time of the tasks that several gateways share.

use parking_lot::Mutex;

use crate::boot_clock::since_boot;
use crate::replica::{BootTime, TaskClock};
use crate::task::{Clock, Timestamp};

/// Now, by this machine's own clock.
pub(super) fn boot_time() -> BootTime {
    BootTime(since_boot())
}

/// A [`TaskClock`] that goes by this machine's own clock, and is steered by what is seen of the other replicas.
#[derive(Debug)]
pub(super) struct SharedClock(Mutex<TaskClock>);

impl SharedClock {
    pub(super) fn beginning_at(time: Timestamp) -> Self {
        Self(Mutex::new(TaskClock::new(time, boot_time())))
    }

    /// Draws nearer to the highest time that others showed at an instant.
    pub(super) fn steer(&self, highest: Timestamp, at: BootTime) {
        self.0.lock().steer(highest, at);
    }
}

impl Clock for SharedClock {
    fn now(&self) -> Timestamp {
        self.0.lock().now(boot_time())
    }
}
