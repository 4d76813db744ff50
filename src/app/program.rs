//! Runs a gateway from its configuration to the signal that ends it.

use std::env;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use super::descriptors::ConnectionCapacity;
use super::dev::{self, DevSettings, Development};
use super::files::{self, FileMistakes, FileUse, PreparedConfig, ReportedWarnings, configured};
use super::listeners::StoreSource;
use super::live_calls::NOTIFY_MAX;
use super::reload::ReloadSummary;
use super::reload_trigger::{ReloadTrigger, signal};
use super::shared_store::{RETRY, RetryReasons};
use super::sockets::{SocketError, Sockets};
use super::task_store::{self, IncarnationEnd, SharedIncarnation, StoreRefusal};
use super::{EXIT_CONFIG, EXIT_UNAVAILABLE, Gateway, service_manager};
use crate::audit::AuditOpenError;
use crate::config::{CommandLineConfig, CommandLineServer, Config, ConfigError, StoreSettings};
use crate::demo::DemoServer;
use crate::own_command::OwnCommand;
use crate::server::RunningListener;
use crate::store::postgres::PriorIncarnation;
use crate::system::{self, SignalStream};
use crate::task::Reason;
use crate::waits::or_pending;
use crate::{console, dev_output, telemetry};

/// The time for load balancers to notice a drain before no connection is accepted.
const DRAIN_NOTICE: Duration = Duration::from_secs(5);
/// The time for closing a shared store when a signal stops the start.
const STOP_MAX: Duration = Duration::from_secs(5);
/// A SIGINT or SIGHUP this soon after another repeats it: a terminal and a launcher, or a shell and the kernel, may send one each.
const REPETITION: Duration = Duration::from_millis(300);

#[derive(Clone, Debug)]
pub enum ServedConfig {
    File(PathBuf),
    /// The command line. Without a server it serves the demo server in this process.
    CommandLine(CommandLineConfig),
    /// The command line with a program that is restarted when its files change.
    Development(CommandLineConfig, DevSettings),
}

/// Runs until a signal. Prints mistakes and ends with [`EXIT_CONFIG`], or [`EXIT_UNAVAILABLE`] if a program is missing.
pub async fn serve(served: ServedConfig) -> anyhow::Result<ExitCode> {
    let developed = if let ServedConfig::Development(_, settings) = &served { Some(settings.clone()) } else { None };
    let _log = telemetry::install_logs(if developed.is_some() { telemetry::WARNINGS } else { telemetry::INFORMATION })?;
    let sockets = Sockets::from_environment().context("the passed sockets cannot be used")?;
    let metrics = telemetry::install_metrics()?;
    let (demo_tracker, demo_stop) = (TaskTracker::new(), CancellationToken::new());
    let (announcement, file, port) = match &served {
        ServedConfig::File(file) => (Announcement::Addresses, Some(file.clone()), None),
        ServedConfig::CommandLine(line) if line.servers.is_empty() => (Announcement::Demo, None, line.port),
        ServedConfig::CommandLine(line) | ServedConfig::Development(line, _) => (Announcement::Hosts, None, line.port),
    };
    let mut prepared = match prepared(served, &demo_tracker, &demo_stop).await? {
        Ok(prepared) => prepared,
        Err(mistakes) => return print_and_end(&mistakes, EXIT_CONFIG),
    };
    if file.is_none()
        && let Some(code) = missing_program(&prepared.config)
    {
        return code;
    }
    let (connections, shortage) = ConnectionCapacity::provide(&mut prepared.config);
    prepared.shortage = shortage;
    let mut reported = ReportedWarnings::default();
    reported.log(&prepared);
    let config = prepared.config;
    // Signal handlers before the listeners: no signal may be missed.
    let mut signals = if file.is_some() { Signals::new()? } else { Signals::with_hangup()? };
    let mut reloads = ReloadTrigger::new(file, &config, reported, connections)?;
    let output_guard = developed.is_some().then(dev_output::install);
    let mut development = developed.map(|settings| Development::new(&settings, &config)).transpose()?;
    if matches!(config.store, StoreSettings::Memory(_)) {
        tracing::warn!("the task store is in memory: tasks and their results are lost when the gateway ends");
    }
    let paths = names_and_paths(&config);
    let upkeep = TaskTracker::new();
    upkeep.spawn(telemetry::keep_metrics(metrics.clone()));
    upkeep.spawn(service_manager::keep_watched());
    // New clients wait at the sockets for the next process; load balancers need no notice.
    let are_kept = sockets.clients.is_some();
    let has_file = announcement == Announcement::Addresses;
    let start_cancelled = CancellationToken::new();
    let start = Box::pin(async {
        if has_file || are_kept {
            Gateway::start_until(config, metrics.clone(), sockets, start_cancelled.clone()).await
        } else {
            start_on_free_ports(config, metrics.clone(), port, start_cancelled.clone()).await
        }
    });
    let Some(started) = started(start, &start_cancelled, &mut signals).await else { return Ok(ExitCode::SUCCESS) };
    let gateway = match started {
        Ok(gateway) => gateway,
        Err(error) => return refused(error, (!has_file).then_some("--store")),
    };
    if let Err(error) = announcement.print(&gateway, &paths) {
        // Continues: a launcher may close its pipe after the first line.
        tracing::warn!(%error, "the addresses cannot be printed");
    }
    service_manager::notify_ready();
    development.iter_mut().for_each(|development| development.start(&gateway));
    let (mut gateway, notice) = match until_signal(gateway, &metrics, &mut signals, &mut reloads, development).await {
        Ok(ServingEnd::Signal(gateway, notice)) => (*gateway, notice),
        Ok(ServingEnd::Nothing) => return Ok(ExitCode::SUCCESS),
        Ok(ServingEnd::StoreLost) => return Ok(ExitCode::from(task_store::EXIT_IO)),
        Err(error) => return refused(error, None),
    };
    if output_guard.is_some() {
        dev::prepare_end(&mut gateway);
    }
    end(gateway, (!are_kept).then_some(notice), &mut signals, &mut reloads, &upkeep).await;
    demo_stop.cancel();
    Ok(ExitCode::SUCCESS)
}

fn names_and_paths(config: &Config) -> Vec<(String, String)> {
    let endpoints = config.endpoints.iter().map(|one| (one.path.to_string(), one.path.to_string()));
    let upstreams = config.upstreams.iter().map(|one| (one.name.to_string(), one.path.clone()));
    endpoints.chain(upstreams).collect()
}

/// `None` if a signal comes first.
async fn started(
    mut start: Pin<Box<impl Future<Output = anyhow::Result<Gateway>>>>,
    start_cancelled: &CancellationToken,
    signals: &mut Signals,
) -> Option<anyhow::Result<Gateway>> {
    tokio::select! {
        started = &mut start => Some(started),
        _ = signals.next() => {
            end_start(start, start_cancelled).await;
            None
        }
    }
}

/// Stops a start, and closes its shared store: other replicas would wait for its lease.
async fn end_start(start: impl Future<Output = anyhow::Result<Gateway>>, start_cancelled: &CancellationToken) {
    start_cancelled.cancel();
    drop(timeout(STOP_MAX, start).await);
}

enum ServingEnd {
    /// A signal: the gateway must be drained, with this notice for load balancers.
    Signal(Box<Gateway>, Duration),
    StoreLost,
    /// A signal arrived before a successor had started.
    Nothing,
}

/// Serves until a signal arrives. If other replicas take over from this one, it restarts as a new incarnation.
async fn until_signal(
    mut gateway: Gateway,
    metrics: &PrometheusHandle,
    signals: &mut Signals,
    reloads: &mut ReloadTrigger,
    mut development: Option<Development>,
) -> anyhow::Result<ServingEnd> {
    loop {
        let ended = tokio::select! {
            notice = signals.next() => return Ok(ServingEnd::Signal(Box::new(gateway), notice)),
            ended = or_pending(gateway.shared.as_ref().map(SharedIncarnation::ended)) => ended,
            why = reloads.next() => {
                let applied = reloads.carry_out(why, |config| gateway.reload(config));
                gateway.audit_reload(applied);
                continue;
            }
            changed = or_pending(development.as_mut().map(Development::next)) => {
                development.iter_mut().for_each(|development| development.restart(&gateway, &changed));
                continue;
            }
        };
        let successor = match ended {
            IncarnationEnd::Replaced(former) => Some(Successor::of(&gateway, former)),
            IncarnationEnd::StoreLost => None,
        };
        Box::pin(gateway.end_incarnation(ended)).await;
        let Some(successor) = successor else { return Ok(ServingEnd::StoreLost) };
        gateway = match restart(successor, metrics, signals, reloads).await? {
            Some(begun) => begun,
            None => return Ok(ServingEnd::Nothing),
        };
        tracing::info!("restarted beside the other replicas");
    }
}

/// Starts a successor, while clients wait and reloads continue. `None` if a signal arrives first.
async fn restart(
    mut successor: Successor,
    metrics: &PrometheusHandle,
    signals: &mut Signals,
    reloads: &mut ReloadTrigger,
) -> anyhow::Result<Option<Gateway>> {
    loop {
        let start_cancelled = CancellationToken::new();
        let mut begun = Box::pin(successor.begin(metrics, &start_cancelled));
        loop {
            tokio::select! {
                begun = &mut begun => return begun.map(Some),
                _ = signals.next() => {
                    end_start(begun, &start_cancelled).await;
                    return Ok(None);
                }
                why = reloads.next() => if reloads.carry_out(why, |config| successor.reload(config)) == Some(true) {
                    break;
                }
            }
        }
    }
}

/// Drains a gateway; another signal ends it at once. SIGHUP reopens the audit file, and reads no configuration.
async fn end(
    gateway: Gateway,
    notice: Option<Duration>,
    signals: &mut Signals,
    reloads: &mut ReloadTrigger,
    upkeep: &TaskTracker,
) {
    let drain_max = notice.unwrap_or_default() + gateway.drain_max;
    service_manager::notify_stopping(drain_max);
    upkeep.spawn(service_manager::keep_stopping(drain_max));
    let (calls, audit) = (gateway.live_calls(), gateway.audit());
    let mut draining = Box::pin(gateway.drain(notice));
    loop {
        tokio::select! {
            () = &mut draining => return,
            _ = signals.next() => break,
            _ = reloads.next() => audit.iter().for_each(|audit| audit.reopen()),
        }
    }
    let ended = calls.end(Reason::GatewayRestart);
    tracing::warn!(calls_lost = ended.lost(), calls = %ended, "ended before the drain was done");
    // While the connections still exist. Times out if the notice or a client takes longer.
    let _ = timeout(NOTIFY_MAX, draining).await;
}

/// Prints why no gateway starts, if a file is at fault. `option`: for a command line, its option for the store's folder.
pub(super) fn refused(error: anyhow::Error, option: Option<&str>) -> anyhow::Result<ExitCode> {
    let (mut text, code) = match error.downcast::<StoreRefusal>() {
        Ok(open) => (format!("key `{}`: {open}", open.key()), task_store::exit_code(&open)),
        Err(other) => match other.downcast::<SocketError>() {
            Ok(open) => (open.to_string(), EXIT_CONFIG),
            Err(other) => match other.downcast::<AuditOpenError>() {
                Ok(open) => (format!("key `audit.path`: {open}"), code_of(&open)),
                Err(other) => (other.downcast::<FileMistakes>()?.to_string(), EXIT_CONFIG),
            },
        },
    };
    if let Some(option) = option {
        text = text.replace("key `store.path`", option).replace("`store.path`", option);
        let lines = text.lines().map(|line| match line.split_once(".tls.ca`: ") {
            Some((key, why)) if key.starts_with("key `upstreams.") => format!("--ca: {why}"),
            _ => line.to_owned(),
        });
        text = lines.collect::<Vec<_>>().join("\n");
    }
    print_and_end(&text, code)
}

const fn code_of(error: &AuditOpenError) -> u8 {
    match error {
        AuditOpenError::Locked { .. } => task_store::EXIT_LOCKED,
        AuditOpenError::Foreign { .. } => EXIT_CONFIG,
        AuditOpenError::File { .. } => task_store::EXIT_IO,
    }
}

fn print_and_end(why: &dyn Display, code: u8) -> anyhow::Result<ExitCode> {
    writeln!(console::stderr(), "{why}").context("cannot print the mistakes")?;
    Ok(ExitCode::from(code))
}

/// The exit if a program of the command line is missing. In a file it is one of several, and may be installed later.
pub(super) fn missing_program(config: &Config) -> Option<anyhow::Result<ExitCode>> {
    let (_, missing) = files::missing_programs(config).next()?;
    Some(print_and_end(&format_args!("taskgate: {missing}"), EXIT_UNAVAILABLE))
}

/// Reads the configuration, and starts the demo server if no server is named.
async fn prepared(
    served: ServedConfig,
    tracker: &TaskTracker,
    demo_stop: &CancellationToken,
) -> anyhow::Result<Result<PreparedConfig, ConfigError>> {
    Ok(match served {
        ServedConfig::File(file) => configured(&file, FileUse::Start),
        ServedConfig::CommandLine(mut line) | ServedConfig::Development(mut line, _) => {
            if line.servers.is_empty() {
                line.servers.push(demo_server(tracker, demo_stop).await?);
            }
            line.resolve(&|name| env::var(name).ok()).map(PreparedConfig::new)
        }
    })
}

async fn demo_server(tracker: &TaskTracker, demo_stop: &CancellationToken) -> anyhow::Result<CommandLineServer> {
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let demo = DemoServer::start(anywhere, tracker, demo_stop.clone()).await.context("cannot start the demo server")?;
    let url = Url::parse(&demo.url()).context("the demo server has no usable address")?;
    Ok(CommandLineServer::demo(url))
}

/// Starts a configuration from the command line. Only here is a taken port replaced by a free one, unless the user
/// asked for it. Ports are bound before the store is opened, since a second attempt would find the store open.
async fn start_on_free_ports(
    mut config: Config,
    metrics: PrometheusHandle,
    asked: Option<u16>,
    start_cancelled: CancellationToken,
) -> anyhow::Result<Gateway> {
    let sockets = Sockets {
        clients: Some(free_socket(&mut config.listen.address, asked)?),
        admin: Some(free_socket(&mut config.admin.address, asked)?),
        ..Sockets::default()
    };
    Gateway::start_until(config, metrics, sockets, start_cancelled).await
}

fn free_socket(address: &mut SocketAddr, asked: Option<u16>) -> anyhow::Result<TcpListener> {
    let taken = match TcpListener::bind(*address) {
        Ok(socket) => return Ok(socket),
        Err(error) => error,
    };
    if asked == Some(address.port()) {
        bail!("--port: cannot listen on {address}: {taken}; write another one, or omit it to use a free one");
    }
    if address.port() == 0 {
        return Err(taken).with_context(|| format!("cannot listen on {address}"));
    }
    address.set_port(0);
    TcpListener::bind(*address).with_context(|| format!("cannot listen on {address}"))
}

pub(super) struct Signals {
    interrupt: SignalStream,
    terminate: SignalStream,
    /// SIGHUP, where no configuration file can be read again.
    hangup: Option<SignalStream>,
    last: LastSignal,
}

/// The time of the last SIGINT or SIGHUP that counted.
#[derive(Default)]
struct LastSignal(Option<Instant>);

impl LastSignal {
    /// Whether a signal of this time is another one, and no repetition.
    fn is_other(&mut self, now: Instant) -> bool {
        let is_other = self.0.is_none_or(|last| now.duration_since(last) >= REPETITION);
        if is_other {
            self.0 = Some(now);
        }
        is_other
    }
}

impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        let signals = system::interrupts().and_then(|interrupt| Ok((interrupt, system::terminations()?)));
        let (interrupt, terminate) = signals.context("cannot listen for signals")?;
        Ok(Self { interrupt, terminate, hangup: None, last: LastSignal::default() })
    }

    /// Also SIGHUP, which a closed terminal sends, unless it was ignored at the start.
    fn with_hangup() -> anyhow::Result<Self> {
        let is_ignored = system::is_hangup_ignored();
        let hangup = (!is_ignored).then(system::hangups).transpose().context("cannot listen for signals")?;
        Ok(Self { hangup, ..Self::new()? })
    }

    /// Waits for a signal that is no repetition; returns the notice for load balancers, zero for a user at a terminal.
    pub(super) async fn next(&mut self) -> Duration {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return DRAIN_NOTICE,
                _ = self.interrupt.recv() => (),
                _ = signal(&mut self.hangup) => (),
            }
            if self.last.is_other(Instant::now()) {
                return Duration::ZERO;
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announcement {
    /// None: the operator wrote a configuration file.
    Addresses,
    Demo,
    Hosts,
}

/// An upstream's name and path; for an endpoint of several upstreams, its path twice.
type ServedPath = (String, String);

impl Announcement {
    /// Prints the announcement. `served` has at least one upstream.
    fn print(self, gateway: &Gateway, served: &[ServedPath]) -> io::Result<()> {
        let bound = gateway.base_url();
        let base = gateway.public_url().unwrap_or(&bound);
        let urls: Vec<_> = served.iter().map(|(name, path)| (name.as_str(), format!("{base}{path}"))).collect();
        let mut out = io::stdout().lock();
        for (_, url) in &urls {
            writeln!(out, "serving {url}")?;
        }
        if base != bound {
            writeln!(out, "listen  {bound}")?;
        }
        if let Some(address) = gateway.metrics_address() {
            writeln!(out, "metrics http://{address}")?;
        }
        writeln!(out, "admin   http://{}", gateway.admin_address())?;
        let folder = gateway.folder().display();
        match self {
            Self::Addresses => (),
            Self::Demo => {
                writeln!(out, "The demo server is behind it; tasks are kept in {folder}. Try:")?;
                demo(&mut out, &urls)?;
            }
            Self::Hosts => {
                writeln!(out, "Tasks are kept in {folder}.")?;
                hosts(&mut out, &urls)?;
            }
        }
        out.flush()
    }
}

fn demo(out: &mut impl Write, urls: &[(&str, String)]) -> io::Result<()> {
    let program = OwnCommand::of_this_process().words().join(" ");
    for (_, url) in urls {
        writeln!(out, "  {program} call {url} greet '{{\"name\":\"Ada\"}}'")?;
        writeln!(out, "  {program} call {url} slow_report '{{\"seconds\":8,\"steps\":8}}'")?;
        writeln!(out, "  {program} call {url} slow_report '{{\"seconds\":60,\"steps\":60}}' --no-wait")?;
    }
    Ok(())
}

fn hosts(out: &mut impl Write, urls: &[(&str, String)]) -> io::Result<()> {
    let words = OwnCommand::of_this_process().words();
    let program = words.join(" ");
    writeln!(out, "Claude Code:")?;
    for (name, url) in urls {
        writeln!(out, "  claude mcp add --transport http {name} {url}")?;
    }
    let servers = |entry: &dyn Fn(&str) -> Value| {
        Value::Object(urls.iter().map(|(name, url)| ((*name).to_owned(), entry(url))).collect::<Map<_, _>>())
    };
    let over_http = servers(&|url| json!({ "type": "http", "url": url }));
    writeln!(out, "VS Code, in .vscode/mcp.json:\n  {}", json!({ "servers": over_http }))?;
    let over_stdio = servers(&|url| {
        let arguments: Vec<_> = words.iter().skip(1).map(String::as_str).chain(["wrap", "--url", url]).collect();
        json!({ "command": words.first(), "args": arguments })
    });
    writeln!(out, "A desktop host, in its JSON:\n  {}", json!({ "mcpServers": over_stdio }))?;
    writeln!(out, "A shell, where the first names the tools:")?;
    for (_, url) in urls {
        writeln!(out, "  {program} tools {url}\n  {program} call {url} TOOL '{{}}'")?;
    }
    Ok(())
}

/// The settings and sockets with which this process restarts its gateway. Clients that connect meanwhile wait.
#[derive(Debug)]
struct Successor {
    started: Config,
    config: Config,
    addresses: UsedAddresses,
    sockets: Arc<Sockets>,
    former: PriorIncarnation,
}

/// The addresses at which the gateway listens. Configured addresses may have port 0, or differ from passed sockets.
#[derive(Clone, Copy, Debug)]
struct UsedAddresses {
    clients: SocketAddr,
    admin: SocketAddr,
    metrics: Option<SocketAddr>,
    replicas: Option<SocketAddr>,
}

impl Successor {
    fn of(gateway: &Gateway, former: PriorIncarnation) -> Self {
        let started = gateway.started.clone();
        let addresses = UsedAddresses {
            clients: gateway.address(),
            admin: gateway.admin_address(),
            metrics: gateway.metrics_address(),
            replicas: gateway.replica_address(),
        };
        let sockets = Sockets {
            clients: gateway.clients.socket(),
            admin: gateway.admin.socket(),
            metrics: gateway.metrics.as_ref().and_then(RunningListener::socket),
            replicas: gateway.replicas.as_ref().and_then(|replicas| replicas.running.socket()),
        };
        let config = gateway.current.clone().within(&started);
        Self { config, started, addresses, sockets: Arc::new(sockets), former }
    }

    /// Reloads as [`Gateway::reload`], or not at all. Replaces start-only files, too ([`Config::take_moved_files`]).
    fn reload(&mut self, config: Config) -> anyhow::Result<ReloadSummary> {
        files::check(&config, FileUse::Start)?;
        let mut started = self.started.clone();
        started.take_moved_files(&config);
        let need_restart = config.need_restart(&started);
        let config = config.within(&started);
        self.sockets.check(&config)?;
        (self.started, self.config) = (started, config);
        Ok(ReloadSummary { opened: self.config.upstreams.len(), need_restart, ..ReloadSummary::default() })
    }

    /// Starts the gateway with the current configuration. Every failure is retried but a permanent refusal by the store
    /// or the rules for sockets: all of it worked before, and files may be being rewritten just now.
    fn begin(
        &self,
        metrics: &PrometheusHandle,
        start_cancelled: &CancellationToken,
    ) -> impl Future<Output = anyhow::Result<Gateway>> + Send + use<> {
        let (mut config, sockets, metrics) = (self.config.clone(), Arc::clone(&self.sockets), metrics.clone());
        let (started, current, former) = (self.started.clone(), config.clone(), self.former);
        let start_cancelled = start_cancelled.clone();
        let used = self.addresses;
        (config.listen.address, config.admin.address, config.metrics) = (used.clients, used.admin, used.metrics);
        if let (StoreSettings::Postgres(database), Some(address)) = (&mut config.store, used.replicas) {
            database.replica.address = Some(address);
        }
        async move {
            let (mut reasons, begun) = (RetryReasons::default(), Instant::now());
            loop {
                let (source, cancelled) = (StoreSource::ConfigAgain(former), start_cancelled.clone());
                let start = Gateway::start_with(config.clone(), metrics.clone(), sockets.again(), source, cancelled);
                let error = match Box::pin(start).await {
                    // A reload compares addresses with those in the file of the first start.
                    Ok(mut gateway) => {
                        (gateway.started, gateway.current) = (started, current);
                        return Ok(gateway);
                    }
                    Err(error) => error,
                };
                let refusal = error.downcast_ref::<StoreRefusal>();
                let is_final = refusal.is_some_and(|refusal| !refusal.is_tried_by_a_successor(begun.elapsed()));
                if is_final || error.is::<SocketError>() || start_cancelled.is_cancelled() {
                    return Err(error);
                }
                reasons.log(format!("{error:#}"));
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_two_senders_repeat_counts_once() {
        let mut last = LastSignal::default();
        let first = Instant::now();
        let counted = [0, 1, 299, 300, 599, 601].map(|ms| last.is_other(first + Duration::from_millis(ms)));
        assert_eq!(counted, [true, false, false, true, false, true]);
    }

    #[test]
    fn a_taken_port_is_replaced_by_a_free_one_unless_it_was_requested() {
        let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let taken = holder.local_addr().unwrap();
        for asked in [None, Some(0), Some(taken.port() ^ 1)] {
            let mut address = taken;
            let socket = free_socket(&mut address, asked).unwrap();
            assert_ne!(socket.local_addr().unwrap(), taken);
            assert_eq!(address.port(), 0, "what the configuration has now: {asked:?}");
        }
        let refused = free_socket(&mut taken.clone(), Some(taken.port())).unwrap_err().to_string();
        assert!(refused.contains(&format!("--port: cannot listen on {taken}: ")), "{refused}");
        // The address belongs to no machine, so no port of it can be bound.
        let nowhere: SocketAddr = "192.0.2.1:0".parse().unwrap();
        assert!(free_socket(&mut nowhere.clone(), None).unwrap_err().to_string().contains("192.0.2.1:0"));
    }
}
