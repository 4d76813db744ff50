//! Counts a listener's requests and connections without a metric lookup per request.

use std::sync::OnceLock;

use http::StatusCode;
use metrics::{Counter, Gauge};

use crate::metric;

const STATUS_FIRST: u16 = 100;
const STATUS_COUNT: usize = 900;

/// The metrics of one listener. The recorder must be installed before a listener starts.
pub(super) struct ListenerMetrics {
    listener: &'static str,
    in_flight: Gauge,
    connections: Gauge,
    answers: Vec<OnceLock<Counter>>,
    accept_pauses: Counter,
}

impl ListenerMetrics {
    pub(super) fn new(listener: &'static str) -> Self {
        let metrics = Self {
            listener,
            in_flight: metrics::gauge!(metric::HTTP_IN_FLIGHT, "listener" => listener),
            connections: metrics::gauge!(metric::CONNECTIONS, "listener" => listener),
            answers: (0..STATUS_COUNT).map(|_| OnceLock::new()).collect(),
            accept_pauses: metrics::counter!(metric::ACCEPT_PAUSES, "listener" => listener),
        };
        // Creates the series before the first request.
        let _ = metrics.counter_of(StatusCode::OK);
        metrics
    }

    pub(super) const fn name(&self) -> &'static str {
        self.listener
    }

    pub(super) fn answered(&self, status: StatusCode) {
        if let Some(counter) = self.counter_of(status) {
            counter.increment(1);
        }
    }

    fn counter_of(&self, status: StatusCode) -> Option<&Counter> {
        let counter = self.answers.get(usize::from(status.as_u16().saturating_sub(STATUS_FIRST)))?;
        Some(counter.get_or_init(|| {
            let status = status.as_str().to_owned();
            metrics::counter!(metric::HTTP_REQUESTS, "listener" => self.listener, "status" => status)
        }))
    }

    pub(super) fn request(&self) -> GaugeGuard {
        GaugeGuard::new(self.in_flight.clone())
    }

    pub(super) fn connection(&self) -> GaugeGuard {
        GaugeGuard::new(self.connections.clone())
    }

    /// Counts a connection or request that hyper refused.
    pub(super) fn refused(&self, reason: &'static str) {
        metrics::counter!(metric::HTTP_REFUSED, "reason" => reason).increment(1);
        tracing::debug!(listener = self.listener, reason, "connection refused");
    }

    pub(super) fn accept_paused(&self) {
        self.accept_pauses.increment(1);
    }
}

debug_members!(ListenerMetrics, |metrics| listener: metrics.listener);

#[derive(Debug)]
#[must_use]
pub(super) struct GaugeGuard(Gauge);

impl GaugeGuard {
    fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
