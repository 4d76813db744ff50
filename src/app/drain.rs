//! Ends a gateway in phases.

use std::time::Duration;

use futures_util::future::{OptionFuture, join, join_all};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Gateway;
use super::live_calls::{CallSurvey, LiveCalls, NOTIFY_MAX};
use super::task_store::IncarnationEnd;
use crate::server::DrainPlan;
use crate::store::TaskStore as _;
use crate::task::Reason;

/// How long before the end of a drain the remaining calls and streams are ended, so that their clients can be notified.
const NOTIFY_TIME: Duration = Duration::from_secs(1);
const CLOSE_MAX: Duration = Duration::from_secs(1);

const DRAINING: &str = "draining";

impl Gateway {
    pub(super) fn live_calls(&self) -> LiveCalls {
        self.parts.live_calls()
    }

    /// Ends at once: no result in progress can be stored any more. Other replicas continue the upstream sessions.
    pub(super) async fn end_incarnation(mut self, ended: IncarnationEnd) {
        if let Some(shared) = self.shared.as_ref().filter(|_| ended == IncarnationEnd::StoreLost) {
            shared.write_loss();
        }
        let why = match ended {
            IncarnationEnd::Replaced(_) => Reason::ReplicaLost,
            IncarnationEnd::StoreLost => Reason::StoreLost,
        };
        let calls = self.live_calls().end(why);
        tracing::warn!(calls_lost = calls.held(), %calls, "this replica has lost its calls");
        self.drain_max = NOTIFY_MAX;
        Box::pin(self.end(None, GatewayEnd::IncarnationOver)).await;
    }

    /// Drains in phases: not ready, no new tasks, waits for calls, ends the rest and the streams, closes sessions.
    /// `notice` is for load balancers; `None` if another process has the sockets. Dropping the future ends all at once.
    pub async fn drain(self, notice: Option<Duration>) {
        self.readiness.block(DRAINING);
        if let Some(shared) = &self.shared {
            shared.store.leave();
        }
        self.parts.engine.expect_end();
        // Logged after the fact: a reader of the log finds the gateway not ready.
        log_drain(&self.live_calls().survey(), self.drain_max);
        crate::failpoint::hit("draining");
        Box::pin(self.end(notice, GatewayEnd::Drained)).await;
    }

    async fn end(self, notice: Option<Duration>, kind: GatewayEnd) {
        let (calls, max) = (self.live_calls(), self.drain_max);
        let others = self.shared.as_ref().map(|shared| shared.store.replicas().accepting_others(shared.store.holder()));
        let has_replicas = others.is_some_and(|others| others > 0);
        let (has_substitute, notice) = (notice.is_none() || has_replicas, notice.unwrap_or_default());
        let plan = DrainPlan { notice, has_substitute, ..DrainPlan::default() };
        let end_streams = async {
            tokio::time::sleep(notice).await;
            self.parts.streams_end.cancel();
        };
        let mut ended = CallSurvey::default();
        let at_the_end = async {
            let end = Instant::now() + notice + max;
            tokio::time::sleep(notice + until_calls_end(max)).await;
            // Before the connections end on either side: there is always time to notify waiting clients.
            ended = calls.end(Reason::GatewayRestart);
            tokio::time::sleep_until(end.max(Instant::now() + NOTIFY_MAX)).await;
            // Requests that end with their connections are no failures of their upstreams.
            self.upstreams.iter().for_each(|one| one.health.retire());
            plan.late.cancel();
        };
        let finished = finish(&calls, self.clients.last_requests_received(), &self.listens_end, notice, max);
        let finished = async {
            finished.await;
            plan.polls_ended.cancel();
        };
        let draining = Box::pin(self.clients.drain(plan.clone()));
        // Forwarded requests are awaited, too. Only a successor in this process takes over the replicas' socket.
        let from_replicas = DrainPlan { has_substitute: kind == GatewayEnd::IncarnationOver, ..plan.clone() };
        let forwarded = self.replicas.map(|replicas| Box::pin(replicas.running.drain(from_replicas)));
        let forwarded = OptionFuture::from(forwarded);
        let waited = async { tokio::join!(draining, finished, end_streams, forwarded) };
        let drained = alongside(Box::pin(waited), at_the_end).await.0;
        if kind == GatewayEnd::Drained {
            let retired = self.retired.all();
            let served = self.upstreams.iter().map(|one| one.served.upstream.close());
            let closing = served.chain(retired.iter().map(|one| one.close()));
            // The client of a call that is left may resume it from its server.
            let endpoints = self.endpoints.iter().filter(|_| ended.is_empty());
            let sessions = join_all(endpoints.map(|one| one.endpoint.end_sessions()));
            // Slow upstreams are abandoned: their results are stored.
            let _ = tokio::time::timeout(CLOSE_MAX, join(sessions, join_all(closing))).await;
        }
        self.parts.scope.stop.cancel();
        self.parts.scope.tracker.close();
        self.parts.store.close().await;
        if let Some(audit) = self.parts.engine.audit() {
            audit.close().await;
        }
        if let Some(shared) = self.shared.filter(|_| kind == GatewayEnd::Drained) {
            shared.write_prior();
        }
        // The operators' listeners end last: until here they report the drain.
        let operators = self.metrics.into_iter().chain([self.admin]);
        Box::pin(join_all(operators.map(|listener| listener.drain(DrainPlan::at_once())))).await;
        log_end(kind, drained.aborted, &ended);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GatewayEnd {
    Drained,
    /// Its incarnation on a shared store has ended: other replicas continue its calls.
    IncarnationOver,
}

fn log_drain(calls: &CallSurvey, drain_max: Duration) {
    if calls.is_empty() {
        return tracing::info!("draining; a second signal ends at once");
    }
    tracing::info!(
        calls_held = calls.held(),
        tasks = calls.tasks(),
        %calls,
        "draining; a second signal ends at once; held calls, and tasks that cannot be resumed, are lost after \
         {drain_max:?} (drain_max)"
    );
}

fn log_end(kind: GatewayEnd, connections_cut: usize, ended: &CallSurvey) {
    if kind == GatewayEnd::IncarnationOver {
        tracing::debug!(connections_cut, "waiting clients were notified");
    } else if ended.is_empty() {
        tracing::info!(connections_cut, "drained");
    } else {
        let calls_lost = ended.lost();
        tracing::warn!(connections_cut, calls_lost, calls = %ended, "drained; calls that ran longer than drain_max were ended");
    }
}

fn until_calls_end(max: Duration) -> Duration {
    max - NOTIFY_TIME.min(max / 10)
}

/// Waits for calls in progress, then ends the subscription streams: clients get the results there. No stream delays a drain.
async fn finish(
    calls: &LiveCalls,
    last_requests_received: impl Future<Output = ()>,
    listens_end: &CancellationToken,
    notice: Duration,
    max: Duration,
) {
    let (until_calls_end, engine) = (until_calls_end(max), &calls.engine);
    // During the notice everything is served as usual. Clients that connect in it may send a request; then no call begins.
    tokio::time::sleep(notice).await;
    let drained = async {
        last_requests_received.await;
        engine.drain(max).await;
        calls.have_ended().await;
    };
    let early = tokio::time::timeout(until_calls_end, drained).await;
    listens_end.cancel();
    if early.is_err() {
        engine.drain(max - until_calls_end).await;
    }
}

/// Runs both, and returns once `waited` completes, even if `beside` still runs.
async fn alongside<T>(waited: impl Future<Output = T>, beside: impl Future<Output = ()>) -> T {
    let beside = async {
        beside.await;
        std::future::pending().await
    };
    tokio::select! {
        done = waited => done,
        done = beside => done,
    }
}
