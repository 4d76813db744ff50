//! Hides the differences of operating systems: signals, rights to files, limits, the free space of a disk, the boot clock.
//!
//! `unix` and `other` have the same functions. Outside Unix there is no disk store and no server program; files inherit
//! the rights of their folder.

use std::fs::File;
use std::io;
use std::path::Path;

#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

use std::time::Duration;

#[cfg(not(unix))]
pub(crate) use other::*;
#[cfg(unix)]
pub(crate) use unix::*;

/// Makes a file or folder that is about to be created its owner's alone.
pub(crate) trait OwnersAlone {
    fn owners_alone(&mut self) -> &mut Self;
}

/// The space of a disk that ordinary users have, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskSpace {
    pub(crate) free: u64,
    pub(crate) all: u64,
}

/// Opens a regular file to read it; fails for others, as a pipe may have no writer, and a device no end.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let file = open_without_waiting(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// Limits on a program; without one, the gateway's limit applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramLimits {
    pub(crate) descriptors_max: Option<u64>,
    pub(crate) memory_bytes_max: Option<u64>,
}

/// The time since boot, suspension included (F59).
#[cfg(unix)]
pub(crate) fn since_boot() -> Duration {
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
pub(crate) fn since_boot() -> Duration {
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
