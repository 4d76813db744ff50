//! Records actors and their acts in the audit file: JSON lines, each with the digest of the line before. Requests fill
//! a bounded queue; one thread writes (`writer`). Read `record` first. Events hold no payload or secret.

mod anchor;
mod file;
mod queue;
mod record;
pub mod verify;
mod writer;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use parking_lot::RwLock;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::task::digest::hex;
use crate::task::{Clock as _, Executed, GatewayFault, Principal, Reason, SystemClock, TaskKey};
use crate::wire::{Object, Payload};
pub use anchor::AuditAnchor;
pub use file::AuditOpenError;
use file::AuditSink;
use queue::{AuditQueue, QueuedRecord};
pub use record::{AuditAct, AuditEvent};
use writer::AuditWriter;

/// With `required`: how long a call waits for its record.
const HAND_OVER_MAX: Duration = Duration::from_secs(5);
/// How long the end of the gateway waits for the last records.
const CLOSE_MAX: Duration = Duration::from_secs(5);
/// How long a start waits for an earlier process to release the file.
const LOCK_MAX: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditSettings {
    pub path: PathBuf,
    pub is_required: bool,
    pub records_calls: bool,
    pub digests_arguments: bool,
    /// Where the digest of each 1,000th line is written.
    pub anchor: Option<AuditAnchor>,
}

/// The audit file, for every module that records events. Records of a closed file are dropped.
#[derive(Debug)]
pub struct AuditLog {
    settings: AuditSettings,
    queue: Arc<AuditQueue>,
    /// URLs of issuers, by the digits that stand for them in principals.
    issuers: RwLock<HashMap<String, String>>,
}

impl AuditLog {
    /// Locks the file and continues its chain; lines name `replica` if a store is shared. `Locked` by another process.
    pub async fn open(settings: AuditSettings, replica: Option<&str>) -> Result<Arc<Self>, AuditOpenError> {
        let end = Instant::now() + LOCK_MAX;
        let sink = loop {
            match AuditSink::open(&settings.path) {
                Err(AuditOpenError::Locked { .. }) if Instant::now() < end => tokio::time::sleep(LOCK_PAUSE).await,
                other => break other?,
            }
        };
        let queue = Arc::new(AuditQueue::default());
        let writer = AuditWriter::new(sink, Arc::clone(&queue), &settings, replica);
        writer
            .and_then(|writer| std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run()))
            .map_err(|source| AuditOpenError::File { path: settings.path.clone(), source })?;
        Ok(Arc::new(Self { settings, queue, issuers: RwLock::default() }))
    }

    /// Sets the issuers that `via` can name: the issuers of accepted tokens.
    pub fn know_issuers<'a>(&self, urls: impl Iterator<Item = &'a str>) {
        *self.issuers.write() =
            urls.map(|url| (Principal::issuer_digits(url), url.to_owned())).collect::<HashMap<_, _>>();
    }

    /// Records an event, without waiting. If the queue is full the record is lost, and a later line counts it.
    pub fn record(&self, event: &AuditEvent<'_>) {
        self.queue.push(self.rendered(event));
    }

    /// Counts a refused request without a record: there were too many. A later line has the number.
    pub fn count_unnamed(&self) {
        self.queue.count_unnamed();
    }

    /// Whether calls may be made. Not while `required` is set and the file cannot be written.
    pub fn is_available(&self) -> bool {
        !self.settings.is_required || self.is_written()
    }

    pub fn is_written(&self) -> bool {
        self.queue.is_written()
    }

    pub const fn is_required(&self) -> bool {
        self.settings.is_required
    }

    /// Continues in a new file if the present one was renamed.
    pub fn reopen(&self) {
        self.queue.reopen();
    }

    pub async fn close(&self) {
        if timeout(CLOSE_MAX, self.queue.close()).await.is_err() {
            tracing::error!("the audit file cannot be written: its last records are lost");
        }
    }

    /// Begins the record of a tool call. `required` records calls that may become tasks even if `calls` is off.
    pub fn call(
        self: &Arc<Self>,
        who: &Principal,
        upstream: &Arc<str>,
        tool: &Arc<str>,
        arguments: impl FnOnce() -> Option<Payload>,
        may_become_task: bool,
    ) -> Box<AuditedCall> {
        let AuditSettings { is_required, records_calls, digests_arguments, .. } = self.settings;
        let arguments = if digests_arguments { arguments() } else { None };
        Box::new(AuditedCall {
            log: Arc::clone(self),
            who: who.clone(),
            upstream: Arc::clone(upstream),
            tool: Arc::clone(tool),
            began: Instant::now(),
            arguments: arguments.map(|arguments| hex(digest(&SHA256, arguments.as_str().as_bytes()).as_ref())),
            is_recorded: records_calls || (is_required && may_become_task),
            outcome: OnceLock::new(),
        })
    }

    /// Returns once the record is on the disk, or fails.
    async fn hand_over(&self, event: &AuditEvent<'_>) -> Result<(), GatewayFault> {
        let refused = GatewayFault::new(Reason::AuditUnavailable, Executed::No);
        if !self.is_written() {
            return Err(refused);
        }
        let (reply, written) = oneshot::channel();
        self.queue.push(QueuedRecord { reply: Some(reply), ..self.rendered(event) });
        timeout(HAND_OVER_MAX, written).await.ok().and_then(Result::ok).ok_or(refused)
    }

    fn rendered(&self, event: &AuditEvent<'_>) -> QueuedRecord {
        let issuers = self.issuers.read();
        let issuer = |digits: &str| issuers.get(digits).map(String::as_str);
        QueuedRecord { at: SystemClock.now(), members: event.members(issuer), reply: None }
    }
}

impl Drop for AuditLog {
    fn drop(&mut self) {
        self.queue.end();
    }
}

/// A call of a tool. Its end is recorded when it is dropped, unless it became a task.
#[derive(Debug)]
pub struct AuditedCall {
    log: Arc<AuditLog>,
    who: Principal,
    upstream: Arc<str>,
    tool: Arc<str>,
    began: Instant,
    arguments: Option<String>,
    is_recorded: bool,
    outcome: OnceLock<&'static str>,
}

/// The outcome of a call without response: its client left, or the gateway ended.
const ABANDONED: &str = "abandoned";

impl AuditedCall {
    /// Records that the call is about to be sent, if it must be recorded before. Fails if that is impossible.
    pub async fn begin(&self) -> Result<(), GatewayFault> {
        match (self.log.settings.is_required, self.is_recorded) {
            (false, _) => Ok(()),
            (true, true) => self.log.hand_over(&self.event(AuditAct::CallBegun)).await,
            (true, false) if self.log.is_written() => Ok(()),
            (true, false) => Err(GatewayFault::new(Reason::AuditUnavailable, Executed::No)),
        }
    }

    /// Notes the outcome. The first one counts.
    pub fn note(&self, outcome: &'static str) {
        let _ = self.outcome.set(outcome);
    }

    pub fn becomes_task(mut self, key: &TaskKey) {
        self.is_recorded = false;
        self.log.record(&AuditEvent { task: Some(key), ..self.event(AuditAct::TaskCreated) });
    }

    fn event(&self, act: AuditAct) -> AuditEvent<'_> {
        AuditEvent {
            who: Some(&self.who),
            upstream: Some(&self.upstream),
            tool: Some(&self.tool),
            arguments: self.arguments.as_deref(),
            ..AuditEvent::new(act)
        }
    }
}

impl Drop for AuditedCall {
    fn drop(&mut self) {
        if self.is_recorded {
            let outcome = self.outcome.get().copied().unwrap_or(ABANDONED);
            let duration = Some(self.began.elapsed());
            self.log.record(&AuditEvent { outcome: Some(outcome), duration, ..self.event(AuditAct::CallEnded) });
        }
    }
}

pub fn arguments_of(params: Option<&Object>) -> Option<Payload> {
    params.and_then(|params| params.get("arguments"))
}
