//! Circuit breaker: refuses new requests to a failing upstream, and probes for its recovery. Sees only heads of
//! responses. Requests of work in progress (resumed streams, answers, cancels, polls) do not count.

use std::sync::Arc;
use std::time::Duration;

use http::{Response, StatusCode};
use metrics::Counter;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metric;
use crate::task::{Executed, GatewayFault, Reason};
use crate::upstream::upstream_health::UpstreamHealth;

/// It opens after so many consecutive failures, or if more than half of the last `WINDOW` results are failures.
const FAILURES_MAX: u32 = 5;
const WINDOW: u32 = 20;
/// How long it stays open. Short, as a probe costs one request.
const OPEN_FOR: Duration = Duration::from_secs(2);
/// The longest time open that an upstream's `Retry-After` can ask for.
const OPEN_MAX: Duration = Duration::from_secs(60);
/// How long one probe may be silent before the next: a response may take as long as its tool.
const PROBE_FOR: Duration = Duration::from_secs(2);

/// The meaning of a response, or of its absence, for an upstream's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerHealth {
    Well,
    /// With the upstream's `Retry-After`, if it sent one.
    Ill(Option<Duration>),
    /// The fault is not the upstream's, or says nothing about its health.
    Neutral,
}

impl AnswerHealth {
    /// Failing servers and proxies say so by status. A 500 with JSON is more likely an error of a healthy server.
    pub(crate) fn of_head<B>(response: &Response<B>, is_json: bool, retry_after: Option<Duration>) -> Self {
        match response.status() {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Self::Ill(retry_after),
            StatusCode::NOT_IMPLEMENTED => Self::Well,
            status if status.is_server_error() && !is_json => Self::Ill(retry_after),
            _ => Self::Well,
        }
    }

    /// A rejected certificate is the operator's concern, and a refused connection costs no more than the breaker.
    pub(crate) const fn of_fault(fault: &GatewayFault) -> Self {
        match matches!(fault.reason, Reason::UpstreamUnreachable | Reason::UpstreamClosed) {
            true => Self::Ill(None),
            false => Self::Neutral,
        }
    }
}

pub(crate) struct Breaker {
    health: Arc<UpstreamHealth>,
    state: Mutex<BreakerState>,
    opened: Counter,
}

debug_members!(Breaker, |breaker| state: breaker.state.lock().phase);

#[derive(Debug)]
struct BreakerState {
    phase: BreakerPhase,
    /// Counts transitions: results of requests sent before the last one are ignored.
    generation: u64,
}

#[derive(Debug)]
enum BreakerPhase {
    Closed(FailureWindow),
    Open { until: Instant },
    Trying { until: Instant },
}

/// The last results, newest in the lowest bit; a set bit is a failure.
#[derive(Debug, Default)]
struct FailureWindow {
    failures: u32,
    seen: u32,
    in_a_row: u32,
}

impl FailureWindow {
    /// Records one result; returns whether the breaker must open.
    const fn note(&mut self, failed: bool) -> bool {
        const MASK: u32 = (1 << WINDOW) - 1;
        self.failures = ((self.failures << 1) | failed as u32) & MASK;
        self.seen = if self.seen < WINDOW { self.seen + 1 } else { WINDOW };
        self.in_a_row = if failed { self.in_a_row + 1 } else { 0 };
        self.in_a_row >= FAILURES_MAX || (self.seen == WINDOW && self.failures.count_ones() > WINDOW / 2)
    }
}

impl Breaker {
    /// A closed breaker. The metrics recorder must be installed before.
    pub(crate) fn new(health: Arc<UpstreamHealth>) -> Self {
        let upstream = Arc::clone(health.name());
        Self {
            state: Mutex::new(BreakerState { phase: BreakerPhase::Closed(FailureWindow::default()), generation: 0 }),
            opened: metrics::counter!(metric::BREAKER_OPENED, "upstream" => upstream),
            health,
        }
    }

    /// Refuses with `UpstreamCircuitOpen`, without delay, and the time until the next probe.
    pub(crate) fn admit(&self) -> Result<BreakerPermit<'_>, GatewayFault> {
        let mut state = self.state.lock();
        match state.phase {
            BreakerPhase::Closed(_) => (),
            BreakerPhase::Open { until } | BreakerPhase::Trying { until } => {
                let now = Instant::now();
                if now < until {
                    let fault = GatewayFault::new(Reason::UpstreamCircuitOpen, Executed::No);
                    return Err(GatewayFault { retry_after: Some(until - now), ..fault });
                }
                state.phase = BreakerPhase::Trying { until: now + PROBE_FOR };
            }
        }
        Ok(BreakerPermit { breaker: self, generation: state.generation })
    }

    fn note(&self, generation: u64, health: AnswerHealth) {
        let (failed, wish) = match health {
            AnswerHealth::Neutral => return,
            AnswerHealth::Well => (false, None),
            AnswerHealth::Ill(wish) => (true, wish),
        };
        let mut state = self.state.lock();
        if state.generation != generation {
            return;
        }
        match (&mut state.phase, failed) {
            (BreakerPhase::Closed(window), failed) => {
                if window.note(failed) {
                    self.open(&mut state, wish);
                }
            }
            (BreakerPhase::Trying { .. }, true) => self.open(&mut state, wish),
            (BreakerPhase::Trying { .. }, false) => {
                state.phase = BreakerPhase::Closed(FailureWindow::default());
                state.generation += 1;
                self.health.refused(false);
                tracing::info!(upstream = %self.health.name(), "the upstream has recovered: new requests are sent");
            }
            (BreakerPhase::Open { .. }, _) => (),
        }
    }

    fn open(&self, state: &mut BreakerState, wish: Option<Duration>) {
        let span = wish.unwrap_or(OPEN_FOR).clamp(OPEN_FOR, OPEN_MAX);
        if matches!(state.phase, BreakerPhase::Closed(_)) {
            self.opened.increment(1);
            self.health.refused(true);
            let cause = self.health.last().map(|trouble| trouble.cause);
            tracing::warn!(upstream = %self.health.name(), cause, "the upstream fails too often: new requests are refused");
        }
        state.phase = BreakerPhase::Open { until: Instant::now() + span };
        state.generation += 1;
    }
}

/// An admitted request. Dropping it records nothing; another probe may follow.
#[derive(Debug)]
pub(crate) struct BreakerPermit<'a> {
    breaker: &'a Breaker,
    generation: u64,
}

impl BreakerPermit<'_> {
    pub(crate) fn note(self, health: AnswerHealth) {
        self.breaker.note(self.generation, health);
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::metric::tests::shown;

    fn breaker() -> Breaker {
        Breaker::new(Arc::new(UpstreamHealth::new(&Arc::from("reports"), "http://127.0.0.1:1")))
    }

    fn ill(breaker: &Breaker, times: usize) {
        for _ in 0..times {
            breaker.admit().unwrap().note(AnswerHealth::Ill(None));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn f33_five_failures_in_a_row_open_it_and_one_good_answer_closes_it() {
        let breaker = breaker();
        ill(&breaker, 4);
        breaker.admit().unwrap().note(AnswerHealth::Well);
        ill(&breaker, 4);
        breaker.admit().unwrap().note(AnswerHealth::Neutral);
        let (held, late) = (breaker.admit().unwrap(), breaker.admit().unwrap());
        ill(&breaker, 1);
        let refused = breaker.admit().unwrap_err();
        assert_eq!((refused.reason, refused.executed), (Reason::UpstreamCircuitOpen, Executed::No));
        assert_eq!(refused.retry_after, Some(OPEN_FOR));
        held.note(AnswerHealth::Well);
        assert!(breaker.admit().is_err(), "results of earlier requests do not count");
        tokio::time::advance(OPEN_FOR).await;
        let probe = breaker.admit().unwrap();
        late.note(AnswerHealth::Well);
        assert!(breaker.admit().is_err(), "one try at a time, and nothing older closes it");
        probe.note(AnswerHealth::Ill(None));
        assert!(breaker.admit().is_err());
        tokio::time::advance(OPEN_FOR).await;
        breaker.admit().unwrap().note(AnswerHealth::Well);
        ill(&breaker, 4);
        assert!(breaker.admit().is_ok(), "it counts anew");
    }

    #[tokio::test(start_paused = true)]
    async fn the_state_of_a_replaced_breaker_does_not_count_for_its_successor() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _recorded = metrics::set_default_local_recorder(&recorder);
        let is_open = || shown(&recorder, "taskgate_upstream_breaker_open{upstream=\"reports\"}");
        let ended = breaker();
        ill(&ended, 5);
        assert_eq!(is_open(), 1.0);
        let next = breaker();
        drop(ended);
        assert_eq!(is_open(), 0.0, "it is gone");
        ill(&next, 5);
        assert_eq!(is_open(), 1.0);
        next.health.retire();
        assert_eq!(is_open(), 0.0, "its calls go on, and nothing new comes to it");
        let (replaced, newest) = (breaker(), breaker());
        let late: Vec<_> = (0..5).map(|_| replaced.admit().unwrap()).collect();
        replaced.health.retire();
        late.into_iter().for_each(|call| call.note(AnswerHealth::Ill(None)));
        assert!(replaced.admit().is_err() && newest.admit().is_ok());
        assert_eq!(is_open(), 0.0, "requests in progress do not change the newest gauge");
        ill(&newest, 5);
        drop((next, replaced));
        assert_eq!(is_open(), 1.0);
    }

    #[tokio::test(start_paused = true)]
    async fn more_failures_than_not_among_twenty_open_it() {
        for (failures, is_open) in [(10, false), (11, true)] {
            let breaker = breaker();
            // Never five in a row: the failures are spread over the twenty.
            for n in 0..20 {
                let failed = n * failures / 20 != (n + 1) * failures / 20;
                breaker.admit().unwrap().note(if failed { AnswerHealth::Ill(None) } else { AnswerHealth::Well });
            }
            assert_eq!(breaker.admit().is_err(), is_open, "{failures}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_try_is_followed_by_another() {
        let breaker = breaker();
        ill(&breaker, 5);
        tokio::time::advance(OPEN_FOR).await;
        let silent = breaker.admit().unwrap();
        assert!(breaker.admit().is_err());
        tokio::time::advance(PROBE_FOR).await;
        assert!(breaker.admit().is_ok(), "another try");
        silent.note(AnswerHealth::Well);
        assert!(breaker.admit().is_ok(), "late is not too late");
    }

    #[tokio::test(start_paused = true)]
    async fn u02_an_upstream_says_how_long_it_wants_to_be_left_alone() {
        for (wish, span) in [(0, 2), (10, 10), (86_400, 60)] {
            let breaker = breaker();
            ill(&breaker, 4);
            breaker.admit().unwrap().note(AnswerHealth::Ill(Some(Duration::from_secs(wish))));
            assert_eq!(breaker.admit().unwrap_err().retry_after, Some(Duration::from_secs(span)), "{wish}");
        }
    }

    #[test]
    fn only_failures_of_the_upstream_itself_count() {
        for (status, plain, json) in [
            (200, AnswerHealth::Well, AnswerHealth::Well),
            (401, AnswerHealth::Well, AnswerHealth::Well),
            (404, AnswerHealth::Well, AnswerHealth::Well),
            (429, AnswerHealth::Ill(None), AnswerHealth::Ill(None)),
            (500, AnswerHealth::Ill(None), AnswerHealth::Well),
            (501, AnswerHealth::Well, AnswerHealth::Well),
            (503, AnswerHealth::Ill(None), AnswerHealth::Ill(None)),
        ] {
            let response = Response::builder().status(status).body(()).unwrap();
            assert_eq!(AnswerHealth::of_head(&response, false, None), plain, "{status}");
            assert_eq!(AnswerHealth::of_head(&response, true, None), json, "{status}");
        }
        for (reason, health) in [
            (Reason::UpstreamUnreachable, AnswerHealth::Ill(None)),
            (Reason::UpstreamClosed, AnswerHealth::Ill(None)),
            (Reason::UpstreamTls, AnswerHealth::Neutral),
            (Reason::UpstreamMalformed, AnswerHealth::Neutral),
        ] {
            assert_eq!(AnswerHealth::of_fault(&GatewayFault::new(reason, Executed::No)), health, "{reason:?}");
        }
    }
}
