//! Puts together what a gateway has that is one of several on one store: where sessions are at home, and the listener for others.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;

use super::task_store::SharedLife;
use crate::config::{Config, ReplicaSettings, StoreSettings};
use crate::face::sealed::Sealer;
use crate::face::session_homes::SessionHomes;
use crate::replica::ReplicaDirectory;
use crate::server::replica_link::Http2ReplicaLink;
use crate::server::replicas::{self, ReplicaTls};
use crate::server::{self, ForwardedCallers, ListenSettings, Routes, RunningListener, StartError};
use crate::store::TaskStore;
use crate::store::postgres::{PostgresStore, ReplicaView};
use crate::task::Clock;
use crate::upstream::TaskScope;

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
    /// Who is alive at the start. Later ones: [`SessionHomes::replace`].
    pub directory: ReplicaDirectory,
}

impl ReplicaSetup {
    /// What a configuration says of a gateway whose store is shared.
    pub(super) fn of(config: &Config, shared: Option<&SharedLife>) -> Option<Self> {
        let (StoreSettings::Postgres(database), Some(shared)) = (&config.store, shared) else { return None };
        let ReplicaSettings { address, identity, ca, .. } = database.replica.clone();
        let tls = identity.zip(ca).map(|(identity, ca)| ReplicaTls { identity, ca });
        let directory = directory(&shared.store, &shared.store.watch_replicas().borrow());
        let store = Arc::<PostgresStore>::clone(&shared.store);
        Some(Self { clock: store.clock(), store, address, tls, directory })
    }

    /// Where sessions are at home.
    pub(super) fn homes(&self, sealer: &Arc<Sealer>, life: &TaskScope) -> Arc<SessionHomes> {
        let link = Arc::new(Http2ReplicaLink::new(self.tls.clone(), life.clone()));
        let (directory, sealer, clock) = (self.directory.clone(), Arc::clone(sealer), Arc::clone(&self.clock));
        Arc::new(SessionHomes::new(directory, sealer, clock, link))
    }
}

/// The living, as a store saw them last.
fn directory(store: &PostgresStore, view: &ReplicaView) -> ReplicaDirectory {
    ReplicaDirectory::of_lines(store.life().holder, view.lines.iter().map(|one| &one.line))
}

/// Tells where sessions are at home whenever others come or go, for as long as this life lasts.
pub(super) fn follow(shared: Option<&SharedLife>, homes: Option<&Arc<SessionHomes>>, life: &TaskScope) {
    if let (Some(shared), Some(homes)) = (shared, homes) {
        let following = renew(Arc::clone(&shared.store), Arc::clone(homes));
        life.tracker.spawn(life.stop.clone().run_until_cancelled_owned(following));
    }
}

async fn renew(store: Arc<PostgresStore>, homes: Arc<SessionHomes>) {
    let mut views = store.watch_replicas();
    loop {
        // Beats change the view as well; what stays as it was replaces nothing.
        let seen = directory(&store, &views.borrow_and_update());
        homes.replace(seen);
        if views.changed().await.is_err() {
            return;
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
    /// As [`server::start`].
    pub(super) async fn start(
        replica: Option<(&ReplicaSetup, &Arc<SessionHomes>)>,
        body_bytes_max: NonZeroUsize,
        routes: &Routes,
    ) -> Result<Option<Box<Self>>, StartError> {
        let Some((setup, homes)) = replica else { return Ok(None) };
        let Some(address) = setup.address else { return Ok(None) };
        let callers = ForwardedCallers::new(Arc::clone(homes));
        let site = replicas::site(address, setup.tls.clone(), body_bytes_max, callers.clone(), routes.clone());
        let settings = site.settings.clone();
        let running = Box::pin(server::start(site)).await?;
        Ok(Some(Box::new(Self { running, settings, callers })))
    }

    /// Serves other routes from now on.
    pub(super) fn replace(&mut self, body_bytes_max: NonZeroUsize, routes: Routes) {
        self.settings.body_bytes_max = body_bytes_max;
        self.running.replace(&self.settings, server::Authenticator::Replicas(self.callers.clone()), routes);
    }
}
