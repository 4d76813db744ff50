//! Runs the gateway between one host and its servers: standard input and output on the host's side, no listeners.

use std::future::pending;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::future::join_all;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::live_calls::{CallSurvey, TOLD_MAX};
use super::prepared_config::{PreparedConfig, ReportedWarnings};
use super::program::{Signals, missing_program, refused};
use super::reload::ServedUpstream;
use super::served_endpoint::ServedEndpoint;
use super::task_store::{self, OpenedStore, StoreOpening};
use super::{GatewayKeys, GatewayParts, files, upstream_programs};
use crate::config::{Config, LoadedConfig, StoreSettings};
use crate::engine::recovery::{self, CallTargets};
use crate::engine::{Engine, changes_elsewhere, rows_without_runner};
use crate::face::combined::CombinedEndpoint;
use crate::face::endpoint::UpstreamEndpoint;
use crate::face::http::Endpoint;
use crate::face::sse::SseServed;
use crate::face::stdio::{self, StdioEnds};
use crate::face::stream_client::StreamClient;
use crate::server::admin::Readiness;
use crate::task::{Clock as _, Principal, Reason, SystemClock};
use crate::telemetry::{self, LogFormat};
use crate::upstream::TaskScope;

/// What a message may be larger by than the result in it.
const ENVELOPE_BYTES: usize = 64 * 1024;
/// How long calls have, at the end, to be taken back, or to be put down where they can be found again.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How long the server may take to end. It is stopped by force in the background after that.
const CLOSE_MAX: Duration = Duration::from_secs(3);
/// How long what is left in the background may take.
const REST_MAX: Duration = Duration::from_millis(500);
/// Tasks that are taken back at a time.
const PAGE: usize = 100;

/// Serves the host at standard input and output until it is gone or a signal comes. Of the configuration the store and the
/// limits hold, and the first endpoint, or else the first upstream. `store_option` is what names the store on a command line.
///
/// # Errors
/// If the store cannot be had, or the host wrote what cannot be read. What is wrong with a file or a store is printed,
/// and ends with the code that [`super::serve`] has for it; a program that is not there ends with
/// [`EXIT_UNAVAILABLE`](super::EXIT_UNAVAILABLE).
pub async fn wrap(loaded: LoadedConfig, store_option: Option<&str>) -> anyhow::Result<ExitCode> {
    telemetry::install_logs(LogFormat::Auto)?;
    let read = PreparedConfig::new(loaded);
    // Of several servers the others are served.
    let missing = upstream_programs::missing(&read.config).count();
    if missing == read.config.upstreams.len()
        && let Some(code) = missing_program(&read.config)
    {
        return code;
    }
    ReportedWarnings::default().tell(&read);
    let config = read.config;
    // Listening for signals begins before anything is started: none may be missed.
    let mut signals = Signals::new()?;
    let body_bytes_max = config.listen.body_bytes_max.get();
    let wrapping = match WrappedGateway::start(config).await {
        Ok(wrapping) => wrapping,
        Err(error) => return refused(error, store_option),
    };
    // What a tool may give its host may be given to another tool.
    let line_bytes_max = body_bytes_max.max(wrapping.served.message_bytes_max);
    let (leaving, stop) = (CancellationToken::new(), CancellationToken::new());
    let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
    let ends = StdioEnds { input, output, is_reader_gone: is_stdout_closed };
    let served = {
        let serving = stdio::serve(wrapping.served.clone(), line_bytes_max, ends, (leaving.clone(), &stop));
        tokio::pin!(serving);
        tokio::select! {
            served = &mut serving => served,
            _ = signals.next() => {
                // The host is there still, and hears what becomes of the calls that it waits for.
                let telling = async {
                    wrapping.end_calls().await;
                    leaving.cancel();
                    sleep(TOLD_MAX).await;
                    // It asked something else that is not answered yet.
                    stop.cancel();
                    pending().await
                };
                tokio::select! {
                    served = &mut serving => served,
                    served = telling => served,
                }
            }
        }
    };
    tokio::select! {
        () = wrapping.end() => (),
        _ = signals.next() => tracing::warn!("ended before everything was put down"),
    }
    served.context("the host cannot be served any more")?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the reader of standard output has gone. A host that was killed is noticed so.
fn is_stdout_closed() -> bool {
    let output = std::io::stdout();
    let mut ends = [PollFd::new(&output, PollFlags::empty())];
    rustix::event::poll(&mut ends, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// A gateway without listeners.
struct WrappedGateway {
    parts: GatewayParts,
    upstreams: Vec<ServedUpstream>,
    /// What serves the host; where that is an endpoint of several upstreams, it is kept there.
    served: StreamClient,
    _combined: Option<ServedEndpoint>,
    /// Ends the streams of clients that listen.
    ending: CancellationToken,
    /// Ends what is in the background, however this goes.
    _stop: DropGuard,
}

/// Whoever started this program is the one person that is served; `with` is what the endpoint's other clients are served with.
fn host(endpoint: Arc<dyn Endpoint>, with: &SseServed) -> StreamClient {
    StreamClient {
        endpoint,
        upstream: Arc::clone(&with.name),
        path: with.path.to_string(),
        principal: Principal::local(),
        address: None,
        message_bytes_max: with.result_bytes_max.saturating_add(ENVELOPE_BYTES),
    }
}

impl WrappedGateway {
    async fn start(config: Config) -> anyhow::Result<Self> {
        files::check(&config, SystemClock.now())?;
        let GatewayKeys { sealer, prints, .. } = match config.store {
            // Nothing outlives this process, so no key need.
            StoreSettings::Memory(_) => GatewayKeys::ephemeral(),
            StoreSettings::Disk { .. } | StoreSettings::Postgres(_) => GatewayKeys::of(&config)?,
        };
        let life = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        let unless_ended = life.stop.clone().drop_guard();
        let readiness = Readiness::new();
        let opened = match Box::pin(task_store::open(&config, prints, (&life, &readiness))).await? {
            StoreOpening::Open(opened) => opened,
            StoreOpening::Waiting(opening) => Box::pin(task_store::wait(opening, &life, &readiness)).await?,
        };
        let OpenedStore { store, clock, .. } = opened;
        let ending = CancellationToken::new();
        let parts = GatewayParts::new((store, clock), (sealer, None), &config, life, ending.clone());
        let mut upstreams = Vec::with_capacity(config.upstreams.len());
        for one in config.upstreams {
            upstreams.push(ServedUpstream::new(one, &parts)?);
        }
        let targets = CallTargets::new(upstreams.iter().map(ServedUpstream::target));
        let members: Vec<_> = upstreams.iter().map(ServedUpstream::member).collect();
        let combined = config.endpoints.first().map(|settings| ServedEndpoint::new(settings, &members, &parts));
        let served = match (&combined, upstreams.first()) {
            (Some(combined), _) => host(Arc::<CombinedEndpoint>::clone(combined.endpoint()), combined.older()),
            (None, Some(only)) => host(Arc::<UpstreamEndpoint>::clone(only.endpoint()), only.older()),
            (None, None) => bail!("there is no server"),
        };
        parts.life.tracker.spawn(recovery::run(Arc::clone(&parts.engine), targets.clone(), parts.life.stop.clone()));
        parts.life.tracker.spawn(rows_without_runner::run(Arc::clone(&parts.engine), targets, parts.life.stop.clone()));
        parts.life.tracker.spawn(changes_elsewhere::run(Arc::clone(&parts.engine), parts.life.stop.clone()));
        Ok(Self { parts, upstreams, served, _combined: combined, ending, _stop: unless_ended })
    }

    /// Ends the calls that the host waits for, which it is told.
    async fn end_calls(&self) {
        self.take_back().await;
        tell_of_lost(&self.parts.live_calls().end(Reason::GatewayRestart));
    }

    /// Takes tasks back that nobody can ask for any more.
    async fn take_back(&self) {
        if !self.parts.store.reach().outlives_process() {
            // Fails where a task has ended meanwhile.
            let _ = timeout(DRAIN_MAX, take_back(&self.parts.engine)).await;
        }
    }

    /// Ends in order: tasks are put down where they can be found again, or taken back where nobody can; then the server
    /// ends.
    async fn end(self) {
        self.take_back().await;
        let calls = self.parts.live_calls();
        let GatewayParts { engine, store, life, leaving, .. } = self.parts;
        engine.drain(DRAIN_MAX).await;
        // Before the server ends, which is then no doing of its own.
        tell_of_lost(&calls.end(Reason::GatewayRestart));
        engine.drain(REST_MAX).await;
        leaving.cancel();
        self.ending.cancel();
        let closing = join_all(self.upstreams.iter().map(|one| one.served.upstream.close()));
        let closed = timeout(CLOSE_MAX, closing).await;
        life.stop.cancel();
        life.tracker.close();
        let rested = timeout(REST_MAX, life.tracker.wait()).await;
        store.close().await;
        let in_time = closed.is_ok() && rested.is_ok();
        tracing::info!(in_time, "ended");
    }
}

/// Says which calls end with the gateway, if any do.
fn tell_of_lost(calls: &CallSurvey) {
    if !calls.is_empty() {
        tracing::warn!(calls_lost = calls.lost(), %calls, "calls that were in progress end with the gateway");
    }
}

/// Cancels the tasks that nobody can ask for any more.
async fn take_back(engine: &Arc<Engine>) {
    let mut after = None;
    loop {
        let Ok(page) = engine.list(&Principal::local(), after, PAGE).await else { return };
        for task in page.tasks.iter().filter(|task| !task.is_settled()) {
            // It may have ended meanwhile.
            let _ = engine.cancel(&task.key).await;
        }
        after = page.next;
        if after.is_none() {
            return;
        }
    }
}
