//! Assembles the parts of a replica: session owners, and the replica listener.

use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::GatewayParts;
use super::task_store::SharedIncarnation;
use crate::config::{Config, StoreSettings};
use crate::face::sealed::Sealer;
use crate::face::session_owners::SessionOwners;
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

#[derive(Clone, Debug)]
pub struct ReplicaSetup {
    pub store: Arc<dyn TaskStore>,
    pub clock: Arc<dyn Clock>,
    /// Its address for other replicas; without one no request is forwarded to it.
    pub address: Option<SocketAddr>,
    /// The certificates between replicas; without them only loopback is reachable.
    pub tls: Option<ReplicaTls>,
    pub reach_max: Duration,
    /// The live replicas at the start. Later ones: [`SessionOwners::replace`].
    pub directory: ReplicaDirectory,
}

impl ReplicaSetup {
    pub(super) fn of(config: &Config, shared: Option<&SharedIncarnation>) -> Option<Self> {
        let (StoreSettings::Postgres(database), Some(shared)) = (&config.store, shared) else { return None };
        let (address, tls) = (database.replica.address, database.replica.tls.clone());
        let directory = directory(&shared.store, &shared.store.replicas());
        let store = Arc::<PostgresStore>::clone(&shared.store);
        Some(Self { clock: store.clock(), store, address, tls, reach_max: REACH_MAX, directory })
    }

    pub(super) fn owners(&self, sealer: &Arc<Sealer>, scope: &TaskScope, limits: &SharedLimits) -> Arc<SessionOwners> {
        let link = Http2ReplicaLink::new(self.tls.clone(), scope.clone(), limits.clone());
        let link = Arc::new(link.reaching_within(self.reach_max));
        let (directory, sealer, clock) = (self.directory.clone(), Arc::clone(sealer), Arc::clone(&self.clock));
        Arc::new(SessionOwners::new(directory, sealer, clock, link))
    }
}

/// The live replicas, as the store last reported them.
fn directory(store: &PostgresStore, view: &ReplicaView) -> ReplicaDirectory {
    ReplicaDirectory::of_rows(store.holder(), view.rows.iter().map(|one| &one.row))
}

#[derive(Debug)]
pub(super) struct ReplicaFollower {
    store: Arc<PostgresStore>,
    owners: Arc<SessionOwners>,
    divided: Option<(SharedLimits, Arc<CallPermitsByName>)>,
}

impl ReplicaFollower {
    /// `None` for a single gateway.
    pub(super) fn of(shared: Option<&SharedIncarnation>, config: &Config, parts: &GatewayParts) -> Option<Self> {
        let (Some(shared), Some(owners), StoreSettings::Postgres(database)) = (shared, &parts.owners, &config.store)
        else {
            return None;
        };
        let divided = database.replica.divides.then(|| (parts.limits.clone(), Arc::clone(&parts.permits)));
        Some(Self { store: Arc::clone(&shared.store), owners: Arc::clone(owners), divided })
    }

    /// Updates the owners of sessions and the divided limits whenever replicas join or leave.
    pub(super) async fn run(self) {
        let mut views = self.store.watch_replicas();
        loop {
            self.follow(&views.newest());
            if views.changed().await.is_err() {
                return;
            }
        }
    }

    pub(super) fn look(&self) {
        self.follow(&self.store.watch_replicas().newest());
    }

    fn follow(&self, view: &ReplicaView) {
        // Heartbeats change the view as well; an unchanged membership replaces nothing.
        self.owners.replace(directory(&self.store, view));
        let others = view.accepting_others(self.store.holder());
        if let Some((limits, permits)) = &self.divided
            && limits.divide_by(NonZeroUsize::MIN.saturating_add(others))
        {
            tracing::info!(replicas = others + 1, "rates and concurrent calls are divided among replicas");
            permits.call_waiting();
        }
    }
}

#[derive(Debug)]
pub(super) struct ReplicaListener {
    pub(super) running: RunningListener,
    settings: ListenSettings,
    callers: ForwardedCallers,
}

impl ReplicaListener {
    /// Starts the replica listener, with the routes of the client listener, if other replicas should reach this one.
    pub(super) async fn start(
        replica: Option<(&ReplicaSetup, &Arc<SessionOwners>)>,
        body_bytes_max: NonZeroUsize,
        routes: &Routes,
        socket: Option<TcpListener>,
    ) -> Result<Option<Box<Self>>, StartError> {
        let Some((setup, owners)) = replica else { return Ok(None) };
        let Some(address) = setup.address else { return Ok(None) };
        let callers = ForwardedCallers::new(Arc::clone(owners));
        let site = replicas::site(address, setup.tls.clone(), body_bytes_max, callers.clone(), routes.clone());
        let settings = site.settings.clone();
        let running = Box::pin(server::start_on(site, socket)).await?;
        Ok(Some(Box::new(Self { running, settings, callers })))
    }

    pub(super) fn replace(&mut self, body_bytes_max: NonZeroUsize, routes: Routes) {
        self.settings.body_bytes_max = body_bytes_max;
        self.running.replace(&self.settings, server::Authenticator::Replicas(self.callers.clone()), routes);
    }
}
