//! Starts the listeners of a gateway.

use std::net::{SocketAddr, TcpListener};

use crate::server::admin::{self, MetricsSource, Readiness};
use crate::server::{
    self, Authenticator, ListenSettings, ListenerLimits, ListenerRole, ListenerSpec, Routes, RunningListener,
    StartError,
};

pub(super) fn clients_site(settings: ListenSettings, callers: Authenticator, routes: Routes) -> ListenerSpec {
    let (role, limits) = (ListenerRole::Clients, ListenerLimits::default());
    ListenerSpec { role, settings, limits, callers, routes, peers_ca: None }
}

/// Replaces the routes of a waiting listener, or starts a new one.
pub(super) async fn listen(
    waiting: Option<RunningListener>,
    site: ListenerSpec,
    socket: Option<TcpListener>,
) -> Result<RunningListener, StartError> {
    match waiting {
        Some(listener) => {
            listener.replace(&site.settings, site.callers, site.routes);
            Ok(listener)
        }
        None => server::start_on(site, socket).await,
    }
}

pub(super) async fn listen_for_probes(
    waiting: Option<RunningListener>,
    (address, readiness, metrics): (Option<SocketAddr>, &Readiness, MetricsSource),
    socket: Option<TcpListener>,
) -> Result<Option<RunningListener>, StartError> {
    match address {
        Some(address) => listen(waiting, admin::probes(address, readiness.clone(), metrics), socket).await.map(Some),
        None => Ok(None),
    }
}
