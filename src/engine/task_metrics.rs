//! Counts tasks by upstream, with cached metric handles: a lookup costs more than the count.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{Counter, Histogram};
use parking_lot::{Mutex, RwLock};

use crate::metric::{self, GaugeShare};

#[derive(Default)]
pub(super) struct TaskMetrics {
    polls: OnceLock<Counter>,
    upstreams: RwLock<HashMap<Arc<str>, Arc<UpstreamTaskMetrics>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GraceEnd {
    /// The call ended first.
    Answered,
    /// The call became a task.
    Over,
}

struct UpstreamTaskMetrics {
    created: Counter,
    /// Briefly negative if a task settles before its handle is created. Unsettled tasks are subtracted on drop.
    in_flight: GaugeShare,
    age: Histogram,
    /// Grace periods that ended in the call's response, and in a handle.
    answered_in_grace: Counter,
    grace_over: Counter,
    /// By outcome, for outcomes that have occurred: a few dozen.
    settled: Mutex<Vec<(&'static str, Counter)>>,
}

impl TaskMetrics {
    pub(super) fn polled(&self) {
        self.polls.get_or_init(|| metrics::counter!(metric::TASK_POLLS)).increment(1);
    }

    pub(super) fn created(&self, upstream: &Arc<str>) {
        let metrics = self.of(upstream);
        metrics.created.increment(1);
        metrics.in_flight.add(1);
    }

    /// Counts a task of an earlier process that continues in this one.
    pub(super) fn taken_over(&self, upstream: &Arc<str>) {
        self.of(upstream).in_flight.add(1);
    }

    pub(super) fn settled(&self, upstream: &Arc<str>, outcome: &'static str, age: Duration) {
        let metrics = self.of(upstream);
        metrics.in_flight.add(-1);
        metrics.age.record(age.as_secs_f64());
        let mut settled = metrics.settled.lock();
        if let Some((_, counter)) = settled.iter().find(|(known, _)| *known == outcome) {
            return counter.increment(1);
        }
        let counter =
            metrics::counter!(metric::TASKS_SETTLED, "upstream" => Arc::clone(upstream), "outcome" => outcome);
        counter.increment(1);
        settled.push((outcome, counter));
    }

    pub(super) fn grace_ended(&self, upstream: &Arc<str>, end: GraceEnd) {
        let metrics = self.of(upstream);
        match end {
            GraceEnd::Answered => metrics.answered_in_grace.increment(1),
            GraceEnd::Over => metrics.grace_over.increment(1),
        }
    }

    pub(super) fn unsettled(&self, upstream: &str) -> u64 {
        let known = self.upstreams.read().get(upstream).map(|metrics| metrics.in_flight.value());
        known.and_then(|count| u64::try_from(count).ok()).unwrap_or_default()
    }

    fn of(&self, upstream: &Arc<str>) -> Arc<UpstreamTaskMetrics> {
        if let Some(known) = self.upstreams.read().get(upstream) {
            return Arc::clone(known);
        }
        let of_upstream = || Arc::clone(upstream);
        let grace =
            |result: &'static str| metrics::counter!(metric::GRACE, "upstream" => of_upstream(), "result" => result);
        let new = || UpstreamTaskMetrics {
            created: metrics::counter!(metric::TASKS_CREATED, "upstream" => of_upstream()),
            in_flight: GaugeShare::new(metrics::gauge!(metric::TASKS_IN_FLIGHT, "upstream" => of_upstream())),
            age: metrics::histogram!(metric::TASK_AGE, "upstream" => of_upstream()),
            answered_in_grace: grace("plain"),
            grace_over: grace("task"),
            settled: Mutex::default(),
        };
        Arc::clone(self.upstreams.write().entry(of_upstream()).or_insert_with(|| Arc::new(new())))
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::metric::tests::shown;

    const IN_FLIGHT: &str = "taskgate_tasks_in_flight{upstream=\"up\"}";

    #[test]
    fn unsettled_tasks_of_a_process_are_counted_by_the_next_one_alone() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            let (upstream, age) = (Arc::from("up"), Duration::from_secs(1));
            let ended = TaskMetrics::default();
            for _ in 0..3 {
                ended.created(&upstream);
            }
            ended.settled(&upstream, "completed", age);
            let next = TaskMetrics::default();
            next.taken_over(&upstream);
            assert_eq!((ended.unsettled("up"), next.unsettled("up"), shown(&recorder, IN_FLIGHT)), (2, 1, 3.0));
            drop(ended);
            assert_eq!((next.unsettled("up"), shown(&recorder, IN_FLIGHT)), (1, 1.0));
            next.settled(&upstream, "completed", age);
            drop(next);
            assert_eq!(shown(&recorder, IN_FLIGHT), 0.0);
        });
    }
}
