//! Implements the functions on Windows. A function that the system lacks has no effect, or fails with its reason.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::path::Path;
use std::process::ExitStatus;
use std::task::{Context, Poll};

use tokio::signal::windows::{CtrlBreak, CtrlC, ctrl_break, ctrl_c};

use super::{DiskSpace, OwnersAlone};

const NO_DISK_STORE: &str =
    "there is no store on disk on this system; keep tasks in memory: `kind = \"memory\"` in [store]";

#[derive(Debug)]
pub(crate) enum SignalStream {
    CtrlC(CtrlC),
    CtrlBreak(CtrlBreak),
    Never,
}

impl SignalStream {
    pub(crate) async fn recv(&mut self) -> Option<()> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    pub(crate) fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<()>> {
        match self {
            Self::CtrlC(signals) => signals.poll_recv(context),
            Self::CtrlBreak(signals) => signals.poll_recv(context),
            Self::Never => Poll::Pending,
        }
    }
}

pub(crate) fn interrupts() -> io::Result<SignalStream> {
    ctrl_c().map(SignalStream::CtrlC)
}

pub(crate) fn terminations() -> io::Result<SignalStream> {
    ctrl_break().map(SignalStream::CtrlBreak)
}

pub(crate) const fn outlive_file_size_limit() -> io::Result<()> {
    Ok(())
}

pub(crate) const fn hangups() -> io::Result<SignalStream> {
    Ok(SignalStream::Never)
}

pub(crate) const fn is_hangup_ignored() -> bool {
    true
}

impl OwnersAlone for OpenOptions {
    fn owners_alone(&mut self) -> &mut Self {
        self
    }
}

impl OwnersAlone for DirBuilder {
    fn owners_alone(&mut self) -> &mut Self {
        self
    }
}

pub(crate) fn open_without_waiting(path: &Path) -> io::Result<File> {
    File::open(path)
}

pub(crate) const fn wait_for_content(_: &File) -> io::Result<()> {
    Ok(())
}

pub(crate) const fn mode(_: &Metadata) -> u32 {
    0o600
}

pub(crate) const fn owner(_: &Metadata) -> u32 {
    1
}

pub(crate) const fn user() -> u32 {
    1
}

pub(crate) fn is_runnable(file: &Metadata) -> bool {
    file.is_file()
}

pub(crate) const fn signal_of(_: ExitStatus) -> Option<i32> {
    None
}

pub(crate) fn append_without_waiting(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

pub(crate) const fn is_removed(_: &File) -> bool {
    false
}

pub(crate) const fn identity(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

pub(crate) const fn is_socket(_: &Path) -> bool {
    false
}

pub(crate) fn send_datagram(_: &Path, _: &[u8]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) const fn take_owner(_: &File, _: &Metadata) -> io::Result<()> {
    Ok(())
}

/// The first question about a store's folder.
pub(crate) fn check_access(_: &Path) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, NO_DISK_STORE))
}

pub(crate) fn check_reading(folder: &Path) -> io::Result<()> {
    check_access(folder)
}

pub(crate) const fn check_writing(_: &Path) -> io::Result<()> {
    Ok(())
}

pub(crate) const fn space(_: &Path) -> io::Result<DiskSpace> {
    Ok(DiskSpace { free: u64::MAX, all: u64::MAX })
}

pub(crate) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    file.set_len(bytes)
}

pub(crate) const fn is_no_lock(_: &io::Error) -> bool {
    false
}

pub(crate) const fn raise_descriptors(_: usize) -> usize {
    usize::MAX
}

pub(crate) fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

pub(crate) const fn is_stdout_closed() -> bool {
    false
}
