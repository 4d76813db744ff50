//! The composition root: a configuration in, running parts out.
//!
//! Everything is put together here and nowhere else, so that tests start the same gateway as the
//! program does.

pub mod files;
pub mod keys;

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use crate::config::{self, Config, ConfigError, StoreSettings, UpstreamConfig};
use crate::demo::DemoServer;
use crate::engine::{AdmissionLimits, Engine, sweeper};
use crate::face::endpoint::UpstreamEndpoint;
use crate::face::sealed::Sealer;
use crate::face::session::{Bridge, SessionFace, SessionServed};
use crate::face::stateless::listen::Listeners;
use crate::face::stateless::{Piped, Served, StatelessFace};
use crate::server::admin::{self, Readiness};
use crate::server::{self, DrainPlan, Limits, Routes, Running, Site, StartError};
use crate::store::MemoryStore;
use crate::task::{Clock as _, SystemClock};
use crate::telemetry::{self, LogFormat};
use crate::upstream::Upstream;
use crate::upstream::era::EraUpstream;
use crate::upstream::http::{HttpUpstream, Life};
use crate::upstream::limits::Slots;
use crate::wire::ProtocolVersion;
use files::FileMistakes;

/// A configuration with mistakes, in itself or in a file that it names (`EX_USAGE`).
pub const EXIT_CONFIG: u8 = 64;

/// How long balancers have to notice a drain before nothing is accepted any more.
const DRAIN_NOTICE: Duration = Duration::from_secs(5);

/// How long an answer to a session client may be silent before a comment shows that it lives.
const LIFE_SIGN: Duration = Duration::from_secs(15);

/// How long before the end of a drain the streams of those who listen are ended.
const FAREWELL: Duration = Duration::from_secs(1);

const STARTING: &str = "starting";
const DRAINING: &str = "draining";

/// A gateway at work. Dropping it ends everything at once; [`Gateway::drain`] is the polite way.
#[derive(Debug)]
pub struct Gateway {
    clients: Running,
    admin: Running,
    engine: Arc<Engine>,
    upstreams: Vec<Arc<dyn Upstream>>,
    readiness: Readiness,
    life: Life,
    /// Ends the streams of session clients.
    leaving: CancellationToken,
    /// Ends the streams of stateless clients that listen.
    ending: CancellationToken,
    drain_max: Duration,
}

impl Gateway {
    /// Starts everything that a configuration names. Nothing is sent to an upstream yet.
    ///
    /// # Errors
    /// [`FileMistakes`] if a file that the configuration names is of no use; otherwise if an address cannot be
    /// bound, or the system's trusted roots cannot be read.
    pub async fn start(config: Config, metrics: PrometheusHandle) -> anyhow::Result<Self> {
        files::check(&config, SystemClock.now())?;
        let sealer = Arc::new(sealer(&config.folder)?);
        let life = Life { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        // Ends what is in the background if something below cannot be had.
        let unless_started = life.stop.clone().drop_guard();
        let readiness = Readiness::new();
        readiness.block(STARTING);
        let StoreSettings::Memory(limits) = config.store;
        let engine = Engine::new(
            Arc::new(MemoryStore::new(limits.stored_bytes_max)),
            Arc::new(SystemClock),
            Box::new(random_bits),
            AdmissionLimits { tasks_max: limits.tasks_max, tasks_per_principal_max: limits.tasks_per_principal_max },
        );
        life.tracker.spawn(sweeper::run(Arc::clone(&engine), life.stop.clone()));
        let leaving = CancellationToken::new();
        let ending = CancellationToken::new();
        let listeners = Listeners::new(ending.clone());
        let parts = Parts { engine, life, sealer, leaving, listeners };
        let mut upstreams = Vec::with_capacity(config.upstreams.len());
        let mut routes = Routes::new();
        for one in config.upstreams {
            let path = one.path.clone();
            let (upstream, endpoint) = open(one, &parts)?;
            upstreams.push(upstream);
            let endpoint = Arc::new(endpoint);
            let (kept, stop) = (Arc::clone(&endpoint), parts.life.stop.clone());
            parts.life.tracker.spawn(async move { kept.keep_tidy(&stop).await });
            routes = routes.with(path, endpoint);
        }
        let drain_max = config.listen.drain_max;
        let admin = server::start(admin::site(config.admin, readiness.clone(), metrics)).await?;
        let site = Site {
            name: "clients",
            settings: config.listen,
            limits: Limits::default(),
            principal: config.principal,
            routes,
        };
        let clients = server::start(site).await?;
        readiness.clear(STARTING);
        unless_started.disarm();
        let Parts { engine, life, leaving, .. } = parts;
        Ok(Self { clients, admin, engine, upstreams, readiness, life, leaving, ending, drain_max })
    }

    /// Where clients are served.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.clients.local_addr()
    }

    /// The beginning of every URL that clients are served at.
    #[must_use]
    pub fn base_url(&self) -> String {
        format!("{}://{}", self.clients.scheme(), self.clients.local_addr())
    }

    /// Where operators are served.
    #[must_use]
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin.local_addr()
    }

    /// Ends in phases: not ready, no new tasks, calls in progress are waited for, those who listen are told that
    /// it is over, upstream sessions are closed. Dropping the future ends everything at once.
    pub async fn drain(self, notice: Duration) {
        self.readiness.block(DRAINING);
        let plan = DrainPlan { notice, max: self.drain_max };
        let leave = async {
            tokio::time::sleep(notice).await;
            self.leaving.cancel();
        };
        let (drained, lost, ()) =
            tokio::join!(self.clients.drain(plan), finish(&self.engine, &self.ending, plan), leave);
        for upstream in &self.upstreams {
            upstream.close().await;
        }
        self.life.stop.cancel();
        self.life.tracker.close();
        // The operators' listener goes last: until here it says that the gateway drains.
        self.admin.drain(DrainPlan { notice: Duration::ZERO, max: Duration::ZERO }).await;
        tracing::info!(connections_cut = drained.aborted, calls_lost = lost, "drained");
    }
}

/// Waits for the calls in progress, then ends the streams of those who listen: they hear how their tasks end,
/// and hold up no drain. Returns how many calls were let go.
async fn finish(engine: &Engine, ending: &CancellationToken, plan: DrainPlan) -> usize {
    let farewell = FAREWELL.min(plan.max / 10);
    let patience = plan.notice + plan.max;
    let (early, ()) = tokio::join!(
        tokio::time::timeout(patience - farewell, engine.drain(patience)),
        tokio::time::sleep(plan.notice)
    );
    ending.cancel();
    match early {
        Ok(lost) => lost,
        Err(_) => engine.drain(farewell).await,
    }
}

/// What all upstreams share.
struct Parts {
    listeners: Arc<Listeners>,
    engine: Arc<Engine>,
    life: Life,
    sealer: Arc<Sealer>,
    leaving: CancellationToken,
}

/// Seals with the keys in `folder`, which are made at the first start.
fn sealer(folder: &Path) -> Result<Sealer, FileMistakes> {
    let ring = match keys::read_or_make(folder) {
        Ok(ring) => ring,
        // The store is in memory: nothing else outlives this process either.
        Err(error) if error.is_lack_of_a_place() => {
            tracing::warn!(%error, "sessions of clients end with this process");
            keys::ephemeral()
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Sealer::new(ring))
}

/// Puts together what serves one upstream.
fn open(config: UpstreamConfig, parts: &Parts) -> anyhow::Result<(Arc<dyn Upstream>, UpstreamEndpoint)> {
    let slots = Arc::new(Slots::new(Arc::clone(&config.name), config.slots));
    let is_certain = config.http.protocol.is_some_and(ProtocolVersion::is_stateless);
    let http = Arc::new(
        HttpUpstream::new(config.http, parts.life.clone())
            .with_context(|| format!("upstream {} cannot be used", config.name))?,
    );
    let upstream = Arc::new(http.for_stateless_clients());
    let bridge = Bridge { stateless: upstream.stateless(), eras: Arc::<EraUpstream>::clone(&upstream), is_certain };
    let session = SessionFace::new(SessionServed {
        engine: Arc::clone(&parts.engine),
        conduit: Arc::<HttpUpstream>::clone(&http),
        slots: Arc::clone(&slots),
        queue_deadline: config.slots.queue_deadline,
        rules: config.rules.clone(),
        timeouts: config.timeouts,
        call_timeouts: config.call_timeouts,
        edited_bytes_max: config.result_bytes_max,
        life_sign: LIFE_SIGN,
        life_signs: config.life_signs,
        sealer: Arc::clone(&parts.sealer),
        clock: Arc::new(SystemClock),
        random: random_bits,
        life: parts.life.clone(),
        leaving: parts.leaving.clone(),
        pool: Some(Arc::<HttpUpstream>::clone(&http)),
        bridge: Some(bridge),
    });
    let upstream: Arc<dyn Upstream> = upstream;
    let piped = Piped {
        conduit: http,
        sealer: Arc::clone(&parts.sealer),
        clock: Arc::new(SystemClock),
        life_sign: LIFE_SIGN,
        leaving: parts.leaving.clone(),
    };
    let face = StatelessFace::new(Served {
        upstream: Arc::clone(&upstream),
        engine: Arc::clone(&parts.engine),
        slots,
        queue_deadline: config.slots.queue_deadline,
        rules: config.rules,
        timeouts: config.timeouts,
        call_timeouts: config.call_timeouts,
        result_bytes_max: config.result_bytes_max,
        life_signs: config.life_signs,
        listeners: Arc::clone(&parts.listeners),
        sealer: Arc::clone(&parts.sealer),
        clock: Arc::new(SystemClock),
    })
    .with_pipe(piped);
    Ok((upstream, UpstreamEndpoint::new(face, session)))
}

/// 128 bits from the operating system.
///
/// # Panics
/// If the operating system has no randomness: then no id may be given out.
fn random_bits() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    u128::from_be_bytes(bytes)
}

/// Runs the gateway until a signal ends it. Without a file the quick start is served: the demo server
/// in this process, and its address in what is printed.
///
/// # Errors
/// If something that the configuration names cannot be had. Mistakes in the file itself, and in the files that it
/// names, are printed and end with [`EXIT_CONFIG`].
pub async fn serve(file: Option<PathBuf>) -> anyhow::Result<ExitCode> {
    telemetry::install_logs(LogFormat::Auto)?;
    let metrics = telemetry::install_metrics()?;
    let (demo_tracker, demo_stop) = (TaskTracker::new(), CancellationToken::new());
    let (config, is_quick_start) = match file {
        Some(file) => match configured(&file) {
            Ok(config) => (config, false),
            Err(mistakes) => {
                writeln!(io::stderr(), "{mistakes}").context("cannot print the mistakes")?;
                return Ok(ExitCode::from(EXIT_CONFIG));
            }
        },
        None => (quick_start(&demo_tracker, &demo_stop).await?, true),
    };
    // Listening for signals begins before the listeners: none may be missed.
    let mut signals = Signals::new()?;
    tracing::warn!("the task store is in memory: tasks and their results are lost when the gateway ends");
    let paths: Vec<String> = config.upstreams.iter().map(|upstream| upstream.path.clone()).collect();
    let upkeep = TaskTracker::new();
    upkeep.spawn(telemetry::keep_metrics(metrics.clone()));
    let started =
        if is_quick_start { start_on_free_ports(config, metrics).await } else { Gateway::start(config, metrics).await };
    let gateway = match started {
        Ok(gateway) => gateway,
        Err(error) => {
            let mistakes = error.downcast::<FileMistakes>()?;
            writeln!(io::stderr(), "{mistakes}").context("cannot print the mistakes")?;
            return Ok(ExitCode::from(EXIT_CONFIG));
        }
    };
    announce(&gateway, &paths, is_quick_start).context("cannot print the addresses")?;
    let notice = signals.next().await;
    tracing::info!("draining; a second signal ends at once");
    tokio::select! {
        () = gateway.drain(notice) => (),
        _ = signals.next() => tracing::warn!("ended before the drain was done"),
    }
    demo_stop.cancel();
    Ok(ExitCode::SUCCESS)
}

fn configured(file: &Path) -> Result<Config, ConfigError> {
    let loaded = config::load(file, &|name| std::env::var(name).ok())?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Ok(loaded.config)
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

/// Says where the gateway can be reached, and in the quick start what to try there.
fn announce(gateway: &Gateway, paths: &[String], is_quick_start: bool) -> io::Result<()> {
    let base = gateway.base_url();
    let mut out = io::stdout().lock();
    for path in paths {
        writeln!(out, "serving {base}{path}")?;
    }
    writeln!(out, "admin   http://{}", gateway.admin_address())?;
    if is_quick_start {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("taskgate"));
        let program = program.display();
        let url = format!("{base}/demo/mcp");
        writeln!(out, "The demo server is behind it; tasks are kept in memory until this process ends. Try:")?;
        writeln!(out, "  {program} call {url} greet '{{\"name\":\"Ada\"}}'")?;
        writeln!(out, "  {program} call {url} slow_report '{{\"seconds\":8,\"steps\":8}}'")?;
        writeln!(out, "  {program} call {url} slow_report '{{\"seconds\":60,\"steps\":60}}' --no-wait")?;
    }
    out.flush()
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for a signal; returns how long balancers have to notice. A person at a terminal has none.
    async fn next(&mut self) -> Duration {
        tokio::select! {
            _ = self.interrupt.recv() => Duration::ZERO,
            _ = self.terminate.recv() => DRAIN_NOTICE,
        }
    }
}
