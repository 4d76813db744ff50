//! Installs logs and metrics, once per process and before any listener starts. Every module records through the facades
//! of `tracing` and `metrics`.

mod json_lines;

use std::io::{self, IsTerminal};
use std::time::Duration;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::TryInitError;

use crate::metric;
use json_lines::JsonLines;

/// The environment variable that says what is logged, such as `info,taskgate::server=debug`.
pub const LOG_FILTER: &str = "TASKGATE_LOG";

const LOG_FILTER_DEFAULT: &str = "info";

/// How often samples of histograms are folded together when nobody reads them.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Seconds; from a fast call to a task of a day.
const SPANS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0];

/// How log lines are written, always to standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people on a terminal, JSON elsewhere.
    #[default]
    Auto,
    People,
    /// One object per line. What a peer sent stays inside its string, line ends included (B160).
    Json,
}

/// Why telemetry is not there.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("{LOG_FILTER} is not a log filter")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    #[error("logs are installed already")]
    Logs(#[source] TryInitError),
    #[error("metrics cannot be installed")]
    Metrics(#[source] BuildError),
}

/// Installs the log and a panic hook that writes to it.
///
/// # Errors
/// Where the filter cannot be read, or a log was installed before.
pub fn install_logs(format: LogFormat) -> Result<(), TelemetryError> {
    use tracing_subscriber::util::SubscriberInitExt;

    let directives = std::env::var(LOG_FILTER).unwrap_or_default();
    let directives = if directives.is_empty() { LOG_FILTER_DEFAULT } else { &directives };
    let filter = EnvFilter::try_new(directives).map_err(TelemetryError::Filter)?;
    let terminal = io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(terminal);
    let people = match format {
        LogFormat::Auto => terminal,
        LogFormat::People => true,
        LogFormat::Json => false,
    };
    let installed = match people {
        true => log.finish().try_init(),
        false => log.fmt_fields(JsonLines).event_format(JsonLines).finish().try_init(),
    };
    installed.map_err(TelemetryError::Logs)?;
    // A panic's message may quote what a client sent; its place is enough to find the bug.
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        tracing::error!(place, "panic");
    }));
    Ok(())
}

/// Installs the metrics recorder and describes every metric. [`keep_metrics`] must run beside it.
///
/// # Errors
/// Where a recorder was installed before.
pub fn install_metrics() -> Result<PrometheusHandle, TelemetryError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SPANS)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(TelemetryError::Metrics)?;
    describe();
    Ok(handle)
}

/// Keeps samples from piling up between two scrapes. Never returns; cancel by dropping.
pub async fn keep_metrics(handle: PrometheusHandle) {
    loop {
        tokio::time::sleep(UPKEEP_INTERVAL).await;
        handle.run_upkeep();
    }
}

/// What a metric is, for its description.
#[derive(Clone, Copy)]
enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

const DESCRIPTIONS: [(MetricKind, &str, Unit, &str); 45] = [
    (MetricKind::Counter, metric::HTTP_REQUESTS, Unit::Count, "Answers given, by listener and status"),
    (MetricKind::Counter, metric::HTTP_REFUSED, Unit::Count, "Requests and connections turned away, by reason"),
    (MetricKind::Counter, metric::HTTP_PANICS, Unit::Count, "Requests whose handler panicked"),
    (MetricKind::Gauge, metric::HTTP_IN_FLIGHT, Unit::Count, "Requests being answered now, by listener"),
    (MetricKind::Gauge, metric::CONNECTIONS, Unit::Count, "Open connections, by listener"),
    (MetricKind::Counter, metric::ACCEPT_PAUSES, Unit::Count, "Failed accepts that made a listener pause"),
    (MetricKind::Counter, metric::TASKS_CREATED, Unit::Count, "Handles created, by upstream"),
    (MetricKind::Gauge, metric::TASKS_IN_FLIGHT, Unit::Count, "Unsettled tasks, by upstream"),
    (MetricKind::Counter, metric::TASKS_SETTLED, Unit::Count, "Settled tasks, by upstream and outcome"),
    (MetricKind::Histogram, metric::TASK_AGE, Unit::Seconds, "Age of a task when it settled"),
    (MetricKind::Counter, metric::GRACE, Unit::Count, "How calls left the grace period, by upstream and result"),
    (MetricKind::Counter, metric::QUESTIONS, Unit::Count, "Questions of upstreams in mid-call, by upstream and result"),
    (MetricKind::Counter, metric::RECOVERED, Unit::Count, "Tasks of earlier lives, by what was done about them"),
    (MetricKind::Counter, metric::TASK_POLLS, Unit::Count, "Polls of tasks"),
    (MetricKind::Counter, metric::TASK_MISSES, Unit::Count, "Look-ups of tasks that found none"),
    (MetricKind::Histogram, metric::UPSTREAM_REQUEST, Unit::Seconds, "Time an upstream call took"),
    (MetricKind::Gauge, metric::UPSTREAM_IN_FLIGHT, Unit::Count, "Tool calls that hold a place at an upstream"),
    (MetricKind::Gauge, metric::UPSTREAM_QUEUED, Unit::Count, "Tool calls that wait for a place"),
    (MetricKind::Counter, metric::UPSTREAM_SHED, Unit::Count, "Calls refused because the queue was full or too slow"),
    (MetricKind::Gauge, metric::BREAKER_OPEN, Unit::Count, "Whether new requests are refused as the upstream is ill"),
    (MetricKind::Counter, metric::BREAKER_OPENED, Unit::Count, "How often an upstream was found to be ill"),
    (MetricKind::Gauge, metric::TOOLS_CUT_OFF, Unit::Count, "Whether an upstream's tool list is larger than is taken"),
    (
        MetricKind::Counter,
        metric::UPSTREAM_FAILURES,
        Unit::Count,
        "What was wrong with an upstream, by upstream and reason",
    ),
    (MetricKind::Counter, metric::UPSTREAM_RESENT, Unit::Count, "Requests sent once more as nothing of them had left"),
    (MetricKind::Gauge, metric::UPSTREAM_SESSIONS, Unit::Count, "Open sessions at an upstream"),
    (MetricKind::Gauge, metric::UPSTREAM_LISTENS, Unit::Count, "Open subscriptions/listen streams at an upstream"),
    (MetricKind::Counter, metric::UPSTREAM_DROPPED, Unit::Count, "Upstream messages that nobody could use, by reason"),
    (MetricKind::Counter, metric::PIPED, Unit::Count, "Messages of session clients passed on, by upstream and kind"),
    (
        MetricKind::Counter,
        metric::SESSION_RENEWALS,
        Unit::Count,
        "Upstream sessions opened anew, by upstream and outcome",
    ),
    (MetricKind::Gauge, metric::LISTENERS, Unit::Count, "Open subscriptions/listen streams, by upstream"),
    (MetricKind::Counter, metric::LISTENERS_REFUSED, Unit::Count, "subscriptions/listen refused as too many are open"),
    (MetricKind::Gauge, metric::SSE_STREAMS, Unit::Count, "Open streams of HTTP+SSE towards clients, by upstream"),
    (MetricKind::Counter, metric::SSE_STREAMS_REFUSED, Unit::Count, "Streams of HTTP+SSE refused as too many are open"),
    (MetricKind::Counter, metric::CONFIG_RELOADS, Unit::Count, "Readings of the configuration, by outcome"),
    (MetricKind::Counter, metric::RATE_LIMITED, Unit::Count, "Requests refused for what their principal did before"),
    (
        MetricKind::Counter,
        metric::QUOTA_REFUSED,
        Unit::Count,
        "Calls and tasks refused as there are too many, by limit",
    ),
    (MetricKind::Gauge, metric::STORE_BYTES, Unit::Bytes, "Bytes that kept tasks take"),
    (MetricKind::Gauge, metric::STORE_ROWS, Unit::Count, "Kept tasks"),
    (MetricKind::Counter, metric::STORE_COMMITS, Unit::Count, "Transactions of the disk store"),
    (MetricKind::Histogram, metric::STORE_COMMIT_TIME, Unit::Seconds, "Time that one transaction took, fsync included"),
    (MetricKind::Histogram, metric::STORE_BATCH, Unit::Count, "Writes that one transaction held"),
    (MetricKind::Counter, metric::STORE_FAILURES, Unit::Count, "Transactions that failed, by reason"),
    (MetricKind::Counter, metric::STORE_DAMAGED, Unit::Count, "Rows whose record was damaged"),
    (MetricKind::Gauge, metric::STORE_FREE_BYTES, Unit::Bytes, "Free bytes of the disk that the store is on"),
    (MetricKind::Gauge, metric::STORE_FILE_BYTES, Unit::Bytes, "Bytes of the disk store's file and its log"),
];

fn describe() {
    for (kind, name, unit, text) in DESCRIPTIONS {
        match kind {
            MetricKind::Counter => describe_counter!(name, unit, text),
            MetricKind::Gauge => describe_gauge!(name, unit, text),
            MetricKind::Histogram => describe_histogram!(name, unit, text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each constant of the names module is described, once.
    #[test]
    fn every_metric_is_described_once() {
        let constants = include_str!("metric.rs").lines().filter(|line| line.starts_with("pub const "));
        let names: Vec<&str> = constants.filter_map(|line| line.split('"').nth(1)).collect();
        let described = DESCRIPTIONS.map(|(_, name, _, _)| name);
        assert_eq!(names, described);
        assert!(names.iter().all(|name| name.starts_with("taskgate_")));
    }
}
