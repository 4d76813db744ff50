//! Describes each metric family, and creates known series, so that alerts find them early.

use std::sync::Arc;

use metrics::{Label, Unit, describe_counter, describe_gauge, describe_histogram};

use self::FirstSeries::{Database, Elsewhere, Process, Upstream};
use crate::metric;

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

pub(super) struct MetricFamily {
    kind: MetricKind,
    pub(super) name: &'static str,
    unit: Unit,
    text: &'static str,
    first: FirstSeries,
}

const fn counter(name: &'static str, text: &'static str, first: FirstSeries) -> MetricFamily {
    MetricFamily { kind: MetricKind::Counter, name, unit: Unit::Count, text, first }
}

const fn gauge(name: &'static str, unit: Unit, text: &'static str, first: FirstSeries) -> MetricFamily {
    MetricFamily { kind: MetricKind::Gauge, name, unit, text, first }
}

const fn histogram(name: &'static str, unit: Unit, text: &'static str, first: FirstSeries) -> MetricFamily {
    MetricFamily { kind: MetricKind::Histogram, name, unit, text, first }
}

/// In the order of [`metric`]; [`DATABASE_FAMILIES`] follow.
pub(super) const FAMILIES: [MetricFamily; 57] = [
    gauge(metric::BUILD_INFO, Unit::Count, "Always 1, by version of the program", Elsewhere),
    gauge(metric::READY, Unit::Count, "Whether /readyz says ready", Process(&[])),
    counter(metric::HTTP_REQUESTS, "Responses sent, by listener and status", Elsewhere),
    counter(
        metric::HTTP_REFUSED,
        "Refused requests and connections, by reason",
        Process(&[("reason", &["host_foreign", "unauthorized"])]),
    ),
    counter(metric::HTTP_PANICS, "Requests with a panic in their handler", Process(&[])),
    gauge(metric::HTTP_IN_FLIGHT, Unit::Count, "Requests in progress, by listener", Elsewhere),
    gauge(metric::CONNECTIONS, Unit::Count, "Open connections, by listener", Elsewhere),
    counter(metric::ACCEPT_PAUSES, "Failed accepts that made a listener pause", Elsewhere),
    gauge(
        metric::CERTIFICATE_END,
        Unit::Seconds,
        "Unix time of the end of a certificate, by use; 0 without one",
        Process(&[("use", &["clients", "replicas"])]),
    ),
    counter(metric::REQUESTS, "Requests of clients, by upstream and outcome", Elsewhere),
    gauge(metric::ANSWER_BYTES, Unit::Bytes, "Bytes held by responses in progress", Process(&[])),
    counter(
        metric::ANSWERS_REFUSED,
        "Responses and requests refused because responses in progress hold all bytes, by reason",
        Process(&[("reason", &["too_much_unread", "answers_full"])]),
    ),
    counter(metric::TASKS_CREATED, "Handles created, by upstream", Upstream(&[])),
    gauge(
        metric::TASKS_IN_FLIGHT,
        Unit::Count,
        "Unsettled tasks, by upstream; of gateways with one database their sum",
        Upstream(&[]),
    ),
    counter(
        metric::TASKS_SETTLED,
        "Settled tasks, by upstream and outcome",
        Upstream(&[("outcome", &["returned", "tool_error", "upstream_error", "cancelled"])]),
    ),
    histogram(metric::TASK_AGE, Unit::Seconds, "Age of a task when it settled", Upstream(&[])),
    counter(
        metric::GRACE,
        "Outcomes of the grace period, by upstream and result",
        Upstream(&[("result", &["plain", "task"])]),
    ),
    counter(
        metric::QUESTIONS,
        "Questions of upstreams in mid-call, by upstream and result",
        Upstream(&[("result", &["put", "refused"])]),
    ),
    counter(
        metric::RECOVERED,
        "Tasks of earlier incarnations, by the outcome of their recovery",
        Process(&[("outcome", &["resumed", "rerun", "failed"])]),
    ),
    counter(metric::TASK_POLLS, "Polls of tasks", Process(&[])),
    counter(metric::TASK_MISSES, "Look-ups of tasks that found none", Process(&[])),
    histogram(metric::UPSTREAM_REQUEST, Unit::Seconds, "Duration of an upstream request", Elsewhere),
    gauge(metric::UPSTREAM_IN_FLIGHT, Unit::Count, "Tool calls that hold a permit of an upstream", Upstream(&[])),
    gauge(metric::UPSTREAM_QUEUED, Unit::Count, "Tool calls that wait for a permit", Upstream(&[])),
    counter(metric::UPSTREAM_SHED, "Calls refused because the queue was full or too slow", Upstream(&[])),
    gauge(
        metric::BREAKER_OPEN,
        Unit::Count,
        "Whether new requests are refused because the upstream is failing",
        Upstream(&[]),
    ),
    counter(metric::BREAKER_OPENED, "How often an upstream was found to be failing", Upstream(&[])),
    gauge(
        metric::TOOLS_CUT_OFF,
        Unit::Count,
        "Above 0 while an upstream's tool list is larger than accepted",
        Upstream(&[]),
    ),
    counter(
        metric::UPSTREAM_FAILURES,
        "Failures of an upstream, by upstream and reason",
        Upstream(&[(
            "reason",
            &[
                "upstream_unreachable",
                "upstream_timeout",
                "upstream_closed",
                "upstream_http_status",
                "upstream_malformed",
            ],
        )]),
    ),
    counter(metric::UPSTREAM_RESENT, "Requests resent because no byte had been sent", Upstream(&[])),
    gauge(metric::UPSTREAM_SESSIONS, Unit::Count, "Open sessions at an upstream", Upstream(&[])),
    gauge(metric::UPSTREAM_LISTENS, Unit::Count, "Open subscriptions/listen streams at an upstream", Upstream(&[])),
    counter(
        metric::UPSTREAM_DROPPED,
        "Unusable upstream messages, by reason",
        Upstream(&[("reason", &["client_gone"])]),
    ),
    counter(metric::PIPED, "Messages of session clients forwarded, by upstream and kind", Elsewhere),
    counter(
        metric::SESSION_RENEWALS,
        "Upstream sessions reopened, by upstream and outcome",
        Upstream(&[("outcome", &["renewed", "failed"])]),
    ),
    counter(metric::ENDPOINT_ABSENCES, "Responses of a combined endpoint that lacked an upstream", Upstream(&[])),
    counter(metric::AUDIT_RECORDS, "Lines written to the audit file", Process(&[])),
    counter(metric::AUDIT_LOST, "Audit records dropped because the file did not take them", Process(&[])),
    counter(metric::LOG_LINES_LOST, "Log lines dropped because standard error was not read", Process(&[])),
    gauge(metric::LISTENERS, Unit::Count, "Open subscriptions/listen streams, by upstream", Upstream(&[])),
    counter(metric::LISTENERS_REFUSED, "subscriptions/listen refused because too many are open", Upstream(&[])),
    gauge(metric::SSE_STREAMS, Unit::Count, "Open streams of HTTP+SSE towards clients, by upstream", Upstream(&[])),
    counter(metric::SSE_STREAMS_REFUSED, "Streams of HTTP+SSE refused because too many are open", Upstream(&[])),
    counter(
        metric::FORWARDED,
        "Requests forwarded to the replica that owns their session, stream or held call, by reason and outcome",
        Process(&[("reason", &["session", "stream", "held_call"]), ("outcome", &["answered", "unreachable", "lost"])]),
    ),
    counter(
        metric::CONFIG_RELOADS,
        "Reloads of the configuration, by outcome",
        Process(&[("outcome", &["applied", "rejected"])]),
    ),
    counter(metric::RATE_LIMITED, "Requests refused because their principal exceeded a rate", Elsewhere),
    counter(
        metric::QUOTA_REFUSED,
        "Calls and tasks refused because there are too many, by limit",
        Process(&[("limit", &["principal", "all", "principal_bytes"])]),
    ),
    gauge(metric::STORE_BYTES, Unit::Bytes, "Bytes of stored tasks, of all gateways that share a store", Process(&[])),
    gauge(
        metric::STORE_BYTES_ABOVE,
        Unit::Bytes,
        "Stored bytes above stored_bytes_max: new tasks are refused meanwhile",
        Process(&[]),
    ),
    gauge(metric::STORE_ROWS, Unit::Count, "Stored tasks, of all gateways that share a store", Process(&[])),
    counter(metric::STORE_COMMITS, "Transactions of a store on disk or in a database", Process(&[])),
    histogram(
        metric::STORE_COMMIT_TIME,
        Unit::Seconds,
        "Duration of one transaction until it was durable",
        Process(&[]),
    ),
    histogram(metric::STORE_BATCH, Unit::Count, "Writes per transaction", Process(&[])),
    counter(metric::STORE_FAILURES, "Transactions that failed, by reason", Process(&[("reason", &["io", "full"])])),
    counter(metric::STORE_DAMAGED, "Rows with a damaged record", Process(&[])),
    gauge(metric::STORE_FREE_BYTES, Unit::Bytes, "Free bytes of the store's disk", Process(&[])),
    gauge(metric::STORE_FILE_BYTES, Unit::Bytes, "Bytes of the disk store's file and its log", Process(&[])),
];

/// Describes all families and creates the series of the process. The recorder must be installed before.
pub(super) fn begin() {
    for family in FAMILIES.iter().chain(&DATABASE_FAMILIES) {
        family.describe();
        if let Process(labels) = family.first {
            family.begin(vec![], labels);
        }
    }
}

pub(super) fn begin_upstream(upstream: &Arc<str>) {
    let of_upstream = vec![Label::new("upstream", Arc::clone(upstream))];
    for family in &FAMILIES {
        if let Upstream(labels) = family.first {
            family.begin(of_upstream.clone(), labels);
        }
    }
}

pub(super) fn begin_database() {
    for family in &DATABASE_FAMILIES {
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

/// The families of a shared database, which exist only with such a store; in the order of [`metric`].
pub(super) const DATABASE_FAMILIES: [MetricFamily; 9] = [
    counter(metric::DATABASE_UNRESOLVED_WRITES, "Task writes with an unknown commit", Database),
    counter(metric::DATABASE_BARRIERS, "Transactions that confirmed earlier reads", Database),
    gauge(
        metric::DATABASE_OLDEST_TRANSACTION,
        Unit::Seconds,
        "Age of the oldest foreign transaction in the database",
        Database,
    ),
    gauge(metric::DATABASE_DEAD_ROWS, Unit::Count, "Dead row versions of tasks that are not freed yet", Database),
    counter(metric::REPLICA_HEARTBEATS, "Acknowledged heartbeats of this replica", Database),
    gauge(metric::REPLICA_HEARTBEAT_AGE, Unit::Seconds, "Age of the last acknowledged heartbeat", Database),
    gauge(metric::REPLICAS_LIVING, Unit::Count, "Live replicas, this one included", Database),
    counter(metric::REPLICA_CLAIMED, "Tasks taken over from replicas that ended", Database),
    counter(metric::REPLICA_FENCED, "Writes refused because another replica had taken the task over", Database),
];
