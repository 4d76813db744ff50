//! Names every metric once, so that dashboards and the code agree. Any module may record them through the `metrics`
//! facade. `telemetry::families` describes each, with its labels.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use metrics::Gauge;

pub const BUILD_INFO: &str = "taskgate_build_info";
pub const READY: &str = "taskgate_ready";

pub const HTTP_REQUESTS: &str = "taskgate_http_requests_total";
pub const HTTP_REFUSED: &str = "taskgate_http_refused_total";
pub const HTTP_PANICS: &str = "taskgate_http_panics_total";
pub const HTTP_IN_FLIGHT: &str = "taskgate_http_in_flight";
pub const CONNECTIONS: &str = "taskgate_connections";
pub const ACCEPT_PAUSES: &str = "taskgate_accept_pauses_total";
pub const CERTIFICATE_END: &str = "taskgate_certificate_end_seconds";

/// Requests of clients, by `upstream` and `outcome`: `answered`, `stream` (an event stream began), `accepted` (a
/// notification), `error` (a JSON-RPC error, unless in a stream or forwarded), `refused` (an HTTP status from 400 on).
pub const REQUESTS: &str = "taskgate_requests_total";
pub const ANSWER_BYTES: &str = "taskgate_answer_bytes";
pub const ANSWERS_REFUSED: &str = "taskgate_answers_refused_total";
pub const TASKS_CREATED: &str = "taskgate_tasks_created_total";
/// Unsettled tasks, by `upstream`. Replicas on one database settle each other's tasks: only their sum is a count.
pub const TASKS_IN_FLIGHT: &str = "taskgate_tasks_in_flight";
pub const TASKS_SETTLED: &str = "taskgate_tasks_settled_total";
/// Age of a task when it settled, in seconds, by `upstream`; from when its call was sent, where that was before it became a task.
pub const TASK_AGE: &str = "taskgate_task_age_seconds";
/// Outcomes of the grace period, by `upstream` and `result` (`plain` or `task`).
pub const GRACE: &str = "taskgate_grace_total";
/// Questions of upstreams during calls, by `upstream` and `result` (`put`, `refused`, `withdrawn`, `expired`, `flood`).
pub const QUESTIONS: &str = "taskgate_questions_total";
/// Tasks of earlier processes, by the `outcome` of their recovery (`dispatched`, `resumed`, `rerun`, `failed`, `poison`,
/// `settled`, `notified`).
pub const RECOVERED: &str = "taskgate_recovered_total";
pub const TASK_POLLS: &str = "taskgate_task_polls_total";
pub const TASK_MISSES: &str = "taskgate_task_misses_total";
/// Duration of an upstream request in seconds, by `upstream` and `class` (`call`, `other`, `resumed`).
pub const UPSTREAM_REQUEST: &str = "taskgate_upstream_request_seconds";
pub const UPSTREAM_IN_FLIGHT: &str = "taskgate_upstream_in_flight";
pub const UPSTREAM_QUEUED: &str = "taskgate_upstream_queued";
pub const UPSTREAM_SHED: &str = "taskgate_upstream_shed_total";
pub const BREAKER_OPEN: &str = "taskgate_upstream_breaker_open";
pub const BREAKER_OPENED: &str = "taskgate_upstream_breaker_opened_total";
pub const TOOLS_CUT_OFF: &str = "taskgate_upstream_tools_cut_off";
/// Failures of an upstream, by `upstream` and `reason` (`upstream_unreachable`, `upstream_tls`, `upstream_auth`,
/// `upstream_redirect`, `upstream_http_status`, `upstream_malformed`, `upstream_closed`, `upstream_timeout`).
pub const UPSTREAM_FAILURES: &str = "taskgate_upstream_failures_total";
pub const UPSTREAM_RESENT: &str = "taskgate_upstream_resent_total";
pub const UPSTREAM_SESSIONS: &str = "taskgate_upstream_sessions";
pub const UPSTREAM_LISTENS: &str = "taskgate_upstream_listens";
pub const UPSTREAM_DROPPED: &str = "taskgate_upstream_dropped_total";
/// Forwarded messages of session clients, by `upstream` and `kind` (`call`, `request`, `notification`, `response`, `stream`).
pub const PIPED: &str = "taskgate_piped_messages_total";
/// Upstream sessions reopened without their clients' knowledge, by `upstream` and `outcome` (`renewed`, `failed`).
pub const SESSION_RENEWALS: &str = "taskgate_session_renewals_total";
pub const ENDPOINT_ABSENCES: &str = "taskgate_endpoint_absences_total";
pub const AUDIT_RECORDS: &str = "taskgate_audit_records_total";
pub const AUDIT_LOST: &str = "taskgate_audit_lost_total";
pub const LOG_LINES_LOST: &str = "taskgate_log_lines_lost_total";
pub const LISTENERS: &str = "taskgate_listen_streams";
pub const LISTENERS_REFUSED: &str = "taskgate_listen_refused_total";
pub const SSE_STREAMS: &str = "taskgate_sse_streams";
pub const SSE_STREAMS_REFUSED: &str = "taskgate_sse_refused_total";
/// Requests forwarded to the replica that owns their session, stream or held call, by `reason` (`session`, `stream`, `held_call`)
/// and `outcome` (`answered`, `unreachable`, `lost`).
pub const FORWARDED: &str = "taskgate_forwarded_total";
/// Reloads of the configuration, by `outcome` (`applied`, `unchanged`, `rejected`).
pub const CONFIG_RELOADS: &str = "taskgate_config_reloads_total";
/// Requests refused because of their principal's rate, by `limit` (`requests`, `unknown_tasks`).
pub const RATE_LIMITED: &str = "taskgate_rate_limited_total";
/// Calls and tasks refused because there are too many, by `limit` (`principal`, `all`, `principal_bytes`).
pub const QUOTA_REFUSED: &str = "taskgate_quota_refused_total";
/// Bytes of stored tasks: with a shared store the sum of all replicas, the same at each.
pub const STORE_BYTES: &str = "taskgate_store_bytes";
/// Stored bytes above `stored_bytes_max`: outcomes of tasks that were admitted below it.
pub const STORE_BYTES_ABOVE: &str = "taskgate_store_bytes_above_max";
pub const STORE_ROWS: &str = "taskgate_store_rows";
pub const STORE_COMMITS: &str = "taskgate_store_commits_total";
pub const STORE_COMMIT_TIME: &str = "taskgate_store_commit_seconds";
pub const STORE_BATCH: &str = "taskgate_store_batch_writes";
pub const STORE_FAILURES: &str = "taskgate_store_failures_total";
pub const STORE_DAMAGED: &str = "taskgate_store_damaged_total";
pub const STORE_FREE_BYTES: &str = "taskgate_store_free_bytes";
pub const STORE_FILE_BYTES: &str = "taskgate_store_file_bytes";

// Metrics of a shared database.

/// Writes of tasks with an unknown commit.
pub const DATABASE_UNRESOLVED_WRITES: &str = "taskgate_database_unresolved_writes_total";
pub const DATABASE_BARRIERS: &str = "taskgate_database_barriers_total";
pub const DATABASE_OLDEST_TRANSACTION: &str = "taskgate_database_oldest_transaction_seconds";
pub const DATABASE_DEAD_ROWS: &str = "taskgate_database_dead_rows";
pub const REPLICA_HEARTBEATS: &str = "taskgate_replica_heartbeats_total";
pub const REPLICA_HEARTBEAT_AGE: &str = "taskgate_replica_heartbeat_age_seconds";
pub const REPLICAS_LIVING: &str = "taskgate_replicas_living";
pub const REPLICA_CLAIMED: &str = "taskgate_replica_claimed_tasks_total";
pub const REPLICA_FENCED: &str = "taskgate_replica_fenced_writes_total";

pub fn count_dropped(upstream: &Arc<str>, reason: &'static str) {
    metrics::counter!(UPSTREAM_DROPPED, "upstream" => Arc::clone(upstream), "reason" => reason).increment(1);
}

/// One owner's share of a gauge: two incarnations, or an upstream and its successor, may add to it. Its drop subtracts.
#[derive(Debug)]
#[must_use]
pub(crate) struct GaugeShare {
    gauge: Gauge,
    value: AtomicI64,
}

impl GaugeShare {
    /// A share of zero. The metrics recorder must be installed before the gauge is created.
    pub(crate) const fn new(gauge: Gauge) -> Self {
        Self { gauge, value: AtomicI64::new(0) }
    }

    pub(crate) fn add(&self, change: i32) {
        self.value.fetch_add(i64::from(change), Ordering::Relaxed);
        self.gauge.increment(f64::from(change));
    }

    /// Replaces the share; returns whether it changed.
    pub(crate) fn set(&self, value: u32) -> bool {
        let before = self.value.swap(i64::from(value), Ordering::Relaxed);
        self.gauge.increment((i64::from(value) - before) as f64);
        before != i64::from(value)
    }

    pub(crate) fn value(&self) -> i64 {
        self.value.load(Ordering::Relaxed)
    }
}

impl Drop for GaugeShare {
    fn drop(&mut self) {
        self.gauge.decrement(*self.value.get_mut() as f64);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use metrics_exporter_prometheus::PrometheusRecorder;

    /// The value of a series, named with its labels; 0 if it is absent.
    pub(crate) fn shown(recorder: &PrometheusRecorder, series: &str) -> f64 {
        let page = recorder.handle().render();
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or_default()
    }
}
