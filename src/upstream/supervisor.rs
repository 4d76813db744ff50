//! Supervises a program that is an upstream, in its own process between gateway and program. Starts the program in its
//! own process group with limits, passes standard streams through, and stops the group once its input has no writer: no
//! program outlives the gateway. This process adopts the orphans of the program: it reaps them as they end, and kills
//! them with the program. It has no runtime and no log.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions};

use crate::system::ProgramLimits;

/// The supervisor's name in process lists; its file has no name there.
const SHOWN_NAME: &str = "taskgate";
#[cfg(target_os = "linux")]
const THREAD_NAME: &std::ffi::CStr = c"taskgate";
const NAME: &str = "supervise";
/// How long a program may take to end once its standard input is closed, and after SIGTERM.
const CLOSED_WAIT: Duration = Duration::from_secs(2);
const TERMINATED_WAIT: Duration = Duration::from_secs(3);
pub(crate) const STOP_MAX: Duration = CLOSED_WAIT.saturating_add(TERMINATED_WAIT);

/// The pause before orphans are searched again after a failure.
const UNKNOWN_PAUSE: Duration = Duration::from_secs(1);
/// How often orphans are killed, since each may leave further ones, and the pause between.
#[cfg(target_os = "linux")]
const ORPHANS_ROUNDS: usize = 50;
#[cfg(target_os = "linux")]
const ORPHANS_PAUSE: Duration = Duration::from_millis(10);

/// The exit codes of shells for a program that cannot be started.
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;
/// Shells add this to the number of a signal.
const SIGNALLED: u8 = 128;

/// The command that starts a program under a supervisor. Signals of the gateway's terminal are for the gateway.
pub(crate) fn command(limits: &ProgramLimits, program: &str, with: &[String]) -> io::Result<Command> {
    let mut command = Command::new(supervising_program()?);
    command.arg0(SHOWN_NAME).args(arguments(limits)).arg(program).args(with).process_group(0);
    Ok(command)
}

/// The program that can supervise: this one, even if its file was replaced since.
fn supervising_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

/// Its arguments, before the program and the program's arguments.
fn arguments(limits: &ProgramLimits) -> [String; 3] {
    let text = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
    [NAME.to_owned(), text(limits.descriptors_max), text(limits.memory_bytes_max)]
}

/// Supervises a program to its end, if `arguments` (the program's name first) ask for it. Blocks.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()? != NAME {
        return None;
    }
    let mut limit = || arguments.next()?.to_str()?.parse().ok();
    let limits = ProgramLimits { descriptors_max: limit(), memory_bytes_max: limit() };
    let program = arguments.next()?;
    let mut command = Command::new(&program);
    command.args(arguments).process_group(0);
    Some(match confine(&limits).and_then(|()| start(&mut command, &limits)) {
        Ok(child) => {
            let status = supervise(child, watch);
            // All children of this process are the program's: it starts no others.
            end_orphans();
            status.map_or_else(|_| ExitCode::from(NOT_STARTED), pass_on)
        }
        Err(error) => {
            // A failure here has no reader left.
            let _ = writeln!(io::stderr(), "{} cannot be started: {error}", program.display());
            ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_STARTED })
        }
    })
}

fn confine(limits: &ProgramLimits) -> io::Result<()> {
    rustix::process::setrlimit(Resource::Core, exactly(0))?;
    if let Some(max) = limits.descriptors_max {
        rustix::process::setrlimit(Resource::Nofile, exactly(max))?;
    }
    #[cfg(target_os = "linux")]
    {
        rustix::thread::set_no_new_privs(true)?;
        rustix::thread::set_name(THREAD_NAME)?;
        // Any process id enables it: it is a switch.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    Ok(())
}

/// Limits its memory from outside, as this process's own allocator reserves more than many limits.
#[cfg_attr(not(target_os = "linux"), expect(unused_variables, reason = "memory is limited on Linux alone"))]
fn start(command: &mut Command, limits: &ProgramLimits) -> io::Result<Child> {
    #[cfg_attr(not(target_os = "linux"), expect(unused_mut, reason = "memory is limited on Linux alone"))]
    let mut child = command.spawn()?;
    #[cfg(target_os = "linux")]
    if let Some(max) = limits.memory_bytes_max {
        // Written memory counts, not reserved memory: some runtimes reserve far more than they use.
        let limited = rustix::process::prlimit(Some(Pid::from_child(&child)), Resource::Data, exactly(max));
        // A program that has ended meanwhile needs no limit.
        if let Err(error) = limited
            && error != Errno::SRCH
        {
            child.kill()?;
            child.wait()?;
            return Err(error.into());
        }
    }
    Ok(child)
}

const fn exactly(max: u64) -> Rlimit {
    Rlimit { current: Some(max), maximum: Some(max) }
}

enum SupervisorEvent {
    /// The program has ended; it is not reaped yet, so its group's number is still its own.
    Ended,
    Closed,
}

/// Supervises a program to its end. If it cannot be watched, it is killed at once.
fn supervise(
    mut child: Child,
    watch: impl FnOnce(Pid) -> io::Result<Receiver<SupervisorEvent>>,
) -> io::Result<ExitStatus> {
    let group = Pid::from_child(&child);
    let watched = watch(group).map(|waiting| stop_when_closed(&waiting, group));
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    let status = child.wait();
    watched.and(status)
}

fn watch(program: Pid) -> io::Result<Receiver<SupervisorEvent>> {
    // The end of the program's output must be visible while this process lives.
    let nothing = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    let (events, waiting) = mpsc::sync_channel(2);
    let closed = events.clone();
    std::thread::Builder::new().name("input".to_owned()).spawn(move || when_closed(&closed))?;
    std::thread::Builder::new().name("program".to_owned()).spawn(move || when_ended(program, &events))?;
    Ok(waiting)
}

fn stop_when_closed(waiting: &Receiver<SupervisorEvent>, group: Pid) {
    match waiting.recv() {
        Ok(SupervisorEvent::Ended) | Err(_) => return,
        Ok(SupervisorEvent::Closed) => (),
    }
    for (wait, signal) in [(CLOSED_WAIT, Signal::TERM), (TERMINATED_WAIT, Signal::KILL)] {
        if waiting.recv_timeout(wait).is_ok() {
            return;
        }
        let _ = rustix::process::kill_process_group(group, signal);
    }
    let _ = waiting.recv();
}

/// Waits for the program's end, and reaps orphans meanwhile.
fn when_ended(program: Pid, events: &SyncSender<SupervisorEvent>) {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match rustix::process::waitid(WaitId::All, ended) {
            Err(Errno::INTR) => continue,
            Err(_) => break,
            Ok(_) => (),
        }
        match rustix::process::waitid(WaitId::Pid(program), ended | WaitIdOptions::NOHANG) {
            Ok(None) | Err(Errno::INTR) => reap_orphans(program),
            Ok(Some(_)) | Err(_) => break,
        }
    }
    let _ = events.send(SupervisorEvent::Ended);
}

fn reap_orphans(program: Pid) {
    let mut reaped = 0;
    for orphan in children().into_iter().filter(|child| *child != program) {
        let looked = rustix::process::waitid(WaitId::Pid(orphan), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        reaped += usize::from(matches!(looked, Ok(Some(_))));
    }
    if reaped == 0 {
        // The orphans are unknown: they stay until the program ends, and are searched again from time to time.
        std::thread::sleep(UNKNOWN_PAUSE);
    }
}

/// Kills orphans outside the program's group, and reaps them. Their own orphans become children in turn.
#[cfg(target_os = "linux")]
fn end_orphans() {
    for _ in 0..ORPHANS_ROUNDS {
        loop {
            match rustix::process::waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => (),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        for orphan in children() {
            let _ = rustix::process::kill_process(orphan, Signal::KILL);
        }
        std::thread::sleep(ORPHANS_PAUSE);
    }
}

#[cfg(not(target_os = "linux"))]
const fn end_orphans() {}

#[cfg(not(target_os = "linux"))]
const fn children() -> Vec<Pid> {
    Vec::new()
}

#[cfg(target_os = "linux")]
fn children() -> Vec<Pid> {
    use std::fs::{read_dir, read_to_string};
    let threads = read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| read_to_string(thread.path().join("children")).ok());
    let pids = |list: String| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>();
    lists.flat_map(pids).filter_map(Pid::from_raw).collect()
}

/// Waits without reading: the input is the program's.
fn when_closed(events: &SyncSender<SupervisorEvent>) {
    let stdin = io::stdin();
    loop {
        let mut ends = [PollFd::new(&stdin, PollFlags::empty())];
        match rustix::event::poll(&mut ends, None) {
            Err(Errno::INTR) => (),
            Ok(_) if ends[0].revents().is_empty() => (),
            Ok(_) | Err(_) => break,
        }
    }
    let _ = events.send(SupervisorEvent::Closed);
}

fn pass_on(status: ExitStatus) -> ExitCode {
    if let Some(code) = status.code() {
        return ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX));
    }
    let number = status.signal().unwrap_or_default();
    if let Some(signal) = Signal::from_named_raw(number) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
    }
    ExitCode::from(SIGNALLED.saturating_add(u8::try_from(number).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_be_watched_does_not_live_on() {
        let child = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        let program = Pid::from_child(&child);
        let began = tokio::time::Instant::now();
        assert!(supervise(child, |_| Err(io::Error::other("no thread"))).is_err());
        assert!(began.elapsed() < Duration::from_secs(50), "it was not waited for");
        assert_eq!(rustix::process::test_kill_process(program), Err(Errno::SRCH));
    }
}
