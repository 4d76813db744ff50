//! Reads the machine's boot clock, which cannot be set.

use std::time::Duration;

use crate::system;

/// The time since boot, suspension included (F59).
#[must_use]
pub fn since_boot() -> Duration {
    system::since_boot()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// F59: the system's uptime, which includes suspension.
    #[cfg(target_os = "linux")]
    #[test]
    fn f59_the_time_of_a_sleep_counts() {
        // In hundredths of a second.
        let resolution = Duration::from_millis(10);
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").unwrap();
            Duration::from_secs_f64(text.split(' ').next().unwrap().parse().unwrap())
        };
        let (before, now) = (uptime(), since_boot());
        assert!(before <= now + resolution && now <= uptime() + resolution);
    }
}
