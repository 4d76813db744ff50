//! Describes the metrics of a shared database, which exist only with such a store.

use metrics::Unit;

use super::{FirstSeries, MetricFamily, MetricKind};
use crate::metric;

/// In the order of [`metric`].
pub(in crate::telemetry) const DATABASE_FAMILIES: [MetricFamily; 9] = [
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::DATABASE_UNSURE,
        unit: Unit::Count,
        text: "Writes of tasks of which it was not known whether they were made",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::DATABASE_BARRIERS,
        unit: Unit::Count,
        text: "Transactions that proved what had been read",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::DATABASE_OLDEST_TRANSACTION,
        unit: Unit::Seconds,
        text: "Age of the oldest transaction of others in the database",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::DATABASE_DEAD_ROWS,
        unit: Unit::Count,
        text: "Versions of tasks' rows that were written over and are not freed",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Counter,
        name: metric::REPLICA_BEATS,
        unit: Unit::Count,
        text: "Beats of this replica that were acknowledged",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::REPLICA_BEAT_AGE,
        unit: Unit::Seconds,
        text: "Age of the last acknowledged beat",
        first: FirstSeries::Database,
    },
    MetricFamily {
        kind: MetricKind::Gauge,
        name: metric::REPLICAS_LIVING,
        unit: Unit::Count,
        text: "Replicas that live, this one included",
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
        text: "Writes refused as another replica had taken the task over",
        first: FirstSeries::Database,
    },
];
