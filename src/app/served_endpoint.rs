//! Keeps an endpoint of several upstreams as long as its members are unchanged.

use std::sync::Arc;

use tokio_util::sync::DropGuard;

use super::GatewayParts;
use crate::face::combined::{CombinedEndpoint, CombinedSettings, EndpointMember};
use crate::face::sse::{SseEndpoint, SseServed};
use crate::server::Routes;

#[derive(Debug)]
pub(super) struct ServedEndpoint {
    settings: CombinedSettings,
    endpoint: Arc<CombinedEndpoint>,
    older: SseServed,
    /// Ends the clients' own streams.
    _leaving: DropGuard,
}

impl ServedEndpoint {
    pub(super) fn new(settings: &CombinedSettings, upstreams: &[EndpointMember], parts: &GatewayParts) -> Self {
        Self::of_members(settings, members(settings, upstreams), parts)
    }

    pub(super) const fn endpoint(&self) -> &Arc<CombinedEndpoint> {
        &self.endpoint
    }

    pub(super) const fn older(&self) -> &SseServed {
        &self.older
    }

    fn of_members(settings: &CombinedSettings, members: Vec<EndpointMember>, parts: &GatewayParts) -> Self {
        let leaving = parts.leaving.child_token();
        let combined = CombinedEndpoint::new(settings.clone(), members, Arc::clone(&parts.combined), leaving.clone());
        let older = SseServed {
            served: Arc::clone(combined.any_served()),
            name: Arc::clone(&settings.path),
            result_bytes_max: combined.result_bytes_max(),
            path: Arc::clone(&settings.path),
            streams: parts.streams.clone(),
            leaving: leaving.clone(),
        };
        let (settings, endpoint) = (settings.clone(), Arc::new(combined));
        Self { settings, endpoint, older, _leaving: leaving.drop_guard() }
    }
}

/// The endpoints of a new configuration. An unchanged endpoint continues without interruption.
pub(super) fn renewed(
    settings: &[CombinedSettings],
    mut before: Vec<ServedEndpoint>,
    upstreams: &[EndpointMember],
    parts: &GatewayParts,
) -> Vec<ServedEndpoint> {
    let renew = |settings: &CombinedSettings| {
        let members = members(settings, upstreams);
        match before.iter().position(|one| one.endpoint.is_made_of(settings, &members)) {
            Some(at) => before.swap_remove(at),
            None => ServedEndpoint::of_members(settings, members, parts),
        }
    };
    settings.iter().map(renew).collect()
}

fn members(settings: &CombinedSettings, upstreams: &[EndpointMember]) -> Vec<EndpointMember> {
    let named = |name: &Arc<str>| upstreams.iter().find(|one| one.served.upstream.name() == name);
    settings.upstreams.iter().filter_map(named).cloned().collect()
}

pub(super) fn add_endpoints(routes: Routes, endpoints: &[ServedEndpoint]) -> Routes {
    endpoints.iter().fold(routes, |routes, one| {
        let endpoint = Arc::clone(&one.endpoint);
        let older = SseEndpoint::new(one.older.clone(), Arc::<CombinedEndpoint>::clone(&endpoint));
        routes.with(&*one.settings.path, endpoint).with(one.settings.sse_path.clone(), Arc::new(older))
    })
}
