//! Implements the functions on Linux and macOS.

use std::ffi::CStr;
use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Access, FallocateFlags, access, fallocate, statvfs};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
pub(crate) use tokio::signal::unix::Signal as SignalStream;
use tokio::signal::unix::{SignalKind, signal};

use super::{DiskSpace, OwnersAlone};

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
const MODE_BITS: u32 = 0o7777;
const MAY_RUN: u32 = 0o111;

pub(crate) fn interrupts() -> io::Result<SignalStream> {
    signal(SignalKind::interrupt())
}

pub(crate) fn terminations() -> io::Result<SignalStream> {
    signal(SignalKind::terminate())
}

pub(crate) fn hangups() -> io::Result<SignalStream> {
    signal(SignalKind::hangup())
}

/// From now on a write beyond `RLIMIT_FSIZE` fails, and does not end the process. Started programs have the default.
pub(crate) fn outlive_file_size_limit() -> io::Result<()> {
    // The handler stays when the stream is dropped.
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
}

/// Whether this process was started with SIGHUP ignored, as by nohup. Called before [`hangups`].
pub(crate) fn is_hangup_ignored() -> bool {
    match std::fs::read_to_string("/proc/self/status") {
        Ok(status) => status.lines().find_map(ignored_signals).is_some_and(|ignored| ignored & 1 == 1),
        // Not known. nohup takes the output from the terminal.
        Err(_) => !io::stdout().is_terminal(),
    }
}

/// The signals of the line `SigIgn`, SIGHUP in the lowest bit.
fn ignored_signals(line: &str) -> Option<u64> {
    u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok()
}

impl OwnersAlone for OpenOptions {
    fn owners_alone(&mut self) -> &mut Self {
        self.mode(FILE_MODE)
    }
}

impl OwnersAlone for DirBuilder {
    fn owners_alone(&mut self) -> &mut Self {
        self.mode(FOLDER_MODE)
    }
}

/// Opens a file to read it. Opening a pipe would wait for its writer.
pub(crate) fn open_without_waiting(path: &Path) -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(nonblocking).open(path)
}

/// Opens a file to append to it, and creates it if it is missing. Opening a pipe would wait for its reader.
pub(crate) fn append_without_waiting(path: &Path) -> io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().append(true).create(true).owners_alone().custom_flags(nonblocking).open(path)
}

/// Whether an open file has been deleted.
pub(crate) fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|found| found.nlink() == 0)
}

/// Makes reads of a pipe wait for its writer.
pub(crate) fn wait_for_content(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fcntl_setfl(file, rustix::fs::OFlags::empty())?)
}

/// The rights to a file, as bits for owner, group and others.
pub(crate) fn mode(file: &Metadata) -> u32 {
    file.mode() & MODE_BITS
}

pub(crate) fn owner(file: &Metadata) -> u32 {
    file.uid()
}

pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn is_runnable(file: &Metadata) -> bool {
    file.is_file() && file.mode() & MAY_RUN != 0
}

pub(crate) fn signal_of(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// The device and inode: unique for each file.
pub(crate) fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

pub(crate) fn is_socket(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.file_type().is_socket())
}

/// Sends a datagram to another process. Fails if that process has no room for it now.
pub(crate) fn send_datagram(socket: &Path, datagram: &[u8]) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to(datagram, socket).map(drop)
}

pub(crate) fn take_owner(file: &File, like: &Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    let is_alike = (own.uid(), own.gid()) == (like.uid(), like.gid());
    if is_alike { Ok(()) } else { fchown(file, Some(like.uid()), Some(like.gid())) }
}

/// Whether this process may list a folder and create files in it.
pub(crate) fn check_access(folder: &Path) -> io::Result<()> {
    Ok(access(folder, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Whether this process may list a folder and read files in it.
pub(crate) fn check_reading(folder: &Path) -> io::Result<()> {
    Ok(access(folder, Access::READ_OK | Access::EXEC_OK)?)
}

/// Whether this process may write to a file or folder, or create a missing one in the nearest folder that exists.
pub(crate) fn check_writing(path: &Path) -> io::Result<()> {
    let mut folders = path.ancestors().map(|at| if at.as_os_str().is_empty() { Path::new(".") } else { at });
    let nearest = folders.find(|at| at.exists()).unwrap_or(path);
    let in_folder = if nearest.is_dir() { Access::EXEC_OK } else { Access::empty() };
    Ok(access(nearest, Access::WRITE_OK | in_folder)?)
}

pub(crate) fn space(folder: &Path) -> io::Result<DiskSpace> {
    let found = statvfs(folder)?;
    Ok(DiskSpace { free: found.f_bavail * found.f_frsize, all: found.f_blocks * found.f_frsize })
}

pub(crate) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::empty(), 0, bytes)?)
}

/// Whether an error says that a folder cannot be locked there, as on network file systems.
pub(crate) fn is_no_lock(error: &io::Error) -> bool {
    let none = [Errno::BADF, Errno::OPNOTSUPP, Errno::INVAL, Errno::NOLCK];
    none.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Raises the limit on open files towards `wanted`; returns the resulting limit.
pub(crate) fn raise_descriptors(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let now = |limit: &Rlimit| limit.current.map_or(usize::MAX, |now| usize::try_from(now).unwrap_or(usize::MAX));
    if now(&limit) >= wanted {
        return now(&limit);
    }
    let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
    let raised = Rlimit { current: Some(limit.maximum.map_or(wanted, |most| most.min(wanted))), ..limit };
    now(if setrlimit(Resource::Nofile, raised).is_ok() { &raised } else { &limit })
}

pub(crate) fn host_name() -> String {
    let names = rustix::system::uname();
    CStr::to_string_lossy(names.nodename()).into_owned()
}

/// Whether the reader of standard output is gone.
pub(crate) fn is_stdout_closed() -> bool {
    let output = io::stdout();
    let mut ends = [PollFd::new(&output, PollFlags::empty())];
    rustix::event::poll(&mut ends, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
