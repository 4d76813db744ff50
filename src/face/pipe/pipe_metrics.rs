//! Holds the metrics of one upstream's forwarded messages, looked up once.

use std::fmt;
use std::sync::Arc;

use metrics::{Counter, Histogram};

use crate::metric;

pub(in crate::face) struct PipeMetrics {
    pub(in crate::face) calls: Counter,
    pub(in crate::face) requests: Counter,
    pub(in crate::face) notifications: Counter,
    pub(in crate::face) responses: Counter,
    pub(in crate::face) streams: Counter,
    /// The time until the last byte of a response.
    pub(in crate::face) call_time: Histogram,
    pub(in crate::face) request_time: Histogram,
}

impl PipeMetrics {
    /// The metrics recorder must be installed before.
    pub(in crate::face) fn of(upstream: &Arc<str>) -> Self {
        let counter =
            |kind: &'static str| metrics::counter!(metric::PIPED, "upstream" => Arc::clone(upstream), "kind" => kind);
        let histogram = |class: &'static str| metrics::histogram!(metric::UPSTREAM_REQUEST, "upstream" => Arc::clone(upstream), "class" => class);
        Self {
            calls: counter("call"),
            requests: counter("request"),
            notifications: counter("notification"),
            responses: counter("response"),
            streams: counter("stream"),
            call_time: histogram("call"),
            request_time: histogram("other"),
        }
    }
}

impl fmt::Debug for PipeMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeMetrics").finish_non_exhaustive()
    }
}
