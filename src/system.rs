//! Hides the differences of operating systems: signals, rights to files, limits, and the free space of a disk.
//!
//! Both implementations have the same functions. Elsewhere than on Unix there is no store on disk and no server that is a
//! program, and rights to files are the folder's.

#[cfg(not(unix))]
mod other;
#[cfg(unix)]
mod unix;

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

/// Limits on a program; an absent one is the gateway's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramLimits {
    pub(crate) descriptors_max: Option<u64>,
    pub(crate) memory_bytes_max: Option<u64>,
}
