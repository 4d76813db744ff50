//! Puts together what a gateway has that is one of several on one store: where sessions are at home, and the listener for others.

use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::GatewayParts;
use super::task_store::SharedLife;
use crate::config::{Config, StoreSettings};
use crate::face::sealed::Sealer;
use crate::face::session_homes::SessionHomes;
use crate::replica::ReplicaDirectory;
use crate::server::replica_link::{Http2ReplicaLink, REACH_MAX};
use crate::server::replicas::{self, ReplicaTls};
use crate::server::{self, ForwardedCallers, ListenSettings, Routes, RunningListener, StartError};
use crate::shared_limits::SharedLimits;
use crate::store::TaskStore;
use crate::store::postgres::{PostgresStore, ReplicaView};
use crate::task::Clock;
use crate::upstream::TaskScope;
use crate::upstream::limits::CallPermitsByName;

/// What a gateway is started with that is one of several.
#[derive(Clone, Debug)]
pub struct ReplicaSetup {
    /// The store that they share, and the clock of tasks, which is the same at all of them.
    pub store: Arc<dyn TaskStore>,
    pub clock: Arc<dyn Clock>,
    /// Where the others reach it; without an address nothing is passed on to it.
    pub address: Option<SocketAddr>,
    /// Shown to the others, and wanted from them; without it they are reached on loopback alone.
    pub tls: Option<ReplicaTls>,
    /// How long another may take to be reached.
    pub reach_max: Duration,
    /// Who is alive at the start. Later ones: [`SessionHomes::replace`].
    pub directory: ReplicaDirectory,
}

impl ReplicaSetup {
    /// What a configuration says of a gateway whose store is shared.
    pub(super) fn of(config: &Config, shared: Option<&SharedLife>) -> Option<Self> {
        let (StoreSettings::Postgres(database), Some(shared)) = (&config.store, shared) else { return None };
        let (address, tls) = (database.replica.address, database.replica.tls.clone());
        let directory = directory(&shared.store, &shared.store.replicas());
        let store = Arc::<PostgresStore>::clone(&shared.store);
        Some(Self { clock: store.clock(), store, address, tls, reach_max: REACH_MAX, directory })
    }

    /// Where sessions are at home.
    pub(super) fn homes(&self, sealer: &Arc<Sealer>, life: &TaskScope, limits: &SharedLimits) -> Arc<SessionHomes> {
        let link = Http2ReplicaLink::new(self.tls.clone(), life.clone(), limits.clone());
        let link = Arc::new(link.reaching_within(self.reach_max));
        let (directory, sealer, clock) = (self.directory.clone(), Arc::clone(sealer), Arc::clone(&self.clock));
        Arc::new(SessionHomes::new(directory, sealer, clock, link))
    }
}

/// The living, as a store saw them last.
fn directory(store: &PostgresStore, view: &ReplicaView) -> ReplicaDirectory {
    ReplicaDirectory::of_lines(store.holder(), view.lines.iter().map(|one| &one.line))
}

/// What depends on who the others are.
#[derive(Debug)]
pub(super) struct ReplicaFollower {
    store: Arc<PostgresStore>,
    homes: Arc<SessionHomes>,
    /// What is divided among all, if anything is.
    divided: Option<(SharedLimits, Arc<CallPermitsByName>)>,
}

impl ReplicaFollower {
    /// `None` where there are no others.
    pub(super) fn of(shared: Option<&SharedLife>, config: &Config, parts: &GatewayParts) -> Option<Self> {
        let (Some(shared), Some(homes), StoreSettings::Postgres(database)) = (shared, &parts.homes, &config.store)
        else {
            return None;
        };
        let divided = database.replica.divides.then(|| (parts.limits.clone(), Arc::clone(&parts.permits)));
        Some(Self { store: Arc::clone(&shared.store), homes: Arc::clone(homes), divided })
    }

    /// Tells where sessions are at home, and among how many limits are divided, whenever others come or go.
    pub(super) async fn run(self) {
        let mut views = self.store.watch_replicas();
        loop {
            self.follow(&views.newest());
            if views.changed().await.is_err() {
                return;
            }
        }
    }

    /// Goes by who is alive now.
    pub(super) fn look(&self) {
        self.follow(&self.store.watch_replicas().newest());
    }

    fn follow(&self, view: &ReplicaView) {
        // Beats change the view as well; what stays as it was replaces nothing.
        self.homes.replace(directory(&self.store, view));
        let beside = view.taking_beside(self.store.holder());
        if let Some((limits, permits)) = &self.divided
            && limits.divide_by(NonZeroUsize::MIN.saturating_add(beside))
        {
            tracing::info!(gateways = beside + 1, "rates and calls at a time are divided among gateways");
            permits.call_waiting();
        }
    }
}

/// The listener for other replicas at work.
#[derive(Debug)]
pub(super) struct ReplicaListener {
    pub(super) running: RunningListener,
    settings: ListenSettings,
    callers: ForwardedCallers,
}

impl ReplicaListener {
    /// Serves what clients are served, to other replicas, if they are to reach this one.
    ///
    /// # Errors
    /// As [`server::start_on`].
    pub(super) async fn start(
        replica: Option<(&ReplicaSetup, &Arc<SessionHomes>)>,
        body_bytes_max: NonZeroUsize,
        routes: &Routes,
        socket: Option<TcpListener>,
    ) -> Result<Option<Box<Self>>, StartError> {
        let Some((setup, homes)) = replica else { return Ok(None) };
        let Some(address) = setup.address else { return Ok(None) };
        let callers = ForwardedCallers::new(Arc::clone(homes));
        let site = replicas::site(address, setup.tls.clone(), body_bytes_max, callers.clone(), routes.clone());
        let settings = site.settings.clone();
        let running = Box::pin(server::start_on(site, socket)).await?;
        Ok(Some(Box::new(Self { running, settings, callers })))
    }

    /// Serves other routes from now on.
    pub(super) fn replace(&mut self, body_bytes_max: NonZeroUsize, routes: Routes) {
        self.settings.body_bytes_max = body_bytes_max;
        self.running.replace(&self.settings, server::Authenticator::Replicas(self.callers.clone()), routes);
    }
}
