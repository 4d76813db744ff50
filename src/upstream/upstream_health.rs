//! Keeps an upstream's health: whether its last response was good, and if not, why. Every transport reports here, and
//! so does the owner of a request without a response. Operators read it in the log, a counter and their pages. It holds
//! no credential: addresses are shown without user info, path and query.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use metrics::Counter;
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use tokio::time::Instant;
use url::Url;

use super::limits::CallPermitsByName;
use crate::line_budget::LogPace;
use crate::metric::{self, GaugeShare};
use crate::task::{Clock as _, GatewayFault, Reason, SystemClock, Timestamp};

/// An upstream's possible faults. Each is counted from the start.
const REASONS: [Reason; 11] = [
    Reason::UpstreamUnreachable,
    Reason::UpstreamTls,
    Reason::UpstreamAuth,
    Reason::CredentialRefused,
    Reason::CredentialUnavailable,
    Reason::CredentialMalformed,
    Reason::UpstreamRedirect,
    Reason::UpstreamHttpStatus,
    Reason::UpstreamMalformed,
    Reason::UpstreamClosed,
    Reason::UpstreamTimeout,
];

/// Faults that a transport or a response's reader finds. Only the reader finds silence, only transports the others.
const FOUND_BY_BOTH: [Reason; 2] = [Reason::UpstreamMalformed, Reason::UpstreamClosed];

const CAUSE_BYTES_MAX: usize = 200;
const SILENCE_MIN: Duration = Duration::from_secs(60);
/// A request that is given up earlier says nothing about the upstream.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);

const UNTRIED: u8 = 0;
const OK: u8 = 1;
const FAILING: u8 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamFailure {
    pub reason: Reason,
    /// Such as `connection refused` or `HTTP 401`.
    pub cause: String,
    /// A redirect's target, or the address of the protected resource metadata. May hold secrets: only for the caller.
    pub location: Option<Url>,
}

impl UpstreamFailure {
    pub(crate) fn new(reason: Reason, cause: impl Into<String>) -> Self {
        Self { reason, cause: cause.into(), location: None }
    }

    pub(crate) fn of(fault: &GatewayFault) -> Self {
        let cause = match (fault.exit, fault.http_status) {
            (Some(exit), _) => format!("its process ended {exit}"),
            (None, Some(status)) => format!("HTTP {status}"),
            (None, None) if fault.reason == Reason::UpstreamMalformed => "an answer that is not MCP".to_owned(),
            (None, None) if fault.reason == Reason::UpstreamClosed => {
                "it ended the connection, or a stream without the answer".to_owned()
            }
            (None, None) if fault.reason == Reason::UpstreamTimeout => "it was silent for too long".to_owned(),
            (None, None) => fault.reason.key().replace('_', " "),
        };
        Self::new(fault.reason, cause)
    }
}

/// The number of transport reports when a request began.
#[derive(Clone, Copy, Debug, Default)]
pub struct HealthMark([u32; FOUND_BY_BOTH.len()]);

pub struct UpstreamHealth {
    name: Arc<str>,
    address: Arc<str>,
    failures: [Counter; REASONS.len()],
    refuses: GaugeShare,
    silence: GaugeShare,
    /// The number of transport reports of the reasons that others find as well.
    found_by_transports: [AtomicU32; FOUND_BY_BOTH.len()],
    /// Read for each response, so that consecutive good ones cost nothing.
    now: AtomicU8,
    state: Mutex<UpstreamHealthState>,
}

#[derive(Debug, Default)]
struct UpstreamHealthState {
    last: Option<(UpstreamFailure, Timestamp)>,
    logged: [LogPace; REASONS.len()],
    large_results_logged: LogPace,
    is_logged: bool,
    is_refused: bool,
    is_retired: bool,
}

debug_members!(UpstreamHealth, |health| name: health.name, state: health.state.lock());

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthReport {
    pub name: String,
    pub address: String,
    /// `untried`, `ok`, `failing`, or `refused`: after too many failures it gets no new requests for a moment.
    pub state: &'static str,
    /// From a minute on: how long it has sent no message about its calls in progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_seconds: Option<u64>,
    /// The last failure, even if good responses followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastFailure {
    pub reason: &'static str,
    pub cause: String,
    pub at: String,
}

impl HealthReport {
    pub fn is_failing(&self) -> bool {
        ["failing", "refused"].contains(&self.state)
    }
}

impl std::fmt::Display for HealthReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, address, state, silent_seconds, last_failure } = self;
        write!(f, "{name}  {state}")?;
        if let Some(seconds) = silent_seconds {
            write!(f, ", silent for {seconds} s")?;
        }
        write!(f, "  {address}")?;
        match last_failure {
            Some(LastFailure { reason, cause, at }) => write!(f, "  (last failure {at}: {reason}, {cause})"),
            None => Ok(()),
        }
    }
}

impl UpstreamHealth {
    /// The health of an unused upstream. The metrics recorder must be installed before.
    pub(crate) fn new(name: &Arc<str>, address: &str) -> Self {
        let counter = |reason: Reason| {
            let (upstream, reason) = (Arc::clone(name), reason.key());
            metrics::counter!(metric::UPSTREAM_FAILURES, "upstream" => upstream, "reason" => reason)
        };
        Self {
            name: Arc::clone(name),
            address: Arc::from(address),
            failures: REASONS.map(counter),
            refuses: GaugeShare::new(metrics::gauge!(metric::BREAKER_OPEN, "upstream" => Arc::clone(name))),
            silence: GaugeShare::new(metrics::gauge!(metric::UPSTREAM_SILENCE, "upstream" => Arc::clone(name))),
            found_by_transports: Default::default(),
            now: AtomicU8::new(UNTRIED),
            state: Mutex::default(),
        }
    }

    pub(crate) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Records a transport's failure: counts it, and logs it unless logged recently. Skips faults of others.
    pub(crate) fn failed(&self, trouble: UpstreamFailure) {
        if let Some(at) = FOUND_BY_BOTH.iter().position(|reason| *reason == trouble.reason) {
            self.found_by_transports[at].fetch_add(1, Ordering::Relaxed);
        }
        self.note(trouble);
    }

    pub(crate) fn mark(&self) -> HealthMark {
        HealthMark(self.found_by_transports.each_ref().map(|found| found.load(Ordering::Relaxed)))
    }

    /// Records that a request ended with this fault, unless a transport has reported the reason since the request
    /// began: it knew the cause, and reports once for many requests. Reasons that only transports find are ignored.
    pub(crate) fn ended(&self, since: HealthMark, fault: &GatewayFault) {
        if fault.reason == Reason::ResultTooLarge {
            return self.note_large_result();
        }
        let is_to_be_logged = match FOUND_BY_BOTH.iter().position(|reason| *reason == fault.reason) {
            Some(at) => self.found_by_transports[at].load(Ordering::Relaxed) == since.0[at],
            None => fault.reason == Reason::UpstreamTimeout,
        };
        if is_to_be_logged {
            self.note(UpstreamFailure::of(fault));
        }
    }

    /// Records that a request other than a tool call was given up without a response (B254): most clients do so early.
    pub(crate) fn given_up(&self, began: Instant) {
        let waited = began.elapsed();
        if waited >= GIVEN_UP_AFTER && !self.state.lock().is_retired {
            let cause = format!("no response within {} s to a request, which was given up", waited.as_secs());
            self.note(UpstreamFailure::new(Reason::UpstreamTimeout, cause));
        }
    }

    /// Logs a result above its bound once a minute. The upstream is well.
    fn note_large_result(&self) {
        let Some(unlogged_before) = self.state.lock().large_results_logged.admit() else { return };
        tracing::warn!(
            upstream = %self.name, reason = Reason::ResultTooLarge.key(), key = "limits.result_bytes_max", unlogged_before,
            "refused: a result is too large; raise this key to accept it"
        );
    }

    fn note(&self, mut trouble: UpstreamFailure) {
        let Some(at) = REASONS.iter().position(|reason| *reason == trouble.reason) else { return };
        self.failures[at].increment(1);
        let end = (0..=CAUSE_BYTES_MAX.min(trouble.cause.len())).rfind(|end| trouble.cause.is_char_boundary(*end));
        trouble.cause.truncate(end.unwrap_or_default());
        let mut state = self.state.lock();
        self.now.store(FAILING, Ordering::Relaxed);
        if let Some(unlogged_before) = state.logged[at].admit() {
            state.is_logged = true;
            let (reason, cause) = (trouble.reason.key(), &trouble.cause);
            tracing::warn!(
                upstream = %self.name, address = %self.address, reason, %cause, unlogged_before, "the upstream failed"
            );
        }
        state.last = Some((trouble, SystemClock.now()));
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.now.load(Ordering::Relaxed) == OK
    }

    /// Records a good response: an MCP message.
    pub(crate) fn answered(&self) {
        if self.is_ok() {
            return;
        }
        let mut state = self.state.lock();
        self.now.store(OK, Ordering::Relaxed);
        // At most as often as that it fails.
        if std::mem::take(&mut state.is_logged) {
            tracing::info!(upstream = %self.name, "the upstream answers again");
        }
    }

    pub(crate) fn refused(&self, is_refused: bool) {
        let mut state = self.state.lock();
        state.is_refused = is_refused;
        self.refuses.set(u32::from(is_refused && !state.is_retired));
    }

    /// Retires it after a reload or a drain: it gets no new requests, so a refusal says nothing about its replacement.
    pub(crate) fn retire(&self) {
        let mut state = self.state.lock();
        state.is_retired = true;
        self.refuses.set(0);
        self.silence.set(0);
    }

    pub fn last(&self) -> Option<UpstreamFailure> {
        self.state.lock().last.as_ref().map(|(trouble, _)| trouble.clone())
    }

    pub fn look(&self) -> HealthReport {
        let state = self.state.lock();
        let last_failure = state.last.as_ref().map(|(trouble, at)| LastFailure {
            reason: trouble.reason.key(),
            cause: trouble.cause.clone(),
            at: at.to_string(),
        });
        let word = match self.now.load(Ordering::Relaxed) {
            _ if state.is_refused => "refused",
            UNTRIED => "untried",
            OK => "ok",
            _ => "failing",
        };
        let (name, address) = (self.name.to_string(), self.address.to_string());
        HealthReport { name, address, state: word, silent_seconds: None, last_failure }
    }
}

/// The served upstreams, in the order of the configuration. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct UpstreamHealthList {
    all: Arc<RwLock<Vec<Arc<UpstreamHealth>>>>,
    permits: Arc<CallPermitsByName>,
}

impl UpstreamHealthList {
    pub fn new(permits: &Arc<CallPermitsByName>) -> Self {
        Self { permits: Arc::clone(permits), ..Self::default() }
    }

    pub fn set(&self, all: Vec<Arc<UpstreamHealth>>) {
        *self.all.write() = all;
    }

    pub fn looks(&self) -> Vec<HealthReport> {
        let look = |health: &Arc<UpstreamHealth>| {
            let silence = self.permits.silence(&health.name).filter(|silence| *silence >= SILENCE_MIN);
            HealthReport { silent_seconds: silence.map(|silence| silence.as_secs()), ..health.look() }
        };
        self.all.read().iter().map(look).collect()
    }

    pub fn refresh_metrics(&self) {
        for health in &*self.all.read() {
            let silence = self.permits.silence(&health.name).unwrap_or_default().as_secs();
            let state = health.state.lock();
            // A reload retires it before this list changes.
            health.silence.set(if state.is_retired { 0 } else { u32::try_from(silence).unwrap_or(u32::MAX) });
        }
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::metric::tests::shown;
    use crate::task::{Executed, Principal};
    use crate::upstream::limits::CallPermitSettings;

    fn state(health: &UpstreamHealth) -> (&'static str, Option<&'static str>) {
        let look = health.look();
        (look.state, look.last_failure.map(|last| last.reason))
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_failure_stays_to_be_seen_and_the_state_follows_the_last_answer() {
        let health = UpstreamHealth::new(&Arc::from("reports"), "http://127.0.0.1:1");
        assert_eq!(state(&health), ("untried", None));
        health.failed(UpstreamFailure::new(Reason::UpstreamUnreachable, "connection refused"));
        assert_eq!(state(&health), ("failing", Some("upstream_unreachable")));
        health.refused(true);
        assert_eq!(state(&health).0, "refused");
        health.refused(false);
        health.answered();
        assert_eq!(state(&health), ("ok", Some("upstream_unreachable")));
        health.failed(UpstreamFailure::new(Reason::QueueFull, "not its fault"));
        assert_eq!(state(&health), ("ok", Some("upstream_unreachable")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_request_is_noted_unless_a_transport_has_told_the_reason_meanwhile() {
        let health = UpstreamHealth::new(&Arc::from("reports"), "http://127.0.0.1:1");
        let ended = |mark, reason| health.ended(mark, &GatewayFault::new(reason, Executed::Unknown));
        let cause = || health.last().map(|last| last.cause);
        let (before, malformed) = (health.mark(), Reason::UpstreamMalformed);
        ended(before, Reason::UpstreamHttpStatus);
        ended(before, Reason::DeadlineExceeded);
        assert_eq!(state(&health), ("untried", None), "a transport tells of the one, and the other is no failure");
        ended(before, malformed);
        assert_eq!(cause().as_deref(), Some("an answer that is not MCP"));
        ended(before, Reason::UpstreamClosed);
        ended(before, malformed);
        assert_eq!(cause().as_deref(), Some("an answer that is not MCP"), "another request is another failure");
        health.failed(UpstreamFailure::new(malformed, "content-type text/html"));
        ended(before, malformed);
        assert_eq!(cause().as_deref(), Some("content-type text/html"), "the transport knew the cause");
        ended(before, Reason::UpstreamClosed);
        assert_eq!(state(&health).1, Some("upstream_closed"), "of that it has logged nothing");
        ended(health.mark(), malformed);
        assert_eq!(cause().as_deref(), Some("an answer that is not MCP"), "the first failure was reported before");
        ended(before, Reason::UpstreamTimeout);
        assert_eq!(state(&health), ("failing", Some("upstream_timeout")));
    }

    #[tokio::test(start_paused = true)]
    async fn an_upstream_whose_calls_are_silent_for_a_minute_says_so_beside_its_state() {
        let (name, permits) = (Arc::from("up"), Arc::new(CallPermitsByName::default()));
        let list = UpstreamHealthList::new(&permits);
        list.set(vec![Arc::new(UpstreamHealth::new(&name, "http://127.0.0.1:1"))]);
        let calls = permits.of(&name, CallPermitSettings::default());
        let call = calls.call_begins(Arc::from("slow"), Principal::local());
        let look = || list.looks()[0].to_string();
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(look(), "up  untried  http://127.0.0.1:1");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(look(), "up  untried, silent for 61 s  http://127.0.0.1:1");
        drop(call);
        assert_eq!(look(), "up  untried  http://127.0.0.1:1");
    }

    /// The gauge, at each scrape: beside calls, after them, and after a reload that removed the upstream (U93).
    #[tokio::test(start_paused = true)]
    async fn u93_a_scrape_shows_how_long_an_upstream_with_calls_has_been_silent() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let (name, permits) = (Arc::from("up"), Arc::new(CallPermitsByName::default()));
        let health = metrics::with_local_recorder(&recorder, || UpstreamHealth::new(&name, "http://127.0.0.1:1"));
        let list = UpstreamHealthList::new(&permits);
        list.set(vec![Arc::new(health)]);
        let scrape = || {
            list.refresh_metrics();
            shown(&recorder, "taskgate_upstream_silent_seconds{upstream=\"up\"}")
        };
        assert_eq!(scrape(), 0.0);
        let calls = permits.of(&name, CallPermitSettings::default());
        let call = calls.call_begins(Arc::from("slow"), Principal::local());
        tokio::time::advance(Duration::from_secs(875)).await;
        assert_eq!(scrape(), 875.0);
        drop(call);
        assert_eq!(scrape(), 0.0);
        let _call = calls.call_begins(Arc::from("slow"), Principal::local());
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(scrape(), 30.0);
        list.all.read()[0].retire();
        assert_eq!(scrape(), 0.0, "also before the list has changed");
    }

    #[tokio::test(start_paused = true)]
    async fn b254_a_request_that_is_given_up_unanswered_after_ten_seconds_is_a_failure() {
        let health = UpstreamHealth::new(&Arc::from("reports"), "http://127.0.0.1:1");
        let began = Instant::now();
        tokio::time::advance(Duration::from_secs(9)).await;
        health.given_up(began);
        assert_eq!(state(&health), ("untried", None), "a client may leave early");
        tokio::time::advance(Duration::from_secs(1)).await;
        health.given_up(began);
        assert_eq!(state(&health), ("failing", Some("upstream_timeout")));
        assert_eq!(health.last().unwrap().cause, "no response within 10 s to a request, which was given up");
        health.answered();
        health.retire();
        health.given_up(began);
        assert_eq!(state(&health).0, "ok", "the gateway itself ends its requests in a drain");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reason_is_told_once_a_minute_and_then_how_often_it_was_not() {
        let health = UpstreamHealth::new(&Arc::from("reports"), "http://127.0.0.1:1");
        let fail = |reason| health.failed(UpstreamFailure::new(reason, "é".repeat(CAUSE_BYTES_MAX)));
        for _ in 0..10 {
            fail(Reason::UpstreamAuth);
        }
        fail(Reason::UpstreamTls);
        let at = |reason| REASONS.iter().position(|one| *one == reason).unwrap();
        let unlogged = |reason| health.state.lock().logged[at(reason)].left_out;
        assert_eq!((unlogged(Reason::UpstreamAuth), unlogged(Reason::UpstreamTls)), (9, 0));
        tokio::time::advance(Duration::from_secs(60)).await;
        fail(Reason::UpstreamAuth);
        assert_eq!(unlogged(Reason::UpstreamAuth), 0);
        assert!(health.last().unwrap().cause.len() <= CAUSE_BYTES_MAX);
    }
}
