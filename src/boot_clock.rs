//! Reads the machine's boot clock, which cannot be set.

use std::time::Duration;

/// The time since boot, suspension included (F59).
#[cfg(unix)]
pub fn since_boot() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    // On other systems the monotonic clock includes suspension, or no clock does.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default()
}

/// The time since the first call: Windows has no such clock in the standard library.
#[cfg(not(unix))]
pub fn since_boot() -> Duration {
    static BEGAN: std::sync::OnceLock<tokio::time::Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(tokio::time::Instant::now).elapsed()
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
