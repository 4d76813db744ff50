//! Runs a gateway from its configuration to the signal that ends it.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use super::descriptors::ConnectionCapacity;
use super::files::FileMistakes;
use super::prepared_config::{PreparedConfig, ReportedWarnings, configured};
use super::reload_trigger::ReloadTrigger;
use super::sockets::{SocketError, Sockets};
use super::{EXIT_CONFIG, Gateway, service_manager, task_store};
use crate::config::{Config, StoreSettings};
use crate::demo::DemoServer;
use crate::server::StartError;
use crate::store::OpenError;
use crate::telemetry::{self, LogFormat};

/// How long balancers have to notice a drain before nothing is accepted any more.
const DRAIN_NOTICE: Duration = Duration::from_secs(5);

/// Runs the gateway until a signal ends it. Without a file the quick start is served: the demo server
/// in this process, and its address in what is printed.
///
/// # Errors
/// If something that the configuration names cannot be had. Mistakes in the file itself, and in the files that it
/// names, are printed and end with [`EXIT_CONFIG`].
pub async fn serve(file: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    telemetry::install_logs(LogFormat::Auto)?;
    let sockets = Sockets::from_environment().context("the sockets that were handed over are of no use")?;
    // Those who come meanwhile wait at the sockets for the next process; no balancer has to notice anything.
    let are_kept = sockets.clients.is_some();
    let metrics = telemetry::install_metrics()?;
    let (demo_tracker, demo_stop) = (TaskTracker::new(), CancellationToken::new());
    let (mut read, is_quick_start) = match &file {
        Some(file) => match configured(file) {
            Ok(read) => (read, false),
            Err(mistakes) => {
                writeln!(io::stderr(), "{mistakes}").context("cannot print the mistakes")?;
                return Ok(ExitCode::from(EXIT_CONFIG));
            }
        },
        None => (PreparedConfig::plain(quick_start(&demo_tracker, &demo_stop).await?), true),
    };
    let (connections, shortage) = ConnectionCapacity::provide(&mut read.config);
    read.shortage = shortage;
    let mut warned = ReportedWarnings::default();
    warned.tell(&read);
    let config = read.config;
    // Listening for signals begins before the listeners: none may be missed.
    let mut signals = Signals::new()?;
    let mut reloads = ReloadTrigger::new(file, &config, warned, connections)?;
    if matches!(config.store, StoreSettings::Memory(_)) {
        tracing::warn!("the task store is in memory: tasks and their results are lost when the gateway ends");
    }
    let folder = config.folder.clone();
    let paths: Vec<String> = config.upstreams.iter().map(|upstream| upstream.path.clone()).collect();
    let upkeep = TaskTracker::new();
    upkeep.spawn(telemetry::keep_metrics(metrics.clone()));
    let started = if is_quick_start {
        start_on_free_ports(config, metrics).await
    } else {
        Gateway::start_on(config, metrics, sockets).await
    };
    let mut gateway = match started {
        Ok(gateway) => gateway,
        Err(error) => {
            return refused(error);
        }
    };
    announce(&gateway, &paths, is_quick_start.then_some(&*folder)).context("cannot print the addresses")?;
    service_manager::tell_ready();
    upkeep.spawn(service_manager::keep_watched());
    let notice = loop {
        tokio::select! {
            notice = signals.next() => break notice,
            why = reloads.next() => reloads.carry_out(why, &mut gateway),
        }
    };
    let notice = if are_kept { Duration::ZERO } else { notice };
    service_manager::tell_stopping(notice + gateway.drain_max);
    tokio::select! {
        () = gateway.drain(notice) => (),
        _ = signals.next() => tracing::warn!("ended before the drain was done"),
    }
    demo_stop.cancel();
    Ok(ExitCode::SUCCESS)
}

/// Prints what keeps the gateway from starting, where it is in the configuration or in a file that it names.
pub(super) fn refused(error: anyhow::Error) -> anyhow::Result<ExitCode> {
    let (text, code) = match error.downcast::<OpenError>() {
        Ok(store) => (format!("key `store.path`: {store}"), task_store::exit_code(&store)),
        Err(other) => match other.downcast::<SocketError>() {
            Ok(open) => (open.to_string(), EXIT_CONFIG),
            Err(other) => (other.downcast::<FileMistakes>()?.to_string(), EXIT_CONFIG),
        },
    };
    writeln!(io::stderr(), "{text}").context("cannot print the mistakes")?;
    Ok(ExitCode::from(code))
}

/// The built-in configuration, with the demo server that it is about.
async fn quick_start(tracker: &TaskTracker, stop: &CancellationToken) -> anyhow::Result<Config> {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let demo = DemoServer::start(anywhere, tracker, stop.clone()).await.context("cannot start the demo server")?;
    let url = Url::parse(&demo.url()).context("the demo server has no usable address")?;
    Ok(Config::quick_start(url))
}

/// Starts the built-in configuration. Here, and only here, a taken port is replaced by a free one.
async fn start_on_free_ports(mut config: Config, metrics: PrometheusHandle) -> anyhow::Result<Gateway> {
    loop {
        let error = match Gateway::start(config.clone(), metrics.clone()).await {
            Ok(gateway) => return Ok(gateway),
            Err(error) => error,
        };
        let Some(StartError::Bind { address: taken, .. }) = error.downcast_ref() else { return Err(error) };
        let mut addresses = [&mut config.listen.address, &mut config.admin.address].into_iter();
        match addresses.find(|address| *address == taken && address.port() != 0) {
            Some(address) => address.set_port(0),
            None => return Err(error),
        }
    }
}

/// Says where the gateway can be reached, and in the quick start where tasks rest and what to try.
fn announce(gateway: &Gateway, paths: &[String], quick_start: Option<&Path>) -> io::Result<()> {
    let bound = gateway.base_url();
    let base = gateway.public_url().unwrap_or(&bound);
    let mut out = io::stdout().lock();
    for path in paths {
        writeln!(out, "serving {base}{path}")?;
    }
    if base != bound {
        writeln!(out, "listen  {bound}")?;
    }
    if let Some(address) = gateway.metrics_address() {
        writeln!(out, "metrics http://{address}")?;
    }
    writeln!(out, "admin   http://{}", gateway.admin_address())?;
    if let Some(folder) = quick_start {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("taskgate"));
        let program = program.display();
        let url = format!("{base}/demo/mcp");
        writeln!(out, "The demo server is behind it; tasks are kept in {}. Try:", folder.display())?;
        writeln!(out, "  {program} call {url} greet '{{\"name\":\"Ada\"}}'")?;
        writeln!(out, "  {program} call {url} slow_report '{{\"seconds\":8,\"steps\":8}}'")?;
        writeln!(out, "  {program} call {url} slow_report '{{\"seconds\":60,\"steps\":60}}' --no-wait")?;
    }
    out.flush()
}

/// SIGINT and SIGTERM.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for a signal; returns how long balancers have to notice. A person at a terminal has none.
    pub(super) async fn next(&mut self) -> Duration {
        tokio::select! {
            _ = self.interrupt.recv() => Duration::ZERO,
            _ = self.terminate.recv() => DRAIN_NOTICE,
        }
    }
}
