//! The operators' listener: is it alive, is it ready, what does it count.
//!
//! The same layers stand in front of it as in front of the clients' listener (B66).

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::RwLock;

use super::{AdminSettings, Callers, Limits, ListenSettings, Routes, Site};
use crate::face::http::{Endpoint, Inbound, Response, empty_body, full_body};
use crate::task::Principal;

const BODY_BYTES_MAX: NonZeroUsize = NonZeroUsize::new(64 << 10).unwrap();
const CONNECTIONS_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Whether new work may be sent here: yes while nothing is listed against it. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<RwLock<BTreeSet<&'static str>>>);

impl Readiness {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Not ready until [`Readiness::clear`] is called with the same reason.
    pub fn block(&self, reason: &'static str) {
        self.0.write().insert(reason);
    }

    pub fn clear(&self, reason: &'static str) {
        self.0.write().remove(reason);
    }

    /// What stands against it, in alphabetical order.
    #[must_use]
    pub fn reasons(&self) -> Vec<&'static str> {
        self.0.read().iter().copied().collect()
    }
}

/// The admin listener's site.
#[must_use]
pub fn site(settings: AdminSettings, readiness: Readiness, metrics: PrometheusHandle) -> Site {
    let settings = ListenSettings {
        address: settings.address,
        tls: None,
        allowed_hosts: Vec::new(),
        allowed_origins: Vec::new(),
        body_bytes_max: BODY_BYTES_MAX,
        connections_max: CONNECTIONS_MAX,
        drain_max: DRAIN_MAX,
    };
    let routes = Routes::new()
        .with("/healthz", Arc::new(Page::Health))
        .with("/readyz", Arc::new(Page::Readiness(readiness)))
        .with("/metrics", Arc::new(Page::Metrics(metrics)));
    Site { name: "admin", settings, limits: Limits::default(), callers: Callers::Everyone(Principal::local()), routes }
}

/// What can be looked at.
enum Page {
    /// Answers as long as anything does.
    Health,
    Readiness(Readiness),
    Metrics(PrometheusHandle),
}

const GET: HeaderValue = HeaderValue::from_static("GET");

#[async_trait]
impl Endpoint for Page {
    async fn serve(&self, request: Inbound) -> Response {
        if request.method != Method::GET {
            let mut response = Response::new(empty_body());
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            response.headers_mut().insert(ALLOW, GET);
            return response;
        }
        match self {
            Self::Health => text(StatusCode::OK, "ok\n".into()),
            Self::Readiness(readiness) => match readiness.reasons() {
                none if none.is_empty() => text(StatusCode::OK, "ready\n".into()),
                reasons => text(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n"),
            },
            Self::Metrics(metrics) => text(StatusCode::OK, metrics.render()),
        }
    }

    fn allow(&self) -> HeaderValue {
        GET
    }
}

fn text(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(full_body(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    // The version of the Prometheus text format; to a browser it is plain text.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
