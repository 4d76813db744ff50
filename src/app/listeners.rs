//! Starts the listeners of a gateway. While a database is unavailable they report it, and clients get 503.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;

use super::StartParts;
use super::operators::unopened_site;
use super::replica::ReplicaSetup;
use super::sockets::Sockets;
use super::task_store::{OpenedStore, StoreOpening};
use super::{files, service_manager, task_store};
use crate::audit::AuditLog;
use crate::config::Config;
use crate::face::endpoint::UnavailableStoreEndpoint;
use crate::face::sealed::KeyPrint;
use crate::server::admin::{self, MetricsSource, Readiness};
use crate::server::{
    self, Authenticator, ListenSettings, ListenerLimits, ListenerRole, ListenerSpec, Routes, RunningListener,
    StartError,
};
use crate::store::postgres::PriorIncarnation;

#[derive(Debug)]
pub(super) enum StoreSource {
    /// Opens the configured store. Clients wait for the first attempt; if it takes long, they get 503.
    Config,
    /// The same for a successor in this process: clients get 503 at once, and transient failures are retried.
    ConfigAgain(PriorIncarnation),
    Given(Box<ReplicaSetup>),
}

impl StoreSource {
    pub(super) fn given(self) -> Option<ReplicaSetup> {
        if let Self::Given(setup) = self { Some(*setup) } else { None }
    }
}

pub(super) async fn open_store(
    parts: &mut StartParts,
    prints: Vec<KeyPrint>,
    source: &StoreSource,
) -> anyhow::Result<(OpenedStore, WaitingListeners)> {
    let StartParts { config, callers, metrics, scope, readiness, sockets } = parts;
    if let StoreSource::Given(setup) = source {
        let opened = OpenedStore { store: Arc::clone(&setup.store), clock: Arc::clone(&setup.clock), shared: None };
        return Ok((opened, WaitingListeners::default()));
    }
    let mut opening = match task_store::open(config, prints, scope, readiness).await? {
        StoreOpening::Open(opened) => return Ok((opened, WaitingListeners::default())),
        StoreOpening::Waiting(opening) => opening,
    };
    if let StoreSource::ConfigAgain(former) = source {
        opening.restarts(*former);
    }
    let late = opening.late.clone();
    let mut wait = Box::pin(task_store::wait(opening, scope, readiness));
    tokio::select! {
        opened = &mut wait => return Ok((opened?, WaitingListeners::default())),
        () = late.cancelled() => (),
    }
    let waiting = WaitingListeners::start(config, callers, readiness, metrics, sockets).await?;
    Ok((wait.await?, waiting))
}

/// The listeners of a gateway that cannot serve yet; empty if it never waited.
#[derive(Debug, Default)]
pub(super) struct WaitingListeners {
    pub(super) clients: Option<RunningListener>,
    pub(super) admin: Option<RunningListener>,
    pub(super) metrics: Option<RunningListener>,
}

impl WaitingListeners {
    /// Takes over the passed sockets, and notifies the service manager of the start.
    pub(super) async fn start(
        config: &Config,
        callers: &Authenticator,
        readiness: &Readiness,
        metrics: &PrometheusHandle,
        sockets: &mut Sockets,
    ) -> anyhow::Result<Self> {
        let operators = files::operators(&config.admin)?;
        let operators = unopened_site(&config.admin, operators, readiness, metrics.clone());
        let admin = server::start_on(operators, sockets.admin.take()).await?;
        let metrics =
            listen_for_probes(None, config.metrics, readiness, metrics.clone().into(), sockets.metrics.take()).await?;
        let routes = Routes::new().below("/", Arc::new(UnavailableStoreEndpoint));
        let site = clients_site(config.listen.clone(), callers.clone(), routes, None);
        let clients = server::start_on(site, sockets.clients.take()).await?;
        service_manager::notify_ready();
        Ok(Self { clients: Some(clients), admin: Some(admin), metrics })
    }
}

pub(super) fn clients_site(
    settings: ListenSettings,
    callers: Authenticator,
    routes: Routes,
    audit: Option<&Arc<AuditLog>>,
) -> ListenerSpec {
    let (role, limits) = (ListenerRole::Clients, ListenerLimits::default());
    let peers = settings.client_certificates.clone();
    ListenerSpec { role, settings, limits, callers, routes, peers, audit: audit.cloned() }
}

/// Replaces the routes of a waiting listener, or starts a new one.
pub(super) async fn listen(
    waiting: Option<RunningListener>,
    site: ListenerSpec,
    socket: Option<TcpListener>,
) -> Result<RunningListener, StartError> {
    match waiting {
        Some(listener) => {
            if let Some(audit) = site.audit {
                listener.record_refusals(audit);
            }
            listener.replace(&site.settings, site.callers, site.routes);
            Ok(listener)
        }
        None => server::start_on(site, socket).await,
    }
}

pub(super) async fn listen_for_probes(
    waiting: Option<RunningListener>,
    address: Option<SocketAddr>,
    readiness: &Readiness,
    metrics: MetricsSource,
    socket: Option<TcpListener>,
) -> Result<Option<RunningListener>, StartError> {
    match address {
        Some(address) => listen(waiting, admin::probes(address, readiness.clone(), metrics), socket).await.map(Some),
        None => Ok(None),
    }
}
