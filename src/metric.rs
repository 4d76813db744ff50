//! Declares every metric once: its name, its description and its first series, so that alerts find the series early. Any
//! module may record metrics through the `metrics` facade. `docs/operating.md` lists the labels and their values.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use metrics::{Gauge, Label, Unit, describe_counter, describe_gauge, describe_histogram};

use self::FirstSeries::{Database, Elsewhere, Process, Upstream};

#[derive(Clone, Copy)]
enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// Labels with their values: there is a series for each combination, or one without labels.
type FirstLabels = &'static [(&'static str, &'static [&'static str])];

#[derive(Clone, Copy)]
enum FirstSeries {
    /// Created with the process.
    Process(FirstLabels),
    /// Created with each upstream; its name is their first label.
    Upstream(FirstLabels),
    /// Created with a store in a database, without labels.
    Database,
    /// Created by the module that counts.
    Elsewhere,
}

struct MetricFamily {
    kind: MetricKind,
    name: &'static str,
    unit: Unit,
    text: &'static str,
    first: FirstSeries,
}

macro_rules! families {
    ($($(#[$doc:meta])* $constant:ident = $name:literal: $kind:ident $unit:ident $first:expr, $text:literal;)*) => {
        $($(#[$doc])* pub const $constant: &str = $name;)*

        const FAMILIES: &[MetricFamily] = &[$(
            MetricFamily { kind: MetricKind::$kind, name: $name, unit: Unit::$unit, text: $text, first: $first },
        )*];
    };
}

families! {
    BUILD_INFO = "taskgate_build_info": Gauge Count Elsewhere, "Always 1, by version of the program";
    READY = "taskgate_ready": Gauge Count Process(&[]), "Whether /readyz says ready";

    HTTP_REQUESTS = "taskgate_http_requests_total": Counter Count Elsewhere, "Responses sent, by listener and status";
    HTTP_REFUSED = "taskgate_http_refused_total": Counter Count
        Process(&[("reason", &["host_foreign", "unauthorized", "connections_max", "connections_per_address_max"])]),
        "Refused requests and connections, by reason";
    HTTP_PANICS = "taskgate_http_panics_total": Counter Count Process(&[]), "Requests with a panic in their handler";
    HTTP_IN_FLIGHT = "taskgate_http_in_flight": Gauge Count Elsewhere, "Requests in progress, by listener";
    CONNECTIONS = "taskgate_connections": Gauge Count Elsewhere, "Open connections, by listener";
    ACCEPT_PAUSES = "taskgate_accept_pauses_total": Counter Count Elsewhere,
        "Failed accepts that made a listener pause";
    CERTIFICATE_END = "taskgate_certificate_end_seconds": Gauge Seconds Process(&[("use", &["clients", "replicas"])]),
        "Unix time of the end of a certificate, by use; 0 without one";

    REQUESTS = "taskgate_requests_total": Counter Count Elsewhere, "Requests of clients, by upstream and outcome";
    ANSWER_BYTES = "taskgate_answer_bytes": Gauge Bytes Process(&[]), "Bytes held by responses in progress";
    ANSWERS_REFUSED = "taskgate_answers_refused_total": Counter Count
        Process(&[("reason", &["too_much_unread", "answers_full"])]),
        "Responses and requests refused because responses in progress hold all bytes, by reason";
    TASKS_CREATED = "taskgate_tasks_created_total": Counter Count Upstream(&[]), "Handles created, by upstream";
    /// Replicas on one database settle each other's tasks: only the sum of all replicas is a count.
    TASKS_IN_FLIGHT = "taskgate_tasks_in_flight": Gauge Count Upstream(&[]),
        "Unsettled tasks, by upstream; of gateways with one database their sum";
    TASKS_SETTLED = "taskgate_tasks_settled_total": Counter Count
        Upstream(&[("outcome", &["returned", "tool_error", "upstream_error", "cancelled"])]),
        "Settled tasks, by upstream and outcome";
    /// Counted from the dispatch of the call if that came before the task.
    TASK_AGE = "taskgate_task_age_seconds": Histogram Seconds Upstream(&[]), "Age of a task when it settled";
    GRACE = "taskgate_grace_total": Counter Count Upstream(&[("result", &["plain", "task"])]),
        "Outcomes of the grace period, by upstream and result";
    QUESTIONS = "taskgate_questions_total": Counter Count Upstream(&[("result", &["put", "refused"])]),
        "Questions of upstreams in mid-call, by upstream and result";
    RECOVERED = "taskgate_recovered_total": Counter Count Process(&[("outcome", &["resumed", "rerun", "failed"])]),
        "Tasks of earlier incarnations, by the outcome of their recovery";
    TASK_POLLS = "taskgate_task_polls_total": Counter Count Process(&[]), "Polls of tasks";
    TASK_MISSES = "taskgate_task_misses_total": Counter Count Process(&[]), "Look-ups of tasks that found none";
    UPSTREAM_REQUEST = "taskgate_upstream_request_seconds": Histogram Seconds Elsewhere,
        "Duration of an upstream request";
    UPSTREAM_IN_FLIGHT = "taskgate_upstream_in_flight": Gauge Count Upstream(&[]),
        "Tool calls that hold a permit of an upstream";
    UPSTREAM_QUEUED = "taskgate_upstream_queued": Gauge Count Upstream(&[]), "Tool calls that wait for a permit";
    UPSTREAM_SILENCE = "taskgate_upstream_silent_seconds": Gauge Seconds Upstream(&[]),
        "Time since an upstream's last message about any call in progress; 0 without calls";
    UPSTREAM_SHED = "taskgate_upstream_shed_total": Counter Count Upstream(&[]),
        "Calls refused because the queue was full or too slow";
    BREAKER_OPEN = "taskgate_upstream_breaker_open": Gauge Count Upstream(&[]),
        "Whether new requests are refused because the upstream is failing";
    BREAKER_OPENED = "taskgate_upstream_breaker_opened_total": Counter Count Upstream(&[]),
        "How often an upstream was found to be failing";
    TOOLS_CUT_OFF = "taskgate_upstream_tools_cut_off": Gauge Count Upstream(&[]),
        "Above 0 while an upstream's tool list is larger than accepted";
    UPSTREAM_FAILURES = "taskgate_upstream_failures_total": Counter Count
        Upstream(&[("reason", &[
            "upstream_unreachable", "upstream_timeout", "upstream_closed", "upstream_http_status", "upstream_malformed",
        ])]),
        "Failures of an upstream, by upstream and reason";
    UPSTREAM_RESENT = "taskgate_upstream_resent_total": Counter Count Upstream(&[]),
        "Requests resent because no byte had been sent";
    UPSTREAM_SESSIONS = "taskgate_upstream_sessions": Gauge Count Upstream(&[]), "Open sessions at an upstream";
    UPSTREAM_LISTENS = "taskgate_upstream_listens": Gauge Count Upstream(&[]),
        "Open subscriptions/listen streams at an upstream";
    UPSTREAM_DROPPED = "taskgate_upstream_dropped_total": Counter Count Upstream(&[("reason", &["client_gone"])]),
        "Unusable upstream messages, by reason";
    PIPED = "taskgate_piped_messages_total": Counter Count Elsewhere,
        "Messages of session clients forwarded, by upstream and kind";
    SESSION_RENEWALS = "taskgate_session_renewals_total": Counter Count
        Upstream(&[("outcome", &["renewed", "failed"])]),
        "Upstream sessions reopened, by upstream and outcome";
    ENDPOINT_ABSENCES = "taskgate_endpoint_absences_total": Counter Count Upstream(&[]),
        "Responses of a combined endpoint that lacked an upstream";
    AUDIT_RECORDS = "taskgate_audit_records_total": Counter Count Process(&[]), "Lines written to the audit file";
    AUDIT_LOST = "taskgate_audit_lost_total": Counter Count Process(&[]),
        "Audit records dropped because the file did not take them";
    LOG_LINES_LOST = "taskgate_log_lines_lost_total": Counter Count Process(&[]),
        "Log lines dropped because standard error was not read";
    LISTENERS = "taskgate_listen_streams": Gauge Count Upstream(&[]), "Open subscriptions/listen streams, by upstream";
    LISTENERS_REFUSED = "taskgate_listen_refused_total": Counter Count Upstream(&[]),
        "subscriptions/listen refused because too many are open";
    SSE_STREAMS = "taskgate_sse_streams": Gauge Count Upstream(&[]),
        "Open streams of HTTP+SSE towards clients, by upstream";
    SSE_STREAMS_REFUSED = "taskgate_sse_refused_total": Counter Count Upstream(&[]),
        "Streams of HTTP+SSE refused because too many are open";
    FORWARDED = "taskgate_forwarded_total": Counter Count
        Process(&[("reason", &["session", "stream", "held_call"]), ("outcome", &["answered", "unreachable", "lost"])]),
        "Requests forwarded to the replica that owns their session, stream or held call, by reason and outcome";
    CONFIG_RELOADS = "taskgate_config_reloads_total": Counter Count Process(&[("outcome", &["applied", "rejected"])]),
        "Reloads of the configuration, by outcome";
    RATE_LIMITED = "taskgate_rate_limited_total": Counter Count Elsewhere,
        "Requests refused because their principal exceeded a rate";
    QUOTA_REFUSED = "taskgate_quota_refused_total": Counter Count
        Process(&[("limit", &["principal", "all", "principal_bytes", "all_bytes"])]),
        "Calls and tasks refused because there are too many, by limit";
    /// With a shared store each replica reports the same sum.
    STORE_BYTES = "taskgate_store_bytes": Gauge Bytes Process(&[]),
        "Bytes of stored tasks, of all gateways that share a store";
    /// Stored bytes above `stored_bytes_max`: outcomes of tasks that were admitted below it.
    STORE_BYTES_ABOVE = "taskgate_store_bytes_above_max": Gauge Bytes Process(&[]),
        "Stored bytes above stored_bytes_max: new tasks are refused meanwhile";
    STORE_ROWS = "taskgate_store_rows": Gauge Count Process(&[]), "Stored tasks, of all gateways that share a store";
    STORE_COMMITS = "taskgate_store_commits_total": Counter Count Process(&[]),
        "Transactions of a store on disk or in a database";
    STORE_COMMIT_TIME = "taskgate_store_commit_seconds": Histogram Seconds Process(&[]),
        "Duration of one transaction until it was durable";
    STORE_BATCH = "taskgate_store_batch_writes": Histogram Count Process(&[]), "Writes per transaction";
    STORE_FAILURES = "taskgate_store_failures_total": Counter Count Process(&[("reason", &["io", "full"])]),
        "Transactions that failed, by reason";
    STORE_DAMAGED = "taskgate_store_damaged_total": Counter Count Process(&[]), "Rows with a damaged record";
    STORE_FREE_BYTES = "taskgate_store_free_bytes": Gauge Bytes Process(&[]), "Free bytes of the store's disk";
    STORE_FILE_BYTES = "taskgate_store_file_bytes": Gauge Bytes Process(&[]),
        "Bytes of the disk store's file and its log";

    // Metrics of a shared database.

    DATABASE_UNRESOLVED_WRITES = "taskgate_database_unresolved_writes_total": Counter Count Database,
        "Task writes with an unknown commit";
    DATABASE_BARRIERS = "taskgate_database_barriers_total": Counter Count Database,
        "Transactions that confirmed earlier reads";
    DATABASE_OLDEST_TRANSACTION = "taskgate_database_oldest_transaction_seconds": Gauge Seconds Database,
        "Age of the oldest foreign transaction in the database";
    DATABASE_DEAD_ROWS = "taskgate_database_dead_rows": Gauge Count Database,
        "Dead row versions of tasks that are not freed yet";
    REPLICA_HEARTBEATS = "taskgate_replica_heartbeats_total": Counter Count Database,
        "Acknowledged heartbeats of this replica";
    REPLICA_HEARTBEAT_AGE = "taskgate_replica_heartbeat_age_seconds": Gauge Seconds Database,
        "Age of the last acknowledged heartbeat";
    REPLICAS_LIVING = "taskgate_replicas_living": Gauge Count Database, "Live replicas, this one included";
    REPLICA_CLAIMED = "taskgate_replica_claimed_tasks_total": Counter Count Database,
        "Tasks taken over from replicas that ended";
    REPLICA_FENCED = "taskgate_replica_fenced_writes_total": Counter Count Database,
        "Writes refused because another replica had taken the task over";
}

/// Describes all families and creates the series of the process. The recorder must be installed before.
pub(crate) fn begin() {
    for family in FAMILIES {
        family.describe();
        if let Process(labels) = family.first {
            family.begin(vec![], labels);
        }
    }
}

/// Creates the series of an upstream.
pub fn begin_upstream(upstream: &Arc<str>) {
    let of_upstream = vec![Label::new("upstream", Arc::clone(upstream))];
    for family in FAMILIES {
        if let Upstream(labels) = family.first {
            family.begin(of_upstream.clone(), labels);
        }
    }
}

/// Creates the series of a shared database, which exist only with such a store.
pub fn begin_database() {
    for family in FAMILIES {
        if let Database = family.first {
            family.register(vec![]);
        }
    }
}

impl MetricFamily {
    fn describe(&self) {
        match self.kind {
            MetricKind::Counter => describe_counter!(self.name, self.unit, self.text),
            MetricKind::Gauge => describe_gauge!(self.name, self.unit, self.text),
            MetricKind::Histogram => describe_histogram!(self.name, self.unit, self.text),
        }
    }

    fn begin(&self, of: Vec<Label>, labels: FirstLabels) {
        let mut series = vec![of];
        for &(label, values) in labels {
            let with = |known: Vec<Label>| {
                values.iter().map(move |value| [&known[..], &[Label::from_static_parts(label, value)]].concat())
            };
            series = series.into_iter().flat_map(with).collect();
        }
        series.into_iter().for_each(|labels| self.register(labels));
    }

    /// Getting a handle creates an empty series.
    fn register(&self, labels: Vec<Label>) {
        match self.kind {
            MetricKind::Counter => drop(metrics::counter!(self.name, labels)),
            MetricKind::Gauge => drop(metrics::gauge!(self.name, labels)),
            MetricKind::Histogram => drop(metrics::histogram!(self.name, labels)),
        }
    }
}

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
    use std::collections::BTreeSet;

    use metrics_exporter_prometheus::PrometheusRecorder;

    use super::*;

    #[test]
    fn every_metric_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
        assert!(names.iter().all(|name| name.starts_with("taskgate")));
    }

    /// The value of a series, named with its labels; 0 if it is absent.
    pub(crate) fn shown(recorder: &PrometheusRecorder, series: &str) -> f64 {
        let page = recorder.handle().render();
        let value = page.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or_default()
    }
}
