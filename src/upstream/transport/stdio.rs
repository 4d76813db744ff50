//! Starts servers that are programs, and exchanges messages over standard input and output. The program runs under a
//! [`supervisor`], which stops the program's whole process group once its own standard input ends, as it does when the
//! gateway ends for any cause. So stopping always means: close the input and wait.

mod program_output;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::{SetOnce, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::adapter::dedicated_process::DedicatedProcessRules;
use super::adapter::{ConnectionEnds, MessageReceiver, MessageRoom, MessageSender, MessageTransport, WAITING_MAX};
use crate::dev_output::{self, DevSource};
use crate::died_programs;
use crate::secret_file::{self, SecretFileError};
use crate::system::{self, ProgramLimits};
use crate::task::{Executed, GatewayFault, ProcessExit, Reason};
use crate::upstream::limits::CallPermitSettings;
use crate::upstream::outgoing::{HandedOver, OutgoingRequest};
use crate::upstream::upstream_health::{UpstreamFailure, UpstreamHealth};
use crate::upstream::{ForwardedHeaders, TaskScope, supervisor};
use crate::waits::unless_cancelled;
use crate::wire::ProtocolVersion;
use crate::wire::framing::LineDecoder;
pub use program_output::{LastLines, StderrUse};
use program_output::{ProcessEnd, ProgramOutputLog};

pub(crate) const INHERITED: [&str; 3] = ["PATH", "HOME", "LANG"];
const SECRET_BYTES_MAX: usize = 64 * 1024;
/// Messages that the program has yet to read.
const OUTGOING_MAX: usize = 64;
const READ_BYTES: usize = 64 * 1024;
/// How long the exit status may take after the end of the program's input or output: the supervisor first kills
/// orphans, and may lack a processor. Callers wait so long only for a program that closes its output and keeps running.
const STATUS_MAX: Duration = Duration::from_secs(3);
/// How long the output may continue once the status is known: orphans may hold it open.
const OUTPUT_MAX: Duration = Duration::from_millis(500);
const STOP_MAX: Duration = supervisor::STOP_MAX.saturating_add(Duration::from_secs(2));
const PATH: &str = "PATH";

#[derive(Clone, PartialEq, Eq)]
pub struct StdioUpstreamSettings {
    pub name: Arc<str>,
    /// Looked up in `PATH` unless it is a path.
    pub program: String,
    pub arguments: Vec<String>,
    /// Besides the gateway's own `PATH`, `HOME` and `LANG`. May hold secrets.
    pub env: Vec<(String, String)>,
    /// Variables from files, read at each start of a process.
    pub env_files: Vec<(String, PathBuf)>,
    /// The gateway's own by default.
    pub folder: Option<PathBuf>,
    pub processes_max: u32,
    /// Of each process; the gateway's own by default.
    pub descriptors_max: Option<u32>,
    pub memory_bytes_max: Option<usize>,
    /// Longest line, hence the largest message.
    pub line_bytes_max: usize,
    /// `None` negotiates.
    pub protocol: Option<ProtocolVersion>,
    pub dedicated: DedicatedProcessRules,
    pub stderr_use: StderrUse,
    /// Why the configuration cannot start the program.
    pub unusable: Option<Arc<str>>,
}

impl StdioUpstreamSettings {
    pub fn process_permits(&self) -> CallPermitSettings {
        let max = usize::try_from(self.processes_max).unwrap_or(usize::MAX);
        let in_flight_max = NonZeroUsize::new(max).unwrap_or(NonZeroUsize::MIN);
        CallPermitSettings { in_flight_max, queue_max: WAITING_MAX }
    }
}

// The names of variables alone; no values and no arguments.
debug_members!(StdioUpstreamSettings, |settings|
    name: settings.name,
    program: settings.program,
    env: settings.env.iter().map(|(name, _)| name).collect::<Vec<_>>()
);

#[derive(Debug)]
pub(crate) struct StdioTransport {
    pub(crate) settings: StdioUpstreamSettings,
    pub(crate) health: Arc<UpstreamHealth>,
    pub(crate) scope: TaskScope,
    /// Keeps the processes' standard error.
    pub(crate) output: Option<Arc<LastLines>>,
}

impl StdioTransport {
    /// Reads the files without blocking the runtime.
    async fn secrets(&self) -> std::io::Result<Vec<(String, String)>> {
        let files = self.settings.env_files.clone();
        if files.is_empty() {
            return Ok(Vec::new());
        }
        let one = |(name, file): (String, PathBuf)| match read_secret(&file) {
            Ok(value) => Ok((name, value)),
            Err(error) => Err(std::io::Error::other(format!("{}: {error}", file.display()))),
        };
        let read = move || files.into_iter().map(one).collect();
        tokio::task::spawn_blocking(read).await.map_err(std::io::Error::other)?
    }

    fn command(&self, secrets: Vec<(String, String)>) -> std::io::Result<Command> {
        let settings = &self.settings;
        let limits = ProgramLimits {
            descriptors_max: settings.descriptors_max.map(u64::from),
            memory_bytes_max: settings.memory_bytes_max.map(|bytes| bytes as u64),
        };
        let mut command = Command::from(supervisor::command(&limits, &settings.program, &settings.arguments)?);
        command.env_clear();
        command.envs(INHERITED.iter().filter_map(|name| Some((name, env::var_os(name)?))));
        command.envs(settings.env.iter().map(|(name, value)| (name, value)));
        command.envs(secrets);
        if let Some(folder) = &settings.folder {
            command.current_dir(folder);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }
}

/// The value without a final line break. Fails if others may read the file, or it is no text, or over 64 KiB (B168).
pub fn read_secret(file: &Path) -> Result<String, VariableFileError> {
    let held = secret_file::read(file, "value", SECRET_BYTES_MAX)?;
    let text = String::from_utf8(held).ok().filter(|text| !text.contains('\0')).ok_or(VariableFileError::Content)?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// Never prints the file's content.
#[derive(Debug, thiserror::Error)]
pub enum VariableFileError {
    #[error(transparent)]
    File(#[from] SecretFileError),
    #[error("is not fit for a variable; write text without NUL characters")]
    Content,
}

#[async_trait]
impl MessageTransport for StdioTransport {
    async fn open(&self, _: &ForwardedHeaders) -> Result<ConnectionEnds, GatewayFault> {
        let name = &self.settings.name;
        let failed = |error: std::io::Error| {
            self.health
                .failed(UpstreamFailure::new(Reason::UpstreamUnreachable, format!("it cannot be started: {error}")));
            GatewayFault::new(Reason::UpstreamUnreachable, Executed::No)
        };
        self.settings.find_program().map_err(std::io::Error::other).map_err(failed)?;
        let secrets = self.secrets().await.map_err(failed)?;
        let mut child = self.command(secrets).and_then(|mut command| command.spawn()).map_err(failed)?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(GatewayFault::new(Reason::Internal, Executed::No));
        };
        tracing::debug!(upstream = %name, pid = child.id(), "started a program");
        dev_output::show(DevSource::Program, "started");
        let (outgoing, queue) = mpsc::channel(OUTGOING_MAX);
        let (closing, silent) = (CancellationToken::new(), CancellationToken::new());
        let (number, stderr_use) = (died_programs::number(), self.settings.stderr_use);
        let process = Arc::new(ServerProcess {
            number,
            shows_stderr: stderr_use == StderrUse::OnDeath || dev_output::is_on(),
            outgoing,
            closing,
            end: SetOnce::new(),
            given_up: OnceLock::new(),
            silent,
            stderr_ended: CancellationToken::new(),
        });
        let output_log = Arc::new(ProgramOutputLog::new(Arc::clone(name), number, self.output.clone(), stderr_use));
        let tracker = &self.scope.tracker;
        tracker.spawn(write(stdin, queue, Arc::clone(&process)));
        tracker.spawn(listen(stderr, Arc::clone(&output_log), Arc::clone(&process)));
        tracker.spawn(reap(child, Arc::clone(&process), Arc::clone(&output_log)));
        let receiver = StdoutReceiver {
            stdout,
            decoder: LineDecoder::new(self.settings.line_bytes_max),
            ready: Vec::new().into_iter(),
            buffer: BytesMut::with_capacity(READ_BYTES),
            process: Arc::clone(&process),
            output_log,
        };
        Ok(ConnectionEnds { sender: process, receiver: Box::new(receiver) })
    }
}

#[derive(Debug)]
struct ServerProcess {
    /// Distinguishes it from the upstream's other processes.
    number: u64,
    shows_stderr: bool,
    outgoing: mpsc::Sender<QueuedMessage>,
    /// Closes the standard input, and with that all the rest.
    closing: CancellationToken,
    /// Set once the process is reaped.
    end: SetOnce<ProcessEnd>,
    /// When to stop waiting for the status; set at the end of input or output.
    given_up: OnceLock<Instant>,
    /// Ends the reading: later output is not the program's.
    silent: CancellationToken,
    stderr_ended: CancellationToken,
}

#[derive(Debug)]
struct QueuedMessage {
    message: Bytes,
    handed_over: HandedOver,
    written: oneshot::Sender<()>,
}

impl ServerProcess {
    /// The fault after the end of input or output, with the exit status once known. Bounded in time; cancel safe.
    async fn ended(&self) -> GatewayFault {
        let until = *self.given_up.get_or_init(|| Instant::now() + STATUS_MAX);
        let end = tokio::time::timeout_at(until, self.end.wait()).await;
        let exit = end.ok().and_then(|end| end.exit);
        let process = self.shows_stderr.then_some(self.number);
        GatewayFault { exit, process, ..GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown) }
    }
}

#[async_trait]
impl MessageSender for ServerProcess {
    async fn send(
        &self,
        outgoing: &OutgoingRequest,
        handed_over: &HandedOver,
        _: Option<&CancellationToken>,
    ) -> Result<Option<Bytes>, GatewayFault> {
        let (written, done) = oneshot::channel();
        let message = outgoing.body().cloned().unwrap_or_default();
        let queued = QueuedMessage { message, handed_over: Arc::clone(handed_over), written };
        // After the end of its output the program's responses would be lost.
        let is_taken = self.given_up.get().is_none();
        if is_taken && self.outgoing.send(queued).await.is_ok() && done.await.is_ok() {
            return Ok(None);
        }
        let executed = if handed_over.initialized() { Executed::Unknown } else { Executed::No };
        Err(GatewayFault { executed, ..self.ended().await })
    }

    async fn close(&self) {
        self.closing.cancel();
        let _ = tokio::time::timeout(STOP_MAX, self.end.wait()).await;
    }
}

impl Drop for StdoutReceiver {
    fn drop(&mut self) {
        self.process.closing.cancel();
    }
}

/// Writes each message as one line, until the process reads no more.
async fn write(mut stdin: ChildStdin, mut queue: mpsc::Receiver<QueuedMessage>, process: Arc<ServerProcess>) {
    let writing = async {
        while let Some(QueuedMessage { message, handed_over, written }) = queue.recv().await {
            // Its caller is gone, and no byte of it is written.
            if written.is_closed() {
                continue;
            }
            // Set already by an earlier attempt.
            let _ = handed_over.set(());
            dev_output::sent(process.number, &message);
            if stdin.write_all(&line_of(&message)).await.is_err() || stdin.flush().await.is_err() {
                return;
            }
            let _ = written.send(());
        }
    };
    if unless_cancelled(&process.closing, writing).await.is_some() {
        // The supervisor reads no input once it has ended: the program died, and no close of the gateway is the cause.
        drop((stdin, queue));
        let _ = tokio::time::timeout(STOP_MAX, process.end.wait()).await;
    }
    process.closing.cancel();
}

async fn listen(stderr: ChildStderr, output_log: Arc<ProgramOutputLog>, process: Arc<ServerProcess>) {
    process.silent.run_until_cancelled(Box::pin(program_output::log(stderr, &output_log))).await;
    process.stderr_ended.cancel();
}

/// Line breaks in JSON are whitespace, so a blank is equivalent.
fn line_of(message: &Bytes) -> Vec<u8> {
    let mut line = Vec::with_capacity(message.len() + 1);
    line.extend(message.iter().map(|&byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
    line.push(b'\n');
    line
}

async fn reap(mut child: Child, process: Arc<ServerProcess>, output_log: Arc<ProgramOutputLog>) {
    // A program ends soon after a close, so both may be ready: the end is then the gateway's.
    let by_itself = unless_cancelled(&process.closing, child.wait()).await;
    let is_own = by_itself.is_some();
    let status = match by_itself {
        Some(status) => status,
        None => match tokio::time::timeout(STOP_MAX, child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                // The supervisor hangs.
                let _ = child.start_kill();
                child.wait().await
            }
        },
    };
    if process.shows_stderr {
        // Its last lines are known before its calls fail.
        let _ = tokio::time::timeout(OUTPUT_MAX, process.stderr_ended.cancelled()).await;
    }
    let end = ProcessEnd { exit: status.ok().and_then(exit_of), is_own };
    output_log.ended(end);
    let _ = process.end.set(end);
    process.closing.cancel();
    tokio::time::sleep(OUTPUT_MAX).await;
    process.silent.cancel();
}

fn exit_of(status: ExitStatus) -> Option<ProcessExit> {
    status.code().map(ProcessExit::Code).or_else(|| system::signal_of(status).map(ProcessExit::Signal))
}

struct StdoutReceiver {
    stdout: ChildStdout,
    decoder: LineDecoder,
    ready: std::vec::IntoIter<Bytes>,
    buffer: BytesMut,
    process: Arc<ServerProcess>,
    output_log: Arc<ProgramOutputLog>,
}

#[async_trait]
impl MessageReceiver for StdoutReceiver {
    async fn next(&mut self, room: &mut MessageRoom) -> Result<Bytes, GatewayFault> {
        loop {
            for line in self.ready.by_ref() {
                // A message with a byte order mark is unreadable, but answers a request.
                let text = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
                match text.trim_ascii_start().first() {
                    Some(b'{' | b'[') => {
                        dev_output::received(self.process.number, &line);
                        return Ok(line);
                    }
                    Some(_) | None => self.output_log.stray(&line),
                }
            }
            room.grow(self.decoder.held()).await;
            self.buffer.clear();
            let reading = self.stdout.read_buf(&mut self.buffer);
            let read = room.wait(self.process.silent.run_until_cancelled(reading)).await;
            if !matches!(read, Some(Ok(1..))) {
                return Err(self.process.ended().await);
            }
            match self.decoder.feed(&self.buffer) {
                Ok(lines) => self.ready = lines.into_iter(),
                // Its request is unknown, so other calls end with it.
                Err(_) => return Err(GatewayFault::new(Reason::ResultTooLarge, Executed::Unknown)),
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    #[error("{}: is not a folder; set `cwd` to one", .folder.display())]
    NoFolder { folder: PathBuf },
    #[error("{program}: is not found in PATH; install it, or write the path of its file")]
    NotInPath { program: String },
    #[error("{}: does not exist; correct the path", .file.display())]
    NotFound { file: PathBuf },
    #[error("{}: is not executable; run chmod +x on it", .file.display())]
    NotRunnable { file: PathBuf },
    #[error("{why}")]
    Unusable { why: Arc<str> },
}

impl StdioUpstreamSettings {
    /// Finds the program as a start would: from its working folder if it is a path, else in `PATH`, which `env` may
    /// set. Fails if the program or its folder is missing. A start may fail for other reasons.
    pub fn find_program(&self) -> Result<PathBuf, ProgramError> {
        if let Some(why) = &self.unusable {
            return Err(ProgramError::Unusable { why: Arc::clone(why) });
        }
        let folder = self.folder.as_deref().unwrap_or_else(|| Path::new(""));
        if let Some(folder) = self.folder.as_ref().filter(|folder| !folder.is_dir()) {
            return Err(ProgramError::NoFolder { folder: folder.clone() });
        }
        let own = self.env.iter().find(|(name, _)| name == PATH).map(|(_, value)| OsString::from(value));
        find_program(&self.program, folder, own)
    }
}

/// Finds a program that starts in `folder`. `path` is its `PATH`, if that is not the gateway's.
pub(crate) fn find_program(program: &str, folder: &Path, path: Option<OsString>) -> Result<PathBuf, ProgramError> {
    if program.contains('/') {
        let file = folder.join(program);
        return match (may_run(&file), file.exists()) {
            (true, _) => Ok(file),
            (false, true) => Err(ProgramError::NotRunnable { file }),
            (false, false) => Err(ProgramError::NotFound { file }),
        };
    }
    let path = path.or_else(|| env::var_os(PATH)).unwrap_or_default();
    let files = || env::split_paths(&path).map(|entry| folder.join(entry).join(program));
    if let Some(file) = files().find(|file| may_run(file)) {
        return Ok(file);
    }
    Err(match files().find(|file| file.is_file()) {
        Some(file) => ProgramError::NotRunnable { file },
        None => ProgramError::NotInPath { program: program.to_owned() },
    })
}

fn may_run(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| system::is_runnable(&found))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;
    use crate::upstream::outgoing::SessionHeaders;

    /// The delay of a supervisor that gets no processor for a while.
    const LATE: Duration = Duration::from_secs(2);

    /// A process that takes no more messages, and has not been reaped.
    fn unreachable_process() -> ServerProcess {
        let ((outgoing, _), end) = (mpsc::channel(1), SetOnce::new());
        let (closing, silent) = (CancellationToken::new(), CancellationToken::new());
        ServerProcess {
            number: 1,
            shows_stderr: false,
            outgoing,
            closing,
            end,
            given_up: OnceLock::new(),
            silent,
            stderr_ended: CancellationToken::new(),
        }
    }

    /// For every sign of the end: a supervisor may have to kill orphans, and to wait for a processor.
    #[tokio::test(start_paused = true)]
    async fn f45_a_supervisor_that_is_late_still_says_how_its_program_ended() {
        let process = unreachable_process();
        let reporting = async {
            tokio::time::sleep(LATE).await;
            process.end.set(ProcessEnd { exit: Some(ProcessExit::Code(7)), is_own: true }).unwrap();
        };
        let (request, handed_over) = (SessionHeaders::default().post(Bytes::from_static(b"{}")), HandedOver::default());
        let (heard, sent, ()) = tokio::join!(process.ended(), process.send(&request, &handed_over, None), reporting);
        assert_eq!((heard.exit, heard.executed), (Some(ProcessExit::Code(7)), Executed::Unknown), "its output ended");
        let unsent = sent.unwrap_err();
        assert_eq!((unsent.exit, unsent.executed), (Some(ProcessExit::Code(7)), Executed::No), "its input ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_closes_its_output_and_lives_on_is_given_up_without_a_status() {
        let process = unreachable_process();
        let fault = tokio::time::timeout(Duration::from_secs(3600), process.ended()).await.unwrap();
        assert_eq!((fault.reason, fault.exit), (Reason::UpstreamClosed, None));
    }

    /// A child that has exited, and is not reaped yet.
    async fn exited_child() -> Child {
        let child = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
        let id = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).unwrap();
        waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        // The runtime receives the notification of the exit.
        tokio::task::yield_now().await;
        child
    }

    /// Both are seen at once where the gateway gets a processor late.
    #[tokio::test]
    async fn a_program_that_ends_at_its_close_did_not_die_by_itself() {
        for _ in 0..16 {
            let (process, child) = (Arc::new(unreachable_process()), exited_child().await);
            process.closing.cancel();
            let output_log = Arc::new(ProgramOutputLog::new(Arc::from("local"), 1, None, StderrUse::Never));
            tokio::select! {
                // The wait for the last output may be over by the next poll.
                biased;
                end = process.end.wait() => assert!(!end.is_own),
                () = reap(child, Arc::clone(&process), output_log) => panic!("it waits for the last output"),
            }
        }
    }

    #[tokio::test]
    async fn a_program_that_refuses_its_input_died_by_itself() {
        let stdin = exited_child().await.stdin.take().unwrap();
        let (process, (outgoing, queue)) = (Arc::new(unreachable_process()), mpsc::channel(1));
        let refused = async {
            // Several messages: a process that another test starts has a copy of the pipe's reader for a moment.
            loop {
                let ((written, done), message) = (oneshot::channel(), Bytes::from_static(b"{}"));
                let queued = QueuedMessage { message, handed_over: HandedOver::default(), written };
                if outgoing.send(queued).await.is_err() || done.await.is_err() {
                    break;
                }
            }
            assert!(!process.closing.is_cancelled(), "the gateway did not close it");
            process.end.set(ProcessEnd { exit: Some(ProcessExit::Code(7)), is_own: true }).unwrap();
        };
        tokio::join!(write(stdin, queue, Arc::clone(&process)), refused);
        assert!(process.closing.is_cancelled());
    }

    #[test]
    fn a_message_is_one_line_with_any_whitespace_between_its_parts() {
        let line = line_of(&Bytes::from_static(b"{\n\t\"a\":\r\n\"b\\n\"}"));
        assert_eq!(line, b"{ \t\"a\":  \"b\\n\"}\n");
    }

    #[test]
    fn settings_show_no_secret() {
        let settings = StdioUpstreamSettings {
            name: Arc::from("local"),
            program: "program".to_owned(),
            arguments: vec!["--token=hidden".to_owned()],
            env: vec![("TOKEN".to_owned(), "hidden".to_owned())],
            env_files: Vec::new(),
            folder: None,
            processes_max: 8,
            descriptors_max: None,
            memory_bytes_max: None,
            line_bytes_max: 1024,
            protocol: None,
            dedicated: DedicatedProcessRules::default(),
            stderr_use: StderrUse::Never,
            unusable: None,
        };
        let shown = format!("{settings:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("hidden"), "{shown}");
    }

    #[test]
    fn a_program_is_looked_for_where_a_start_would() {
        let folder = tempfile::tempdir().unwrap();
        for (name, mode) in [("runs", 0o700), ("text", 0o600)] {
            let file = folder.path().join(name);
            fs::write(&file, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
        let at = |name: &str| folder.path().join(name);
        let text = at("").display().to_string();
        let absolute = |name: &str| at(name).display().to_string();
        let none = String::new();
        let found = |program: &str, path: Option<&str>, folder: Option<PathBuf>| {
            let env = path.map(|path| (PATH.to_owned(), path.to_owned())).into_iter().collect();
            let settings = StdioUpstreamSettings { program: program.to_owned(), env, folder, ..settings() };
            settings.find_program().map_or_else(|error| error.to_string(), |file| file.display().to_string())
        };
        for (program, path, cwd, expected) in [
            (absolute("runs"), None, None, absolute("runs")),
            (absolute("text"), None, None, format!("{}: is not executable; run chmod +x on it", absolute("text"))),
            (absolute("none"), None, None, format!("{}: does not exist; correct the path", absolute("none"))),
            ("./runs".to_owned(), None, Some(at("")), absolute("./runs")),
            ("runs".to_owned(), Some(&text), None, absolute("runs")),
            (
                "text".to_owned(),
                Some(&text),
                None,
                format!("{}: is not executable; run chmod +x on it", absolute("text")),
            ),
            (
                "runs".to_owned(),
                Some(&none),
                None,
                "runs: is not found in PATH; install it, or write the path of its file".to_owned(),
            ),
            (
                "runs".to_owned(),
                Some(&text),
                Some(at("none")),
                format!("{}: is not a folder; set `cwd` to one", absolute("none")),
            ),
        ] {
            assert_eq!(found(&program, path.map(String::as_str), cwd), expected);
        }
        assert!(found("sh", None, None).ends_with("/sh"), "from the PATH of this process");
    }

    fn settings() -> StdioUpstreamSettings {
        StdioUpstreamSettings {
            name: "up".into(),
            program: String::new(),
            arguments: Vec::new(),
            env: Vec::new(),
            env_files: Vec::new(),
            folder: None,
            processes_max: 1,
            descriptors_max: None,
            memory_bytes_max: None,
            line_bytes_max: 1024,
            protocol: None,
            dedicated: Default::default(),
            stderr_use: StderrUse::Never,
            unusable: None,
        }
    }
}
