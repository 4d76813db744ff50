//! Listens while the database is away: operators see why, and clients are told to come again.

use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;

use super::listeners::clients_site;
use super::sockets::Sockets;
use super::{files, service_manager};
use crate::config::Config;
use crate::face::store_away::StoreAwayEndpoint;
use crate::server::admin::{self, Readiness};
use crate::server::{self, Authenticator, Routes, RunningListener};
use crate::upstream::upstream_health::UpstreamHealthList;

/// The listeners of a gateway that cannot serve yet; none where it never had to wait.
#[derive(Debug, Default)]
pub(super) struct WaitingListeners {
    pub(super) clients: Option<RunningListener>,
    pub(super) admin: Option<RunningListener>,
}

impl WaitingListeners {
    /// Takes the sockets that were handed over. A service manager is told that the gateway has started.
    ///
    /// # Errors
    /// If an address cannot be bound.
    pub(super) async fn start(
        config: &Config,
        callers: &Authenticator,
        (readiness, metrics): (&Readiness, &PrometheusHandle),
        sockets: &mut Sockets,
    ) -> anyhow::Result<Self> {
        let operators = files::operators(&config.admin)?;
        let healths = UpstreamHealthList::default();
        let operators = admin::site(&config.admin, operators, readiness.clone(), healths, metrics.clone());
        let admin = server::start_on(operators, sockets.admin.take()).await?;
        let routes = Routes::new().below("/", Arc::new(StoreAwayEndpoint));
        let site = clients_site(config.listen.clone(), callers.clone(), routes);
        let clients = server::start_on(site, sockets.clients.take()).await?;
        service_manager::tell_ready();
        Ok(Self { clients: Some(clients), admin: Some(admin) })
    }
}
