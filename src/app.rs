//! Composes running parts from a configuration. Tests start the same gateway as the program does.

mod descriptors;
mod dev;
mod drain;
pub mod files;
mod listeners;
mod live_calls;
mod operators;
mod program;
pub mod reload;
mod reload_trigger;
mod replica;
pub mod sealing_key;
#[cfg(unix)]
pub mod service_manager;
#[cfg(not(unix))]
pub mod service_manager {
    use std::time::Duration;

    pub const fn notify_ready() {}

    pub const fn notify_reloading() {}

    pub const fn notify_stopping(_: Duration) {}

    pub async fn keep_stopping(_: Duration) {
        std::future::pending().await
    }

    pub async fn keep_watched() {}
}
mod shared_store;
pub mod sockets;
pub mod task_store;
mod token_keys;
mod wrap;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::header::AUTHORIZATION;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::{AuditAct, AuditEvent, AuditLog, AuditOpenError};
use crate::config::{Config, ServerSettings, StoreSettings, UpstreamConfig};
use crate::engine::recovery::{self, CallTargets};
use crate::engine::{Engine, changes_elsewhere, sweeper};
use crate::face::client_login::{ClientLogin, PublicAddress};
use crate::face::combined::CombinedSessions;
use crate::face::listen_permits::ListenPermits;
use crate::face::rates::Rates;
use crate::face::sealed::{KeyPrint, Sealer, SealingKeys};
use crate::face::served::Served;
use crate::face::session_owners::SessionOwners;
use crate::face::sse::SseStreams;
use crate::face::tool_renames::ToolRenamer;
use crate::face::unmatched_rules::UnmatchedRules;
use crate::random;
use crate::server::admin::{Readiness, ReasonWeight};
use crate::server::tokens::seen_proofs::SeenProofs;
use crate::server::{Authenticator, ListenerSpec, RunningListener};
use crate::shared_limits::SharedLimits;
use crate::store::TaskStore;
use crate::task::Clock;
use crate::upstream::http::SessionUpstream;
use crate::upstream::limits::CallPermitsByName;
use crate::upstream::upstream_health::{UpstreamHealth, UpstreamHealthList};
use crate::upstream::{SessionMemories, TaskScope};
use crate::waits::unless_cancelled;
use crate::wire::ProtocolVersion;
use files::{FileMistakes, FileUse};
use listeners::{StoreSource, WaitingListeners, clients_site, listen, listen_for_probes, open_store};
use live_calls::LiveCalls;
use operators::OperatorsView;
use reload::{ClosingUpstream, Fingerprint, RetiredUpstreams, ServedEndpoint, ServedUpstream, add_endpoints};
use replica::{ReplicaFollower, ReplicaListener};
use shared_store::host_name;
use sockets::Sockets;
use task_store::{OpenedStore, SharedIncarnation};

pub use dev::DevSettings;
pub use program::{ServedConfig, serve};
pub use replica::ReplicaSetup;
pub use wrap::wrap;

/// The exit code for a mistake in the configuration or in a file that it names (`EX_USAGE`).
pub const EXIT_CONFIG: u8 = 64;
/// The exit code for an unreachable server or a missing program (`EX_UNAVAILABLE`).
pub const EXIT_UNAVAILABLE: u8 = 69;

const STARTING: &str = "starting";

/// A running gateway. Dropping it ends everything at once; [`Gateway::drain`] ends it gracefully.
#[derive(Debug)]
pub struct Gateway {
    clients: RunningListener,
    admin: RunningListener,
    operators: ListenerSpec,
    metrics: Option<RunningListener>,
    replicas: Option<Box<ReplicaListener>>,
    parts: GatewayParts,
    shared: Option<SharedIncarnation>,
    /// The targets at which calls of earlier processes resume.
    targets: CallTargets,
    upstreams: Vec<ServedUpstream>,
    endpoints: Vec<ServedEndpoint>,
    healths: UpstreamHealthList,
    tokens: Option<token_keys::FreshKeys>,
    /// Kept even while no tokens are accepted: no proof is used twice.
    proofs: Arc<SeenProofs>,
    retired: RetiredUpstreams,
    /// Removed upstreams that still serve their tasks.
    gone: Vec<ClosingUpstream>,
    /// The configuration of the start, for settings that only a start can change.
    started: Config,
    current: Config,
    /// The contents of the files that `current` names.
    files: Fingerprint,
    readiness: Readiness,
    /// Ends the subscription streams of stateless clients.
    listens_end: CancellationToken,
    drain_max: Duration,
}

struct StartParts {
    config: Config,
    callers: Authenticator,
    metrics: PrometheusHandle,
    scope: TaskScope,
    readiness: Readiness,
    sockets: Sockets,
}

/// The faces of the start's configuration, before a listener serves them.
struct FirstFaces {
    upstreams: Vec<ServedUpstream>,
    endpoints: Vec<ServedEndpoint>,
    targets: CallTargets,
    healths: UpstreamHealthList,
}

impl FirstFaces {
    fn new(config: &Config, parts: &GatewayParts) -> anyhow::Result<Self> {
        let upstreams = config.upstreams.iter().map(|one| ServedUpstream::new(one.clone(), parts, Arc::default()));
        let upstreams = upstreams.collect::<Result<Vec<_>, _>>()?;
        let members: Vec<_> = upstreams.iter().map(ServedUpstream::member).collect();
        let endpoints = config.endpoints.iter().map(|one| ServedEndpoint::new(one, &members, parts)).collect();
        let targets = CallTargets::new(upstreams.iter().map(|one| one.served.target()));
        let healths = UpstreamHealthList::new(&parts.permits);
        healths.set(upstreams.iter().map(|one| Arc::clone(&one.health)).collect());
        Ok(Self { upstreams, endpoints, targets, healths })
    }
}

/// Resumes calls of earlier processes, and follows the rows and the membership of other replicas.
fn start_background(parts: &GatewayParts, targets: &CallTargets, follower: Option<ReplicaFollower>) {
    let (tracker, engine, stop) = (&parts.scope.tracker, || Arc::clone(&parts.engine), || parts.scope.stop.clone());
    tracker.spawn(recovery::run(engine(), targets.clone(), stop()));
    tracker.spawn(recovery::resume_rows_without_runner(engine(), targets.clone(), stop()));
    tracker.spawn(changes_elsewhere::run(engine(), stop()));
    if let Some(follower) = follower {
        tracker.spawn(stop().run_until_cancelled_owned(follower.run()));
    }
}

impl Gateway {
    /// Starts all that a configuration names; sends nothing to an upstream yet. [`FileMistakes`] if a file is unusable.
    pub async fn start(config: Config, metrics: PrometheusHandle) -> anyhow::Result<Self> {
        Self::start_on(config, metrics, Sockets::default()).await
    }

    /// As [`Gateway::start`], on sockets that listen already. Fails if more networks reach a socket than configured.
    pub async fn start_on(config: Config, metrics: PrometheusHandle, sockets: Sockets) -> anyhow::Result<Self> {
        Self::start_until(config, metrics, sockets, CancellationToken::new()).await
    }

    /// As [`Gateway::start_on`]. Fails once `start_cancelled` is cancelled, and leaves no live incarnation in a shared store.
    pub async fn start_until(
        config: Config,
        metrics: PrometheusHandle,
        sockets: Sockets,
        start_cancelled: CancellationToken,
    ) -> anyhow::Result<Self> {
        Box::pin(Self::start_with(config, metrics, sockets, StoreSource::Config, start_cancelled)).await
    }

    /// As [`Gateway::start_on`], as a replica on an open store: for tests, which run several gateways in one process.
    pub async fn start_beside(
        config: Config,
        metrics: PrometheusHandle,
        sockets: Sockets,
        beside: ReplicaSetup,
    ) -> anyhow::Result<Self> {
        Box::pin(Self::start_with(
            config,
            metrics,
            sockets,
            StoreSource::Given(Box::new(beside)),
            CancellationToken::new(),
        ))
        .await
    }

    async fn start_with(
        config: Config,
        metrics: PrometheusHandle,
        sockets: Sockets,
        source: StoreSource,
        start_cancelled: CancellationToken,
    ) -> anyhow::Result<Self> {
        sockets.check(&config)?;
        files::check(&config, FileUse::Start)?;
        let callers = files::callers(&config)?;
        let GatewayKeys { sealer, prints, are_new } = GatewayKeys::of(&config)?;
        let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        // Stops the background tasks if the start fails below.
        let unless_started = scope.stop.clone().drop_guard();
        let readiness = Readiness::new();
        readiness.block(STARTING);
        let mut parts = StartParts { config, callers, metrics, scope, readiness, sockets };
        let opening = Box::pin(open_store(&mut parts, prints, &source));
        // A store that is open by then is closed below.
        let (opened, waiting) = start_cancelled.run_until_cancelled(opening).await.unwrap_or_else(stopped)?;
        warn_of_new_key(are_new && opened.store.usage().tasks > 0, &parts.config.folder);
        let shared = opened.shared.as_ref().map(|shared| Arc::clone(&shared.store));
        let replica = source.given().or_else(|| ReplicaSetup::of(&parts.config, opened.shared.as_ref()));
        let starting = async {
            let audit = open_audit(&parts.config).await?;
            Self::start_on_store(parts, opened, waiting, replica, sealer, audit).await
        };
        let started = unless_cancelled(&start_cancelled, Box::pin(starting)).await.unwrap_or_else(stopped);
        if started.is_ok() {
            unless_started.disarm();
        } else if let Some(shared) = shared {
            // Otherwise its row would show a live replica.
            shared.close().await;
        }
        started
    }

    async fn start_on_store(
        parts: StartParts,
        opened: OpenedStore,
        waiting: WaitingListeners,
        replica: Option<ReplicaSetup>,
        sealer: Arc<Sealer>,
        audit: Option<Arc<AuditLog>>,
    ) -> anyhow::Result<Self> {
        let StartParts { config, callers, metrics, scope, readiness, sockets } = parts;
        let OpenedStore { store, clock, shared } = opened;
        let (started, current, files) = (config.clone(), config.clone(), reload::fingerprint_of_named(&config));
        let (listens_end, proofs) = (CancellationToken::new(), Arc::default());
        let parts = GatewayParts::new(store, clock, sealer, replica.as_ref(), &config, scope, listens_end.clone());
        begin_audit(audit, &parts, &started, &readiness);
        let FirstFaces { upstreams, endpoints, targets, healths } = FirstFaces::new(&config, &parts)?;
        let routes = add_endpoints(reload::routes(&upstreams, &[]), &endpoints);
        let routes = token_keys::with_metadata(routes, &current, &parts.rates);
        let callers = token_keys::succeeding(callers, None, &proofs);
        let tokens = token_keys::keep_fresh(&callers, &parts.scope, &readiness);
        let drain_max = config.listen.drain_max;
        let metrics = operators::metrics(metrics, healths.clone(), shared.as_ref());
        let callers_of_admin = files::operators(&config.admin)?;
        let seen = OperatorsView::new(&readiness, &healths, &metrics, &parts.permits);
        let operators = seen.site(&config.admin, callers_of_admin, &parts.engine, shared.as_ref());
        let admin = Box::pin(listen(waiting.admin, operators.clone(), sockets.admin)).await?;
        let metrics = listen_for_probes(waiting.metrics, config.metrics, &readiness, metrics, sockets.metrics).await?;
        let follower = ReplicaFollower::of(shared.as_ref(), &started, &parts);
        // Before clients and other replicas connect: otherwise the first would get all of a divided limit.
        follower.iter().for_each(ReplicaFollower::look);
        let beside = replica.as_ref().zip(parts.owners.as_ref());
        let replicas = ReplicaListener::start(beside, config.listen.body_bytes_max, &routes, sockets.replicas).await?;
        task_store::be_seen(shared.as_ref()).await;
        follower.iter().for_each(ReplicaFollower::look);
        let site = clients_site(config.listen, callers, routes, parts.engine.audit());
        let public_url = site.settings.public_url.clone();
        let clients = Box::pin(listen(waiting.clients, site, sockets.clients)).await?;
        parts.address.set(&client_address(&clients, public_url.as_deref()));
        readiness.clear(STARTING);
        // After the listener: a client that polls a task meanwhile reads its stored state.
        start_background(&parts, &targets, follower);
        Ok(Self {
            clients,
            admin,
            operators,
            metrics,
            replicas,
            parts,
            shared,
            targets,
            upstreams,
            endpoints,
            healths,
            tokens,
            proofs,
            retired: RetiredUpstreams::default(),
            gone: Vec::new(),
            started,
            current,
            files,
            readiness,
            listens_end,
            drain_max,
        })
    }

    pub const fn address(&self) -> SocketAddr {
        self.clients.local_addr()
    }

    pub fn base_url(&self) -> String {
        format!("{}://{}", self.clients.scheme(), self.clients.local_addr())
    }

    pub fn public_url(&self) -> Option<&str> {
        self.current.listen.public_url.as_deref()
    }

    pub fn replica_address(&self) -> Option<SocketAddr> {
        self.replicas.as_ref().map(|replicas| replicas.running.local_addr())
    }

    /// The map from sessions to their owners, if there are several replicas; membership changes are applied to it.
    pub const fn session_owners(&self) -> Option<&Arc<SessionOwners>> {
        self.parts.owners.as_ref()
    }

    fn folder(&self) -> &Path {
        &self.started.folder
    }

    pub const fn admin_address(&self) -> SocketAddr {
        self.admin.local_addr()
    }

    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(RunningListener::local_addr)
    }
}

fn stopped<T>() -> anyhow::Result<T> {
    Err(anyhow::Error::msg("the start was stopped"))
}

/// The base of the URLs that clients use: the operator's setting, or the listener's address.
fn client_address(clients: &RunningListener, public_url: Option<&str>) -> String {
    public_url.map_or_else(|| format!("{}://{}", clients.scheme(), clients.local_addr()), str::to_owned)
}

#[derive(Clone, Debug)]
struct GatewayParts {
    limits: SharedLimits,
    rates: Arc<Rates>,
    streams: SseStreams,
    combined: Arc<CombinedSessions>,
    listeners: Arc<ListenPermits>,
    store: Arc<dyn TaskStore>,
    engine: Arc<Engine>,
    permits: Arc<CallPermitsByName>,
    clock: Arc<dyn Clock>,
    /// Permits for programs of stdio upstreams.
    processes: Arc<CallPermitsByName>,
    scope: TaskScope,
    sealer: Arc<Sealer>,
    owners: Option<Arc<SessionOwners>>,
    /// The URL by which clients reach the gateway; unused before it listens.
    address: PublicAddress,
    streams_end: CancellationToken,
}

impl GatewayParts {
    fn live_calls(&self) -> LiveCalls {
        LiveCalls { engine: Arc::clone(&self.engine), permits: Arc::clone(&self.permits) }
    }

    /// Serves nothing yet; starts the sweep of expired tasks. Cancelling `listens_end` ends the subscription streams.
    fn new(
        store: Arc<dyn TaskStore>,
        clock: Arc<dyn Clock>,
        sealer: Arc<Sealer>,
        replica: Option<&ReplicaSetup>,
        config: &Config,
        scope: TaskScope,
        listens_end: CancellationToken,
    ) -> Self {
        let limits = SharedLimits::new(Arc::clone(&config.principals));
        let owners = replica.map(|replica| replica.owners(&sealer, &scope, &limits));
        let tasks_max = config.store.limits().tasks_max;
        let engine =
            Engine::new(Arc::clone(&store), Arc::clone(&clock), Box::new(random_bits), tasks_max, limits.clone());
        engine.access().replace(Arc::clone(&config.access), config.auth.admitted());
        scope.tracker.spawn(sweeper::run(Arc::clone(&engine), scope.stop.clone()));
        Self {
            rates: Arc::new(Rates::new(limits.clone())),
            streams: SseStreams::new(limits.clone()),
            combined: CombinedSessions::new(),
            listeners: ListenPermits::new(listens_end, limits.clone()),
            store,
            engine,
            permits: Arc::new(CallPermitsByName::new(limits.clone())),
            clock,
            processes: Arc::new(CallPermitsByName::new(limits.clone())),
            scope,
            sealer,
            owners,
            address: PublicAddress::default(),
            streams_end: CancellationToken::new(),
            limits,
        }
    }
}

struct GatewayKeys {
    sealer: Arc<Sealer>,
    prints: Vec<KeyPrint>,
    are_new: bool,
}

impl GatewayKeys {
    /// Reads the keys of the gateway's folder, or generates them at the first start.
    fn of(config: &Config) -> Result<Self, FileMistakes> {
        let folder = &config.folder;
        let are_new = sealing_key::read(folder)?.is_none();
        let keys = match sealing_key::read_or_make(folder) {
            Ok(keys) => keys,
            // Only a store in memory starts without a writable folder, and it does not outlive this process either.
            Err(error) if error.is_folder_unwritable() && !matches!(config.store, StoreSettings::Postgres(_)) => {
                tracing::warn!(%error, "the sealing key cannot be written: client sessions end with this process");
                sealing_key::ephemeral()
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self { are_new, ..Self::made_of(keys) })
    }

    fn ephemeral() -> Self {
        Self::made_of(sealing_key::ephemeral())
    }

    fn made_of(keys: SealingKeys) -> Self {
        Self { prints: keys.prints(), sealer: Arc::new(Sealer::new(keys)), are_new: false }
    }
}

/// Logs that the store is older than its key, for example restored from a backup.
fn warn_of_new_key(is_newer: bool, folder: &Path) {
    if is_newer {
        tracing::warn!(
            folder = %folder.display(),
            "seal.key was missing and is created again: sessions of clients and open questions have ended; keep \
             seal.key with each backup of the store"
        );
    }
}

struct OpenedUpstream {
    served: Arc<Served>,
    health: Arc<UpstreamHealth>,
    /// How clients log in at the upstream, if they do so themselves.
    login: Option<ClientLogin>,
}

fn open(config: UpstreamConfig, parts: &GatewayParts, known: Arc<SessionMemories>) -> anyhow::Result<OpenedUpstream> {
    let permits = Arc::new(parts.permits.of(&config.name, config.permits));
    let settings = Arc::new(config.service);
    let unmatched_rules = match config.names.are_kept() {
        true => UnmatchedRules::new(&config.name, settings.rules.patterns.iter().map(|(pattern, _)| pattern)),
        // The renamer warns of rules that match no tool: it alone knows the upstream's names.
        false => UnmatchedRules::none(&config.name),
    };
    let renamer = ToolRenamer::new(config.names, &settings.rules, Arc::clone(&config.name), settings.result_bytes_max);
    let is_stateless = config.server.protocol().is_some_and(ProtocolVersion::is_stateless);
    let http = Arc::new(match config.server {
        ServerSettings::Http(http) => SessionUpstream::within(http, parts.scope.clone(), &parts.limits)
            .with_context(|| format!("upstream {} cannot be used", config.name))?,
        ServerSettings::Stdio(stdio) => {
            let processes = parts.processes.unmetered_of(&config.name, stdio.process_permits());
            SessionUpstream::stdio_within(stdio, parts.scope.clone(), processes)
        }
    });
    let health = http.health();
    let metadata = http.metadata().filter(|_| settings.forwarding.has(&AUTHORIZATION)).cloned();
    let login = metadata.map(|metadata| ClientLogin {
        address: parts.address.clone(),
        path: Arc::from(config.path),
        metadata,
        resource: config.oauth_resource,
    });
    let channel = ToolRenamer::channel(renamer.as_ref(), http.channel());
    let eras = http.for_stateless_clients();
    let served = Served {
        settings,
        unmatched_rules: Arc::new(unmatched_rules),
        engine: Arc::clone(&parts.engine),
        channel,
        stateless: ToolRenamer::upstream(renamer.as_ref(), eras.stateless()),
        upstream: ToolRenamer::upstream(renamer.as_ref(), Arc::new(eras)),
        pool: ToolRenamer::upstream(renamer.as_ref(), http),
        is_stateless,
        permits,
        rates: Arc::clone(&parts.rates),
        listeners: Arc::clone(&parts.listeners),
        sealer: Arc::clone(&parts.sealer),
        owners: parts.owners.clone(),
        clock: Arc::clone(&parts.clock),
        random: random_bits,
        scope: parts.scope.clone(),
        memories: known,
        streams_end: parts.streams_end.clone(),
        listens_end: parts.listeners.listens_end().child_token(),
    };
    Ok(OpenedUpstream { served: Arc::new(served), health, login })
}

fn random_bits() -> u128 {
    u128::from_be_bytes(random::bytes())
}

/// The gateway is not ready for this reason while the audit file cannot be written.
const AUDIT_FAILING: &str = "audit failing";
const AUDIT_LOOK_EVERY: Duration = Duration::from_millis(250);

async fn open_audit(config: &Config) -> Result<Option<Arc<AuditLog>>, AuditOpenError> {
    let Some(settings) = config.audit.clone() else { return Ok(None) };
    let replica = match &config.store {
        StoreSettings::Postgres(database) => Some(database.replica.name.clone().unwrap_or_else(host_name)),
        StoreSettings::Memory(_) | StoreSettings::Disk { .. } => None,
    };
    AuditLog::open(settings, replica.as_deref()).await.map(Some)
}

/// Lets the engine record its events, and readiness show whether the file takes them.
fn begin_audit(audit: Option<Arc<AuditLog>>, parts: &GatewayParts, config: &Config, readiness: &Readiness) {
    let Some(audit) = audit else { return };
    know_issuers(&audit, config);
    parts.engine.set_audit(Arc::clone(&audit));
    let (readiness, stop) = (readiness.clone(), parts.scope.stop.clone());
    let weight = if audit.is_required() { ReasonWeight::Blocks } else { ReasonWeight::Limits };
    parts.scope.tracker.spawn(stop.run_until_cancelled_owned(async move {
        loop {
            let why = (!audit.is_written()).then_some((AUDIT_FAILING, weight));
            readiness.show_one_of(&[AUDIT_FAILING], why);
            tokio::time::sleep(AUDIT_LOOK_EVERY).await;
        }
    }));
}

fn know_issuers(audit: &AuditLog, config: &Config) {
    let issuers = config.auth.tokens().into_iter().flat_map(|tokens| &tokens.issuers);
    audit.know_issuers(issuers.map(|issuer| &*issuer.issuer));
}

impl Gateway {
    fn audit(&self) -> Option<Arc<AuditLog>> {
        self.parts.engine.audit().cloned()
    }

    /// Follows a rename of the audit file, and records the outcome of a reload if a configuration was read.
    fn audit_reload(&self, is_applied: Option<bool>) {
        let Some(audit) = self.audit() else { return };
        audit.reopen();
        if let Some(is_applied) = is_applied {
            let outcome = Some(if is_applied { "applied" } else { "rejected" });
            audit.record(&AuditEvent { outcome, ..AuditEvent::new(AuditAct::Reload) });
        }
    }
}
