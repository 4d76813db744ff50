//! Serves one host over stdio, without listeners.

use std::future::pending;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::files::{FileUse, PreparedConfig, ReportedWarnings};
use super::live_calls::{CallSurvey, NOTIFY_MAX};
use super::program::{Signals, missing_program, refused};
use super::reload::ServedEndpoint;
use super::reload::ServedUpstream;
use super::task_store::{self, OpenedStore, StoreOpening};
use super::{GatewayKeys, GatewayParts, files};
use crate::config::{Config, LoadedConfig, StoreSettings};
use crate::engine::recovery::{self, CallTargets};
use crate::engine::{Engine, changes_elsewhere};
use crate::face::combined::CombinedEndpoint;
use crate::face::endpoint::UpstreamEndpoint;
use crate::face::http::Endpoint;
use crate::face::sse::SseServed;
use crate::face::stdio::{self, StdioEnds};
use crate::face::stream_client::StreamClient;
use crate::server::admin::Readiness;
use crate::system;
use crate::task::{Caller, Principal, Reason};
use crate::telemetry;
use crate::upstream::TaskScope;

const ENVELOPE_BYTES: usize = 64 * 1024;
/// The time for calls to be cancelled or stored at the end.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// The time for the server to exit. After that it is killed in the background.
const CLOSE_MAX: Duration = Duration::from_secs(3);
const REST_MAX: Duration = Duration::from_millis(500);
const PAGE: usize = 100;

/// Serves the host at standard input and output until it closes or a signal arrives: the first endpoint, else the first
/// upstream. `store_option` is the command-line option for the store. A fault of a file or a store is printed and ends
/// with the exit code of [`super::serve`]; a missing program with [`EXIT_UNAVAILABLE`](super::EXIT_UNAVAILABLE).
pub async fn wrap(loaded: LoadedConfig, store_option: Option<&str>) -> anyhow::Result<ExitCode> {
    let _log = telemetry::install_logs(telemetry::INFORMATION)?;
    let read = PreparedConfig::new(loaded);
    let missing = files::missing_programs(&read.config).count();
    if missing == read.config.upstreams.len()
        && let Some(code) = missing_program(&read.config)
    {
        return code;
    }
    ReportedWarnings::default().log(&read);
    let config = read.config;
    // Signal handlers before anything starts: no signal may be missed.
    let mut signals = Signals::new()?;
    let body_bytes_max = config.listen.body_bytes_max.get();
    let wrapping = match WrappedGateway::start(config).await {
        Ok(wrapping) => wrapping,
        Err(error) => return refused(error, store_option),
    };
    // The host may pass a tool's result to another tool.
    let line_bytes_max = body_bytes_max.max(wrapping.served.message_bytes_max);
    let (streams_end, cut_off) = (CancellationToken::new(), CancellationToken::new());
    let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
    let ends = StdioEnds { input, output, is_reader_gone: system::is_stdout_closed };
    let served = {
        let serving = stdio::serve(wrapping.served.clone(), line_bytes_max, ends, streams_end.clone(), &cut_off);
        tokio::pin!(serving);
        tokio::select! {
            served = &mut serving => served,
            _ = signals.next() => {
                let notifying = async {
                    wrapping.end_calls().await;
                    streams_end.cancel();
                    sleep(NOTIFY_MAX).await;
                    // Another request of the host's is still unanswered.
                    cut_off.cancel();
                    pending().await
                };
                tokio::select! {
                    served = &mut serving => served,
                    served = notifying => served,
                }
            }
        }
    };
    tokio::select! {
        () = wrapping.end() => (),
        _ = signals.next() => tracing::warn!("ended at once: a signal came while calls, tasks or servers were still ending"),
    }
    served.context("the host cannot be served any more")?;
    Ok(ExitCode::SUCCESS)
}

struct WrappedGateway {
    parts: GatewayParts,
    upstreams: Vec<ServedUpstream>,
    /// The host's client handle; `_combined` keeps an endpoint of several upstreams alive.
    served: StreamClient,
    _combined: Option<ServedEndpoint>,
    listens_end: CancellationToken,
    /// Ends the background tasks on every path.
    _stop: DropGuard,
}

/// The host is the local principal; `with` is the state that the endpoint's other clients use.
fn host(endpoint: Arc<dyn Endpoint>, with: &SseServed) -> StreamClient {
    StreamClient {
        endpoint,
        upstream: Arc::clone(&with.name),
        path: with.path.to_string(),
        caller: Caller::of(Principal::local()),
        address: None,
        limits: with.served.engine.limits().clone(),
        message_bytes_max: with.result_bytes_max.saturating_add(ENVELOPE_BYTES),
    }
}

impl WrappedGateway {
    async fn start(config: Config) -> anyhow::Result<Self> {
        files::check(&config, FileUse::Start)?;
        let GatewayKeys { sealer, prints, .. } = match config.store {
            // Nothing outlives this process, so its key need not.
            StoreSettings::Memory(_) => GatewayKeys::ephemeral(),
            StoreSettings::Disk { .. } | StoreSettings::Postgres(_) => GatewayKeys::of(&config)?,
        };
        let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        let unless_ended = scope.stop.clone().drop_guard();
        let readiness = Readiness::new();
        let opened = match Box::pin(task_store::open(&config, prints, &scope, &readiness)).await? {
            StoreOpening::Open(opened) => opened,
            StoreOpening::Waiting(opening) => Box::pin(task_store::wait(opening, &scope, &readiness)).await?,
        };
        let OpenedStore { store, clock, .. } = opened;
        let listens_end = CancellationToken::new();
        let parts = GatewayParts::new(store, clock, sealer, None, &config, scope, listens_end.clone());
        let mut upstreams = Vec::with_capacity(config.upstreams.len());
        for one in config.upstreams {
            upstreams.push(ServedUpstream::new(one, &parts, Arc::default())?);
        }
        let targets = CallTargets::new(upstreams.iter().map(|one| one.served.target()));
        let members: Vec<_> = upstreams.iter().map(ServedUpstream::member).collect();
        let combined = config.endpoints.first().map(|settings| ServedEndpoint::new(settings, &members, &parts));
        let served = match (&combined, upstreams.first()) {
            (Some(combined), _) => host(Arc::<CombinedEndpoint>::clone(&combined.endpoint), &combined.older),
            (None, Some(only)) => host(Arc::<UpstreamEndpoint>::clone(&only.endpoint), &only.older),
            (None, None) => bail!("there is no server"),
        };
        parts.scope.tracker.spawn(recovery::run(Arc::clone(&parts.engine), targets.clone(), parts.scope.stop.clone()));
        parts.scope.tracker.spawn(recovery::resume_rows_without_runner(
            Arc::clone(&parts.engine),
            targets,
            parts.scope.stop.clone(),
        ));
        parts.scope.tracker.spawn(changes_elsewhere::run(Arc::clone(&parts.engine), parts.scope.stop.clone()));
        Ok(Self { parts, upstreams, served, _combined: combined, listens_end, _stop: unless_ended })
    }

    async fn end_calls(&self) {
        self.cancel_tasks().await;
        log_lost_calls(&self.parts.live_calls().end(Reason::GatewayRestart));
    }

    async fn cancel_tasks(&self) {
        if !self.parts.store.reach().outlives_process() {
            // Fails if a task has ended meanwhile.
            let _ = timeout(DRAIN_MAX, cancel_tasks(&self.parts.engine)).await;
        }
    }

    /// Ends in order: stores the tasks if they outlive the process, or cancels them; then ends the server.
    async fn end(self) {
        self.cancel_tasks().await;
        let calls = self.parts.live_calls();
        let GatewayParts { engine, store, scope, streams_end, .. } = self.parts;
        engine.drain(DRAIN_MAX).await;
        // Before the server is ended: its calls end with the gateway, not with the server.
        log_lost_calls(&calls.end(Reason::GatewayRestart));
        engine.drain(REST_MAX).await;
        streams_end.cancel();
        self.listens_end.cancel();
        let closing = join_all(self.upstreams.iter().map(|one| one.served.upstream.close()));
        let closed = timeout(CLOSE_MAX, closing).await;
        scope.stop.cancel();
        scope.tracker.close();
        let rested = timeout(REST_MAX, scope.tracker.wait()).await;
        store.close().await;
        let in_time = closed.is_ok() && rested.is_ok();
        tracing::info!(in_time, "ended");
    }
}

fn log_lost_calls(calls: &CallSurvey) {
    if !calls.is_empty() {
        tracing::warn!(calls_lost = calls.lost(), %calls, "calls that were in progress end with the gateway");
    }
}

async fn cancel_tasks(engine: &Arc<Engine>) {
    let mut after = None;
    loop {
        let Ok(page) = engine.list(&Caller::of(Principal::local()), after, PAGE).await else { return };
        for task in page.tasks.iter().filter(|task| !task.is_settled()) {
            // The task may have ended meanwhile.
            let _ = engine.cancel(&task.key).await;
        }
        after = page.next;
        if after.is_none() {
            return;
        }
    }
}
