//! Assembles the pages for operators.

use std::sync::Arc;

use metrics_exporter_prometheus::PrometheusHandle;

use super::task_store::SharedIncarnation;
use crate::engine::Engine;
use crate::face::http::Endpoint;
use crate::face::operators::{HeldCalls, OperatorReplica, Operators, ProcessStatus, TaskTotals, UnopenedOperators};
use crate::server::admin::{self, MetricsSource, Readiness};
use crate::server::{AdminSettings, Authenticator, ListenerSpec, Routes};
use crate::store::PostgresStore;
use crate::upstream::limits::CallPermitsByName;
use crate::upstream::upstream_health::UpstreamHealthList;

/// The metrics, with the time-dependent ones of upstreams and of a shared store.
pub(super) fn metrics(
    page: PrometheusHandle,
    healths: UpstreamHealthList,
    shared: Option<&SharedIncarnation>,
) -> MetricsSource {
    let store = shared.map(|shared| Arc::clone(&shared.store));
    MetricsSource::from(page).refreshed_by(Arc::new(move || {
        healths.refresh_metrics();
        store.iter().for_each(|store| store.refresh_metrics());
    }))
}

/// The content of the admin listener's pages, besides the tasks.
#[derive(Clone)]
pub(super) struct OperatorsView {
    readiness: Readiness,
    healths: UpstreamHealthList,
    metrics: MetricsSource,
    permits: Arc<CallPermitsByName>,
}

impl OperatorsView {
    pub(super) fn new(
        readiness: &Readiness,
        healths: &UpstreamHealthList,
        metrics: &MetricsSource,
        permits: &Arc<CallPermitsByName>,
    ) -> Self {
        let (readiness, healths, metrics) = (readiness.clone(), healths.clone(), metrics.clone());
        Self { readiness, healths, metrics, permits: Arc::clone(permits) }
    }

    pub(super) fn site(
        &self,
        settings: &AdminSettings,
        callers: Authenticator,
        engine: &Arc<Engine>,
        shared: Option<&SharedIncarnation>,
    ) -> ListenerSpec {
        let Self { readiness, healths, metrics, .. } = self.clone();
        let mut site = admin::site(settings, callers, readiness, healths, metrics);
        site.audit = engine.audit().cloned();
        site.routes = self.add_tasks(site.routes, engine, shared.map(|shared| Arc::clone(&shared.store)));
        site
    }

    fn add_tasks(&self, routes: Routes, engine: &Arc<Engine>, shared: Option<Arc<PostgresStore>>) -> Routes {
        let Self { readiness, healths, permits, .. } = self.clone();
        let (of, beside) = (Arc::clone(engine), shared.clone());
        let status = move || {
            let (usage, reasons, limits) = (of.usage(), readiness.reasons(), readiness.limits());
            let tasks = TaskTotals {
                kept: usage.tasks,
                bytes: usage.bytes,
                bytes_max: of.stored_bytes_max(),
                unsettled: usage.unsettled,
                permits_taken: of.permits_taken(),
            };
            let version = env!("CARGO_PKG_VERSION");
            let replicas = beside.as_deref().map(OperatorReplica::all).unwrap_or_default();
            let ready = reasons.is_empty();
            let held_calls = HeldCalls::of(&permits);
            ProcessStatus { version, ready, reasons, limits, tasks, held_calls, replicas, upstreams: healths.looks() }
        };
        let operators = Operators::new(Arc::clone(engine), Box::new(status));
        let operators = Arc::new(match shared {
            Some(store) => operators.sharing(store),
            None => operators,
        });
        add_pages(routes, &(operators as Arc<dyn Endpoint>))
    }
}

/// The specification of the admin listener while the store is not open.
pub(super) fn unopened_site(
    settings: &AdminSettings,
    callers: Authenticator,
    readiness: &Readiness,
    metrics: PrometheusHandle,
) -> ListenerSpec {
    let mut site = admin::site(settings, callers, readiness.clone(), UpstreamHealthList::default(), metrics);
    let readiness = readiness.clone();
    let operators: Arc<dyn Endpoint> = Arc::new(UnopenedOperators::new(Box::new(move || readiness.reasons())));
    site.routes = add_pages(site.routes, &operators);
    site
}

fn add_pages(routes: Routes, operators: &Arc<dyn Endpoint>) -> Routes {
    let exact = ["/", "/tasks", "/calls", "/replicas"].into_iter();
    let routes = exact.fold(routes, |routes, path| routes.with(path, Arc::clone(operators)));
    ["/tasks/", "/replicas/"].into_iter().fold(routes, |routes, path| routes.below(path, Arc::clone(operators)))
}
