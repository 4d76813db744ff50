//! Restarts a program when its files change, for `taskgate dev`.

mod changes;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Gateway;
use crate::config::Config;
use crate::dev_output::{self, DevSource};
use crate::dialect::faults::gateway_error;
use crate::face::served::Served;
use crate::task::Principal;
use crate::upstream::{BeginError, CallContext, Handshake, NoResult, UpstreamRequest, result_of};
use crate::waits::unless_cancelled;
use crate::wire::{Object, Payload, method};
use changes::{ChangedFiles, FileChanges};

/// How long a program may take to list its tools.
const READY_MAX: Duration = Duration::from_secs(60);
/// The program itself may have made a change that follows its start this closely.
const EARLY: Duration = Duration::from_secs(2);
/// The most restarts in a row by such changes.
const EARLY_RESTARTS_MAX: usize = 5;
const TOOLS_SHOWN: usize = 10;

/// How long the drain waits for calls: no client relies on a server under development.
const DRAIN_MAX: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct DevSettings {
    /// The watched folders and files; if there are none, the command's own.
    pub watched: Vec<PathBuf>,
    pub command: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Development {
    changes: FileChanges,
    restarting: Option<DropGuard>,
    /// When the current start succeeded or failed.
    ready: Arc<Mutex<Option<Instant>>>,
    early_restarts: usize,
}

/// Shortens the drain, and prints the calls that it waits for.
pub(super) fn prepare_end(gateway: &mut Gateway) {
    gateway.drain_max = gateway.drain_max.min(DRAIN_MAX);
    let calls = gateway.live_calls().survey();
    if !calls.is_empty() {
        let patience = gateway.drain_max;
        dev_output::show(
            DevSource::Gateway,
            format_args!("waits {patience:?} for calls ({calls}); a second Ctrl-C ends it at once"),
        );
    }
}

impl Development {
    /// Watches all files except the gateway's own.
    pub(super) fn new(settings: &DevSettings, config: &Config) -> anyhow::Result<Self> {
        let watched = match settings.watched.as_slice() {
            [] => changes::watched_by(&settings.command),
            named => named.to_vec(),
        };
        let changes = FileChanges::new(&watched, &config.folder).context("the files cannot be watched")?;
        Ok(Self { changes, restarting: None, ready: Arc::default(), early_restarts: 0 })
    }

    /// Waits for changes of files. Cancel safe.
    pub(super) async fn next(&mut self) -> ChangedFiles {
        self.changes.next().await
    }

    pub(super) fn start(&mut self, gateway: &Gateway) {
        dev_output::show(DevSource::Files, format_args!("watching {}", self.changes));
        self.in_background(gateway, false);
    }

    /// Restarts the program. Its calls end as if it had exited.
    pub(super) fn restart(&mut self, gateway: &Gateway, changed: &ChangedFiles) {
        dev_output::show(DevSource::Files, format_args!("changed: {changed}"));
        if !self.may_restart() {
            let why = format_args!(
                "not started again: at each of its last {EARLY_RESTARTS_MAX} starts files changed before it was ready for {} s, \
                 so it may write {changed} itself; name the files to watch by --watch, or change one of them again",
                EARLY.as_secs()
            );
            return dev_output::show(DevSource::Program, why);
        }
        self.in_background(gateway, true);
    }

    /// Counts a restart; false after too many: files that the program itself writes would restart it for ever.
    fn may_restart(&mut self) -> bool {
        let is_early = self.ready.lock().is_none_or(|ready| ready.elapsed() < EARLY);
        if is_early && self.early_restarts == EARLY_RESTARTS_MAX {
            return false;
        }
        self.early_restarts = if is_early { self.early_restarts + 1 } else { 0 };
        true
    }

    fn in_background(&mut self, gateway: &Gateway, is_restart: bool) {
        let token = CancellationToken::new();
        // Cancels the report of the earlier start, which would show that its program was ended.
        self.restarting = None;
        *self.ready.lock() = None;
        for upstream in &gateway.upstreams {
            let (served, ready) = (Arc::clone(&upstream.served), Arc::clone(&self.ready));
            let work = async move {
                if is_restart {
                    served.pool.restart().await;
                }
                show_readiness(&served).await;
                *ready.lock() = Some(Instant::now());
            };
            let token = token.clone();
            // The program may have ended for this change already.
            gateway.parts.scope.tracker.spawn(async move { unless_cancelled(&token, work).await });
        }
        self.restarting = Some(token.drop_guard());
    }
}

/// Asks the program for its tools, and shows the answer. The program then runs for clients without a session.
async fn show_readiness(served: &Served) {
    match timeout(READY_MAX, readiness(served)).await {
        Ok(Ok(ready)) => dev_output::show(DevSource::Program, format_args!("ready: {ready}")),
        Ok(Err(why)) => dev_output::show(DevSource::Program, format_args!("not ready: {why}")),
        Err(_) => dev_output::show(DevSource::Program, "not ready: it has not listed its tools for 60 s"),
    }
}

async fn readiness(served: &Served) -> Result<String, String> {
    let context = CallContext::new(
        Principal::local(),
        Payload::empty_object(),
        served.settings.timeouts,
        served.settings.result_bytes_max,
    );
    let (upstream, handshake) = match served.pool.handshake(&context).await {
        Ok(handshake) => (&served.pool, handshake),
        // The server may have no sessions.
        Err(BeginError::Refused(_)) => (&served.stateless, served.stateless.handshake(&context).await.map_err(reason)?),
        Err(error) => return Err(reason(error)),
    };
    let request = UpstreamRequest { method: Arc::from(method::TOOLS_LIST), params: None };
    let mut listing = upstream.begin(request, context).await.map_err(reason)?;
    match result_of(&mut *listing).await {
        Ok(result) => Ok(format!("{}, {}", name(&handshake), tools(&result))),
        Err(NoResult::Faulted(error)) => Ok(format!("{}, no tools: {}", name(&handshake), error.message)),
        Err(NoResult::Lost(fault)) => Err(gateway_error(&fault).message),
        Err(NoResult::Cancelled) => Err("it cancelled the list of its tools".to_owned()),
    }
}

fn reason(error: BeginError) -> String {
    match error {
        BeginError::Gateway(fault) => gateway_error(&fault).message,
        BeginError::Refused(error) => format!("it refused the handshake: {}", error.message),
    }
}

fn name(handshake: &Handshake) -> String {
    let info = handshake.server_info.as_ref().and_then(Object::of);
    let text = |key| info.as_ref().and_then(|info| info.get_lossy(key)).unwrap_or_default();
    format!("{} {}, {}", text("name"), text("version"), handshake.version.as_str())
}

fn tools(result: &Payload) -> String {
    let tools = Object::of(result).and_then(|result| result.get("tools"));
    let tools = tools.iter().flat_map(Payload::items).filter_map(|tool| Object::of(&tool)?.get_lossy("name"));
    let names: Vec<_> = tools.collect();
    let shown = names.iter().take(TOOLS_SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if names.len() > TOOLS_SHOWN { ", ..." } else { "" };
    format!("{} tools: {shown}{more}", names.len())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
