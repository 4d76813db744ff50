//! Streamable HTTP upstreams over real sockets, against a scripted server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod answers;
mod calls;
mod kept;
mod refused_sessions;
mod resumption;
mod sessions;
mod stateless;
mod task_life;
mod task_server;
mod tasks;

use support::scripted as server;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskgate::answer_budget::AnswerPermit;
use taskgate::shared_limits::SharedLimits;
use taskgate::task::{Principal, PrincipalLimitTable};
use taskgate::upstream::TaskScope;
use taskgate::upstream::http::{HttpUpstreamSettings, SessionUpstream};
use taskgate::upstream::{BeginError, CallContext, Exchange, ExchangeEvent, Timeouts, Upstream, UpstreamRequest};
use taskgate::wire::Payload;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use server::{SeenRequest, in_time};

fn upstream(url: &Url) -> SessionUpstream {
    upstream_of(settings(url))
}

fn settings(url: &Url) -> HttpUpstreamSettings {
    HttpUpstreamSettings::new(Arc::from("scripted"), url.clone())
}

fn upstream_of(settings: HttpUpstreamSettings) -> SessionUpstream {
    let life = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    SessionUpstream::new(settings, life).unwrap()
}

/// As [`upstream_of`], with at most 4 MiB of answers.
fn upstream_of_4_mib(settings: HttpUpstreamSettings) -> (SessionUpstream, SharedLimits) {
    let table = PrincipalLimitTable { answer_bytes_max: 4 << 20, ..PrincipalLimitTable::default() };
    let limits = SharedLimits::new(Arc::new(table));
    let life = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
    (SessionUpstream::within(settings, life, &limits).unwrap(), limits)
}

/// Returns once more than a megabyte of these limits' answers is in use.
async fn until_some_are_held(limits: &SharedLimits) {
    let is_held = || {
        let share = limits.answers_to(&Principal::local());
        // One answer may exceed the bound, and no other beside it.
        let mut answers = [AnswerPermit::default(), AnswerPermit::default()];
        !answers.iter_mut().all(|held| share.grow_now(held, 3 << 20))
    };
    in_time(async {
        while !is_held() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn context() -> CallContext {
    let capabilities = Payload::of(&json!({"elicitation": {}}));
    let context = CallContext::new(Principal::local(), capabilities, Timeouts::default(), 1024 * 1024);
    CallContext { progress: true, ..context }
}

fn call(arguments: &Value) -> UpstreamRequest {
    UpstreamRequest {
        method: Arc::from("tools/call"),
        params: Some(Payload::of(&json!({"name": "slow", "arguments": arguments}))),
    }
}

async fn begin(upstream: &SessionUpstream) -> Box<dyn Exchange> {
    try_begin(upstream, call(&json!({})), context()).await.unwrap()
}

async fn try_begin(
    upstream: &SessionUpstream,
    request: UpstreamRequest,
    context: CallContext,
) -> Result<Box<dyn Exchange>, BeginError> {
    in_time(upstream.begin(request, context)).await
}

async fn next(exchange: &mut Box<dyn Exchange>) -> ExchangeEvent {
    in_time(exchange.next()).await
}

/// An event as one line, so that sequences compare at a glance.
fn line(event: &ExchangeEvent) -> String {
    let text = |payload: &Payload| payload.as_str().to_owned();
    match event {
        ExchangeEvent::Progress(progress) => format!(
            "progress {} of {} {}",
            progress.progress.as_str(),
            progress.total.as_ref().map_or("?", Payload::as_str),
            progress.message.as_deref().unwrap_or("-"),
        ),
        ExchangeEvent::Status(words) => format!("status {words}"),
        ExchangeEvent::Task(news) => format!("task {news:?}"),
        ExchangeEvent::Subtasks(named) => {
            format!("subtasks {}", named.join(", "))
        }
        ExchangeEvent::Notification((_, params)) => format!("log {}", params.as_ref().map_or("-", Payload::as_str)),
        ExchangeEvent::Asked { ask, method, params } => {
            format!("asked {} {method} {}", text(ask), params.as_ref().map_or("-", Payload::as_str))
        }
        ExchangeEvent::Withdrawn { ask } => format!("withdrawn {}", text(ask)),
        ExchangeEvent::Returned(result) => format!("returned {}", text(result)),
        ExchangeEvent::Faulted(error) => format!("faulted {} {}", error.code, error.message),
        ExchangeEvent::Cancelled => "cancelled".to_owned(),
        ExchangeEvent::Lost(lost) => format!("lost {:?} {:?}", lost.0.reason, lost.0.executed),
    }
}

/// All events up to the last, as lines.
async fn lines(exchange: &mut Box<dyn Exchange>) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        let event = next(exchange).await;
        lines.push(line(&event));
        match event {
            ExchangeEvent::Returned(_)
            | ExchangeEvent::Faulted(_)
            | ExchangeEvent::Cancelled
            | ExchangeEvent::Lost(_) => return lines,
            ExchangeEvent::Progress(_)
            | ExchangeEvent::Status(_)
            | ExchangeEvent::Task(_)
            | ExchangeEvent::Subtasks(_)
            | ExchangeEvent::Notification(_)
            | ExchangeEvent::Asked { .. }
            | ExchangeEvent::Withdrawn { .. } => (),
        }
    }
}

fn progress(seen: &SeenRequest, n: u32) -> Value {
    let params = json!({"progressToken": seen.token(), "progress": n, "total": 2, "message": "on it"});
    json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
}
