//! Serves health, readiness and metrics to operators, behind the layers of the client listener (B66).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::RwLock;

use super::stack::HEALTH_PATHS;
use super::{AdminSettings, Authenticator, ListenSettings, ListenerLimits, ListenerRole, ListenerSpec, Routes};
use crate::face::http::{Endpoint, FaceResponse, Inbound, full_body};
use crate::metric;
use crate::task::Principal;
use crate::upstream::upstream_health::{HealthReport, UpstreamHealthList};

const BODY_BYTES_MAX: NonZeroUsize = NonZeroUsize::new(64 << 10).unwrap();
const CONNECTIONS_MAX: NonZeroUsize = NonZeroUsize::new(256).unwrap();
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Whether the gateway is ready: it is while no reason is listed. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<RwLock<BTreeMap<&'static str, ReasonWeight>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasonWeight {
    /// The gateway accepts no work.
    Blocks,
    /// The gateway accepts most work.
    Limits,
}

impl Readiness {
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the gateway not ready until [`Readiness::clear`] is called with the same reason.
    pub fn block(&self, reason: &'static str) {
        self.show_one_of(&[reason], Some((reason, ReasonWeight::Blocks)));
    }

    pub fn limit(&self, reason: &'static str) {
        self.show_one_of(&[reason], Some((reason, ReasonWeight::Limits)));
    }

    pub fn clear(&self, reason: &'static str) {
        self.show_one_of(&[reason], None);
    }

    /// Lists at most one of several mutually exclusive reasons.
    pub fn show_one_of(&self, reasons: &[&'static str], why: Option<(&'static str, ReasonWeight)>) {
        let mut listed = self.0.write();
        listed.retain(|reason, _| !reasons.contains(reason));
        listed.extend(why);
        let is_ready = !listed.values().any(|weight| *weight == ReasonWeight::Blocks);
        metrics::gauge!(metric::READY).set(if is_ready { 1.0 } else { 0.0 });
    }

    /// The reasons that block readiness, in alphabetical order.
    pub fn reasons(&self) -> Vec<&'static str> {
        self.of(ReasonWeight::Blocks)
    }

    pub fn limits(&self) -> Vec<&'static str> {
        self.of(ReasonWeight::Limits)
    }

    fn of(&self, meant: ReasonWeight) -> Vec<&'static str> {
        self.0.read().iter().filter(|(_, weight)| **weight == meant).map(|(reason, _)| *reason).collect()
    }
}

/// The metrics page, and a callback that updates time-dependent metrics before each scrape.
#[derive(Clone)]
pub struct MetricsSource {
    page: PrometheusHandle,
    refresh: Option<Arc<dyn Fn() + Send + Sync>>,
}

debug_members!(MetricsSource);

impl From<PrometheusHandle> for MetricsSource {
    fn from(page: PrometheusHandle) -> Self {
        Self { page, refresh: None }
    }
}

impl MetricsSource {
    /// Sets the callback that runs before each scrape. It must not block.
    #[must_use]
    pub fn refreshed_by(self, refresh: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self { refresh: Some(refresh), ..self }
    }

    fn read(&self) -> String {
        if let Some(refresh) = &self.refresh {
            refresh();
        }
        in_order(&self.page.render())
    }
}

pub fn site(
    settings: &AdminSettings,
    callers: Authenticator,
    readiness: Readiness,
    upstreams: UpstreamHealthList,
    metrics: impl Into<MetricsSource>,
) -> ListenerSpec {
    let routes = pages(AdminPage::Readiness(readiness, Some(upstreams)), metrics.into());
    spec(ListenerRole::Operators, settings.address, callers, routes)
}

/// The specification of a listener with metrics and health only, without authentication.
pub fn probes(address: SocketAddr, readiness: Readiness, metrics: MetricsSource) -> ListenerSpec {
    let routes = pages(AdminPage::Readiness(readiness, None), metrics);
    spec(ListenerRole::Probes, address, Authenticator::Everyone(Principal::anonymous()), routes)
}

fn pages(readiness: AdminPage, metrics: MetricsSource) -> Routes {
    let [health, ready] = HEALTH_PATHS;
    Routes::new()
        .with(health, Arc::new(AdminPage::Health))
        .with(ready, Arc::new(readiness))
        .with("/metrics", Arc::new(AdminPage::Metrics(metrics)))
}

fn spec(role: ListenerRole, address: SocketAddr, callers: Authenticator, routes: Routes) -> ListenerSpec {
    let settings =
        ListenSettings { drain_max: DRAIN_MAX, ..ListenSettings::new(address, BODY_BYTES_MAX, CONNECTIONS_MAX) };
    ListenerSpec { role, settings, limits: ListenerLimits::default(), callers, routes, peers: None, audit: None }
}

enum AdminPage {
    /// Responds as long as the process serves HTTP.
    Health,
    /// A failing upstream does not make the gateway unready: others are served. `?verbose` shows all to operators.
    Readiness(Readiness, Option<UpstreamHealthList>),
    Metrics(MetricsSource),
}

#[async_trait]
impl Endpoint for AdminPage {
    async fn serve(&self, request: Box<Inbound>) -> FaceResponse {
        match self {
            Self::Health => text(StatusCode::OK, "ok\n".into()),
            Self::Readiness(readiness, upstreams) => {
                let reasons = readiness.reasons();
                let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                if let Some(upstreams) = upstreams.as_ref().filter(|_| is_verbose(request.query.as_deref())) {
                    return verbose(status, readiness, &upstreams.looks());
                }
                let first = if reasons.is_empty() { vec!["ready"] } else { reasons };
                text(status, [first, readiness.limits()].concat().join("\n") + "\n")
            }
            Self::Metrics(metrics) => text(StatusCode::OK, metrics.read()),
        }
    }

    fn is_page(&self) -> bool {
        true
    }
}

fn is_verbose(query: Option<&str>) -> bool {
    url::form_urlencoded::parse(query.unwrap_or_default().as_bytes()).any(|(name, _)| name == "verbose")
}

fn verbose(status: StatusCode, readiness: &Readiness, upstreams: &[HealthReport]) -> FaceResponse {
    let (reasons, limits) = (readiness.reasons(), readiness.limits());
    let whole = serde_json::json!({
        "ready": reasons.is_empty(), "reasons": reasons, "limits": limits, "upstreams": upstreams,
    });
    let mut response = text(status, format!("{whole}\n"));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Sorts the page's families and the series in each, so that the order is stable.
fn in_order(page: &str) -> String {
    let mut families: Vec<&str> = page.split("\n\n").filter(|family| !family.trim().is_empty()).collect();
    families.sort_unstable();
    let mut ordered = String::with_capacity(page.len());
    for family in families {
        let (comments, mut samples): (Vec<&str>, Vec<&str>) = family.lines().partition(|line| line.starts_with('#'));
        // A stable sort: the buckets of one series keep their order.
        samples.sort_by_cached_key(|sample| series(sample));
        for line in comments.into_iter().chain(samples) {
            ordered.push_str(line);
            ordered.push('\n');
        }
        ordered.push('\n');
    }
    ordered
}

/// The labels of a sample without `le` or `quantile`.
fn series(sample: &str) -> String {
    let labels = sample.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')).map_or("", |(labels, _)| labels);
    let bound = [",le=\"", ",quantile=\""].into_iter().find_map(|mark| labels.rfind(mark)).unwrap_or(labels.len());
    let is_bound = labels.starts_with("le=\"") || labels.starts_with("quantile=\"");
    if is_bound { String::new() } else { labels[..bound].to_owned() }
}

fn text(status: StatusCode, body: String) -> FaceResponse {
    let mut response = FaceResponse::new(full_body(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    // The version of the Prometheus text format; a browser shows it as plain text.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_shown_in_an_order_that_stays() {
        let page = "# HELP b B\n# TYPE b counter\nb{u=\"2\"} 1\nb{u=\"1\"} 1\n\n# TYPE a histogram\n\
                    a_bucket{u=\"2\",le=\"0.5\"} 1\na_bucket{u=\"2\",le=\"10\"} 1\na_sum{u=\"2\"} 1\na_count{u=\"2\"} 1\n\
                    a_bucket{u=\"1\",le=\"0.5\"} 1\na_bucket{u=\"1\",le=\"10\"} 1\na_sum{u=\"1\"} 1\na_count{u=\"1\"} 1\n\n";
        let expected = "# HELP b B\n# TYPE b counter\nb{u=\"1\"} 1\nb{u=\"2\"} 1\n\n# TYPE a histogram\n\
                    a_bucket{u=\"1\",le=\"0.5\"} 1\na_bucket{u=\"1\",le=\"10\"} 1\na_sum{u=\"1\"} 1\na_count{u=\"1\"} 1\n\
                    a_bucket{u=\"2\",le=\"0.5\"} 1\na_bucket{u=\"2\",le=\"10\"} 1\na_sum{u=\"2\"} 1\na_count{u=\"2\"} 1\n\n";
        assert_eq!(in_order(page), expected);
    }
}
