//! The clock of the tasks that several replicas share.

use parking_lot::Mutex;

use crate::boot_clock::since_boot;
use crate::replica::{BootTime, TaskClock};
use crate::task::{Clock, Timestamp};

pub(super) fn boot_time() -> BootTime {
    BootTime(since_boot())
}

/// Steered by the other replicas' times.
#[derive(Debug)]
pub(super) struct SharedClock(Mutex<TaskClock>);

impl SharedClock {
    pub(super) fn beginning_at(time: Timestamp) -> Self {
        Self(Mutex::new(TaskClock::new(time, boot_time())))
    }

    pub(super) fn steer(&self, highest: Timestamp, at: BootTime) {
        self.0.lock().steer(highest, at);
    }
}

impl Clock for SharedClock {
    fn now(&self) -> Timestamp {
        self.0.lock().now(boot_time())
    }
}
