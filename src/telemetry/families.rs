//! Describes each metric family, and creates known series, so that alerts find them early.

use std::sync::Arc;

use metrics::{Label, Unit, describe_counter, describe_gauge, describe_histogram};

use crate::metric;

#[derive(Clone, Copy)]
enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// The series of a family that exist from the start: one per label and value, or one without labels.
#[derive(Clone, Copy)]
enum FirstSeries {
    /// Created with the process.
    Process(&'static [(&'static str, &'static str)]),
    /// Created with the process, by two labels each.
    ProcessPairs(&'static [[(&'static str, &'static str); 2]]),
    /// Created with each upstream; its name is their first label.
    Upstream(&'static [(&'static str, &'static str)]),
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

/// In the order of [`metric`]; [`DATABASE_FAMILIES`] follow.
pub(super) const FAMILIES: [MetricFamily; 54] = [
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::BUILD_INFO,
        unit: Unit::Count,
        text: "Always 1, by version of the program",
        first: FirstSeries::Elsewhere,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::HTTP_REQUESTS,
        unit: Unit::Count,
        text: "Responses sent, by listener and status",
        first: FirstSeries::Elsewhere,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::HTTP_REFUSED,
        unit: Unit::Count,
        text: "Refused requests and connections, by reason",
        first: FirstSeries::Process(&[("reason", "host_foreign"), ("reason", "unauthorized")]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::HTTP_PANICS,
        unit: Unit::Count,
        text: "Requests with a panic in their handler",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::HTTP_IN_FLIGHT,
        unit: Unit::Count,
        text: "Requests in progress, by listener",
        first: FirstSeries::Elsewhere,
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::CONNECTIONS,
        unit: Unit::Count,
        text: "Open connections, by listener",
        first: FirstSeries::Elsewhere,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::ACCEPT_PAUSES,
        unit: Unit::Count,
        text: "Failed accepts that made a listener pause",
        first: FirstSeries::Elsewhere,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::REQUESTS,
        unit: Unit::Count,
        text: "Requests of clients, by upstream and outcome",
        first: FirstSeries::Elsewhere,
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::ANSWER_BYTES,
        unit: Unit::Bytes,
        text: "Bytes held by responses in progress",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::ANSWERS_REFUSED,
        unit: Unit::Count,
        text: "Responses and requests refused because responses in progress hold all bytes, by reason",
        first: FirstSeries::Process(&[("reason", "too_much_unread"), ("reason", "answers_full")]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::TASKS_CREATED,
        unit: Unit::Count,
        text: "Handles created, by upstream",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::TASKS_IN_FLIGHT,
        unit: Unit::Count,
        text: "Unsettled tasks, by upstream; of gateways with one database their sum",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::TASKS_SETTLED,
        unit: Unit::Count,
        text: "Settled tasks, by upstream and outcome",
        first: FirstSeries::Upstream(&[
            ("outcome", "returned"),
            ("outcome", "tool_error"),
            ("outcome", "upstream_error"),
            ("outcome", "cancelled"),
        ]),
    },
    MetricFamily {
        kind: MetricKind::Histogram,
        name: metric::TASK_AGE,
        unit: Unit::Seconds,
        text: "Age of a task when it settled",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::GRACE,
        unit: Unit::Count,
        text: "Outcomes of the grace period, by upstream and result",
        first: FirstSeries::Upstream(&[("result", "plain"), ("result", "task")]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::QUESTIONS,
        unit: Unit::Count,
        text: "Questions of upstreams in mid-call, by upstream and result",
        first: FirstSeries::Upstream(&[("result", "put"), ("result", "refused")]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::RECOVERED,
        unit: Unit::Count,
        text: "Tasks of earlier incarnations, by the outcome of their recovery",
        first: FirstSeries::Process(&[("outcome", "resumed"), ("outcome", "rerun"), ("outcome", "failed")]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::TASK_POLLS,
        unit: Unit::Count,
        text: "Polls of tasks",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::TASK_MISSES,
        unit: Unit::Count,
        text: "Look-ups of tasks that found none",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Histogram,
        name: metric::UPSTREAM_REQUEST,
        unit: Unit::Seconds,
        text: "Duration of an upstream request",
        first: FirstSeries::Elsewhere,
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::UPSTREAM_IN_FLIGHT,
        unit: Unit::Count,
        text: "Tool calls that hold a permit of an upstream",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::UPSTREAM_QUEUED,
        unit: Unit::Count,
        text: "Tool calls that wait for a permit",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::UPSTREAM_SHED,
        unit: Unit::Count,
        text: "Calls refused because the queue was full or too slow",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::BREAKER_OPEN,
        unit: Unit::Count,
        text: "Whether new requests are refused because the upstream is failing",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::BREAKER_OPENED,
        unit: Unit::Count,
        text: "How often an upstream was found to be failing",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::TOOLS_CUT_OFF,
        unit: Unit::Count,
        text: "Above 0 while an upstream's tool list is larger than accepted",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::UPSTREAM_FAILURES,
        unit: Unit::Count,
        text: "Failures of an upstream, by upstream and reason",
        first: FirstSeries::Upstream(&[
            ("reason", "upstream_unreachable"),
            ("reason", "upstream_timeout"),
            ("reason", "upstream_closed"),
            ("reason", "upstream_http_status"),
            ("reason", "upstream_malformed"),
        ]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::UPSTREAM_RESENT,
        unit: Unit::Count,
        text: "Requests resent because no byte had been sent",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::UPSTREAM_SESSIONS,
        unit: Unit::Count,
        text: "Open sessions at an upstream",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::UPSTREAM_LISTENS,
        unit: Unit::Count,
        text: "Open subscriptions/listen streams at an upstream",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::UPSTREAM_DROPPED,
        unit: Unit::Count,
        text: "Unusable upstream messages, by reason",
        first: FirstSeries::Upstream(&[("reason", "client_gone")]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::PIPED,
        unit: Unit::Count,
        text: "Messages of session clients forwarded, by upstream and kind",
        first: FirstSeries::Elsewhere,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::SESSION_RENEWALS,
        unit: Unit::Count,
        text: "Upstream sessions reopened, by upstream and outcome",
        first: FirstSeries::Upstream(&[("outcome", "renewed"), ("outcome", "failed")]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::ENDPOINT_ABSENCES,
        unit: Unit::Count,
        text: "Responses of a combined endpoint that lacked an upstream",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::AUDIT_RECORDS,
        unit: Unit::Count,
        text: "Lines written to the audit file",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::AUDIT_LOST,
        unit: Unit::Count,
        text: "Audit records dropped because the file did not take them",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::LISTENERS,
        unit: Unit::Count,
        text: "Open subscriptions/listen streams, by upstream",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::LISTENERS_REFUSED,
        unit: Unit::Count,
        text: "subscriptions/listen refused because too many are open",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::SSE_STREAMS,
        unit: Unit::Count,
        text: "Open streams of HTTP+SSE towards clients, by upstream",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::SSE_STREAMS_REFUSED,
        unit: Unit::Count,
        text: "Streams of HTTP+SSE refused because too many are open",
        first: FirstSeries::Upstream(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::FORWARDED,
        unit: Unit::Count,
        text: "Requests forwarded to the replica that owns their session, stream or held call, by reason and outcome",
        first: FirstSeries::ProcessPairs(&[
            [("reason", "session"), ("outcome", "answered")],
            [("reason", "session"), ("outcome", "away")],
            [("reason", "session"), ("outcome", "lost")],
            [("reason", "stream"), ("outcome", "answered")],
            [("reason", "stream"), ("outcome", "away")],
            [("reason", "stream"), ("outcome", "lost")],
            [("reason", "held_call"), ("outcome", "answered")],
            [("reason", "held_call"), ("outcome", "away")],
            [("reason", "held_call"), ("outcome", "lost")],
        ]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::CONFIG_RELOADS,
        unit: Unit::Count,
        text: "Reloads of the configuration, by outcome",
        first: FirstSeries::Process(&[("outcome", "applied"), ("outcome", "rejected")]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::RATE_LIMITED,
        unit: Unit::Count,
        text: "Requests refused because their principal exceeded a rate",
        first: FirstSeries::Elsewhere,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::QUOTA_REFUSED,
        unit: Unit::Count,
        text: "Calls and tasks refused because there are too many, by limit",
        first: FirstSeries::Process(&[("limit", "principal"), ("limit", "all"), ("limit", "principal_bytes")]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::STORE_BYTES,
        unit: Unit::Bytes,
        text: "Bytes of stored tasks, of all gateways that share a store",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::STORE_BYTES_ABOVE,
        unit: Unit::Bytes,
        text: "Stored bytes above stored_bytes_max: new tasks are refused meanwhile",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::STORE_ROWS,
        unit: Unit::Count,
        text: "Stored tasks, of all gateways that share a store",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::STORE_COMMITS,
        unit: Unit::Count,
        text: "Transactions of a store on disk or in a database",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Histogram,
        name: metric::STORE_COMMIT_TIME,
        unit: Unit::Seconds,
        text: "Duration of one transaction until it was durable",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Histogram,
        name: metric::STORE_BATCH,
        unit: Unit::Count,
        text: "Writes per transaction",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::STORE_FAILURES,
        unit: Unit::Count,
        text: "Transactions that failed, by reason",
        first: FirstSeries::Process(&[("reason", "io"), ("reason", "full")]),
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::STORE_DAMAGED,
        unit: Unit::Count,
        text: "Rows with a damaged record",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::STORE_FREE_BYTES,
        unit: Unit::Bytes,
        text: "Free bytes of the store's disk",
        first: FirstSeries::Process(&[]),
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::STORE_FILE_BYTES,
        unit: Unit::Bytes,
        text: "Bytes of the disk store's file and its log",
        first: FirstSeries::Process(&[]),
    },
];

/// Describes all families and creates the series of the process. The recorder must be installed before.
pub(super) fn begin() {
    for family in FAMILIES.iter().chain(&DATABASE_FAMILIES) {
        family.describe();
        match family.first {
            FirstSeries::Process(labels) => family.begin(&[], labels),
            FirstSeries::ProcessPairs(pairs) => {
                let label = |(label, value)| Label::from_static_parts(label, value);
                pairs.iter().for_each(|pair| family.register(pair.map(label).to_vec()));
            }
            FirstSeries::Upstream(_) | FirstSeries::Database | FirstSeries::Elsewhere => (),
        }
    }
}

pub(super) fn begin_upstream(upstream: &Arc<str>) {
    let of_upstream = [Label::new("upstream", Arc::clone(upstream))];
    for family in &FAMILIES {
        if let FirstSeries::Upstream(labels) = family.first {
            family.begin(&of_upstream, labels);
        }
    }
}

pub(super) fn begin_database() {
    for family in &DATABASE_FAMILIES {
        if let FirstSeries::Database = family.first {
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

    fn begin(&self, of: &[Label], labels: &[(&'static str, &'static str)]) {
        if labels.is_empty() {
            self.register(of.to_vec());
        }
        for (label, value) in labels {
            self.register([of, &[Label::from_static_parts(label, value)]].concat());
        }
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
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::DATABASE_UNRESOLVED_WRITES,
        unit: Unit::Count,
        text: "Task writes with an unknown commit",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::DATABASE_BARRIERS,
        unit: Unit::Count,
        text: "Transactions that confirmed earlier reads",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::DATABASE_OLDEST_TRANSACTION,
        unit: Unit::Seconds,
        text: "Age of the oldest foreign transaction in the database",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::DATABASE_DEAD_ROWS,
        unit: Unit::Count,
        text: "Dead row versions of tasks that are not freed yet",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::REPLICA_HEARTBEATS,
        unit: Unit::Count,
        text: "Acknowledged heartbeats of this replica",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::REPLICA_HEARTBEAT_AGE,
        unit: Unit::Seconds,
        text: "Age of the last acknowledged heartbeat",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::REPLICAS_LIVING,
        unit: Unit::Count,
        text: "Live replicas, this one included",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::REPLICA_CLAIMED,
        unit: Unit::Count,
        text: "Tasks taken over from replicas that ended",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::REPLICA_FENCED,
        unit: Unit::Count,
        text: "Writes refused because another replica had taken the task over",
        first: FirstSeries::Database,
    },
];
