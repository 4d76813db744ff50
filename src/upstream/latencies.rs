//! Measures how long exchanges with one upstream take.

use std::sync::Arc;
use std::time::Duration;

use metrics::Histogram;

use crate::metric;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeClass {
    Call,
    Other,
    Resumed,
}

/// By class. The histograms are looked up once.
#[derive(Debug)]
pub(crate) struct ExchangeLatencies {
    call: Histogram,
    other: Histogram,
    resumed: Histogram,
}

impl ExchangeLatencies {
    /// The metrics recorder must be installed before.
    pub(crate) fn of(upstream: &Arc<str>) -> Self {
        let histogram = |class: &'static str| metrics::histogram!(metric::UPSTREAM_REQUEST, "upstream" => Arc::clone(upstream), "class" => class);
        Self { call: histogram("call"), other: histogram("other"), resumed: histogram("resumed") }
    }

    pub(crate) fn record(&self, class: ExchangeClass, took: Duration) {
        let histogram = match class {
            ExchangeClass::Call => &self.call,
            ExchangeClass::Other => &self.other,
            ExchangeClass::Resumed => &self.resumed,
        };
        histogram.record(took);
    }
}
