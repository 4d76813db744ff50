//! Clients that make calls, follow their tasks to the end across restarts of the gateway, and record the answers. With several
//! gateways, each request goes to the next of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::history::{Fact, History, PollResult};
use crate::wire_client::{Answer, Flavour, WireClient};

/// How often a task is asked for.
const POLL: Duration = Duration::from_millis(100);
/// Tasks that are polled together after their clients have ended.
const LOOKS_AT_ONCE: usize = 8;

/// Reasons of temporary failures: the gateway does not know the task's state now.
const PASSING: [&str; 2] = [r#""reason":"store_failed""#, r#""reason":"replica_unavailable""#];

/// The addresses of the gateways that serve.
pub type GatewayAddresses = watch::Receiver<Vec<SocketAddr>>;

/// One call, with its client's behaviour.
#[derive(Clone, Debug)]
pub struct Job {
    pub nonce: String,
    pub owner: String,
    pub tool: &'static str,
    pub arguments: Value,
    /// Cancels the task so long after its handle.
    pub cancels_after: Option<Duration>,
    /// How often the call may reach the upstream.
    pub calls_max: usize,
}

/// A handle that a client holds.
#[derive(Clone, Debug)]
struct Handle {
    task: String,
    wire: WireClient,
    owner: String,
}

/// All clients of one history.
#[derive(Debug)]
pub struct Crowd {
    history: Arc<History>,
    addresses: GatewayAddresses,
    /// The gateway of the next request.
    turn: AtomicUsize,
    handles: Mutex<Vec<Handle>>,
    /// The number of handles so far.
    pub handed: watch::Sender<usize>,
}

impl Crowd {
    pub fn new(history: Arc<History>, addresses: GatewayAddresses) -> Self {
        let (turn, handles, handed) = (AtomicUsize::default(), Mutex::default(), watch::Sender::default());
        Self { history, addresses, turn, handles, handed }
    }

    async fn address(&self) -> SocketAddr {
        let mut addresses = self.addresses.clone();
        let there = addresses.wait_for(|there| !there.is_empty()).await.expect("the gateways' keeper is there");
        there[self.turn.fetch_add(1, Ordering::Relaxed) % there.len()]
    }

    async fn ask(&self, wire: &WireClient, owner: &str, method: &str, params: Value) -> Answer {
        self.ask_at(self.address().await, wire, owner, method, params).await
    }

    async fn ask_at(&self, address: SocketAddr, wire: &WireClient, owner: &str, method: &str, params: Value) -> Answer {
        let answer = wire.ask(address, method, params).await;
        self.history.record(Fact::Read { owner: owner.to_owned(), text: answer.text.clone() });
        answer
    }

    /// Makes a call and follows its task until it is settled, at most `patience`. If no answer came, the client makes another
    /// call.
    pub async fn run(&self, job: Job, wire: WireClient, patience: Duration) {
        let again = Job { nonce: job.nonce.replace('x', "y"), ..job.clone() };
        if !self.try_once(job, wire.clone(), patience).await {
            self.try_once(again, wire, patience).await;
        }
    }

    /// Makes calls until one becomes a task, and follows the task until it is settled. A gateway may refuse a call for now, or
    /// not know whether its row was written. Both take at most `patience`.
    ///
    /// # Panics
    /// If no call becomes a task.
    pub async fn run_as_task(&self, job: Job, wire: WireClient, patience: Duration) {
        let calling = async {
            let mut tried = 0;
            loop {
                let next = Job { nonce: format!("{}{tried}-x", job.nonce.trim_end_matches('x')), ..job.clone() };
                if let (Some(handle), _) = self.call(&next, wire.clone()).await {
                    return (next, handle);
                }
                tried += 1;
                sleep(POLL).await;
            }
        };
        let (job, handle) = timeout(patience, calling).await.expect("a call becomes a task");
        let _ = timeout(patience, self.follow(&job, &handle)).await;
    }

    /// Whether there was an answer.
    async fn try_once(&self, job: Job, wire: WireClient, patience: Duration) -> bool {
        let (handle, is_answered) = self.call(&job, wire).await;
        if let Some(handle) = &handle {
            let _ = timeout(patience, self.follow(&job, handle)).await;
        }
        handle.is_some() || is_answered
    }

    /// Makes a call without following its task; returns whether there was a handle.
    pub async fn create_task(&self, job: &Job, wire: WireClient) -> bool {
        self.call(job, wire).await.0.is_some()
    }

    /// As [`Crowd::create_task`] at one gateway, by a client without a session; returns the answer.
    pub async fn create_task_at(&self, address: SocketAddr, job: &Job, wire: WireClient) -> Answer {
        self.call_at(address, job, wire).await.1
    }

    /// Makes a call; returns its handle, and whether there was an answer.
    async fn call(&self, job: &Job, mut wire: WireClient) -> (Option<Handle>, bool) {
        // A client without a session opens one first; the gateway may die meanwhile.
        while !wire.open(self.address().await).await {
            sleep(POLL).await;
        }
        let (handle, answer) = self.call_at(self.address().await, job, wire).await;
        (handle, answer.is_whole)
    }

    async fn call_at(&self, address: SocketAddr, job: &Job, wire: WireClient) -> (Option<Handle>, Answer) {
        let mut params = json!({"name": job.tool, "arguments": job.arguments});
        params["arguments"]["nonce"] = json!(job.nonce);
        if wire.flavour != Flavour::Extension {
            params["task"] = json!({});
        }
        let (nonce, owner) = (job.nonce.clone(), job.owner.clone());
        self.history.record(Fact::Sends { nonce, owner, calls_max: job.calls_max });
        let answer = self.ask_at(address, &wire, &job.owner, "tools/call", params).await;
        (self.take(job, &wire, &answer), answer)
    }

    /// Records the answer to a call; returns its handle, if it has one.
    fn take(&self, job: &Job, wire: &WireClient, answer: &Answer) -> Option<Handle> {
        let is_refused = matches!(answer.status, Some(429 | 500..)) || answer.text.contains(r#""executed":"no""#);
        if is_refused {
            self.history.record(Fact::Refused { nonce: job.nonce.clone() });
        }
        // A truncated answer may show the id: its client may use it.
        let (_, rest) = answer.text.split_once(r#""taskId":""#)?;
        let task = rest.get(..32).filter(|_| rest.as_bytes().get(32) == Some(&b'"'))?.to_owned();
        let message = answer.json();
        let shown =
            [&message["result"]["task"], &message["result"]].into_iter().find(|task| task["taskId"].is_string());
        // If the times were cut off, the configuration's minimum is an hour.
        let expires = shown.and_then(|task| {
            let created = humantime::parse_rfc3339(task["createdAt"].as_str()?).ok()?;
            let created = created.duration_since(std::time::UNIX_EPOCH).ok()?;
            let ttl = ["ttlMs", "ttl"].into_iter().find_map(|key| task[key].as_u64())?;
            Some(self.history.place(created + Duration::from_millis(ttl)))
        });
        let expires = expires.unwrap_or_else(|| self.history.now() + Duration::from_secs(1));
        self.history.record(Fact::Handle { nonce: job.nonce.clone(), task: task.clone(), expires });
        let handle = Handle { task, wire: wire.clone(), owner: job.owner.clone() };
        self.handles.lock().push(handle.clone());
        self.handed.send_modify(|handed| *handed += 1);
        Some(handle)
    }

    /// Polls, answers and cancels until the task is settled.
    async fn follow(&self, job: &Job, handle: &Handle) {
        let cancel_at = job.cancels_after.map(|span| Instant::now() + span);
        let mut is_cancelled = false;
        loop {
            if !is_cancelled && cancel_at.is_some_and(|at| at <= Instant::now()) {
                is_cancelled = self.cancel(handle).await;
            }
            let Some((seen, task)) = self.poll(handle).await else {
                sleep(POLL).await;
                continue;
            };
            if seen != PollResult::Open {
                return;
            }
            self.respond(job, handle, &task).await;
            sleep(POLL).await;
        }
    }

    /// Polls a task once and records the answer; `None` without an answer.
    async fn poll(&self, handle: &Handle) -> Option<(PollResult, Value)> {
        let asked = self.history.now();
        let id = json!({"taskId": handle.task});
        let answer = self.ask(&handle.wire, &handle.owner, "tasks/get", id.clone()).await;
        let seen = self.seen(handle, &answer).await?;
        let task = answer.json()["result"].take();
        self.history.record(Fact::Polled { task: handle.task.clone(), asked, seen: seen.clone() });
        Some((seen, task))
    }

    async fn seen(&self, handle: &Handle, answer: &Answer) -> Option<PollResult> {
        if !answer.is_whole {
            return None;
        }
        if let Some(error) = answer.error() {
            return error.contains("-32602").then_some(PollResult::Missing);
        }
        let task: Value = serde_json::from_str(answer.result()?).ok()?;
        let status = task["status"].as_str()?.to_owned();
        if !["completed", "failed", "cancelled"].contains(&status.as_str()) {
            return Some(PollResult::Open);
        }
        let updated = humantime::parse_rfc3339(task["lastUpdatedAt"].as_str()?).ok()?;
        let updated = self.history.place(updated.duration_since(std::time::UNIX_EPOCH).ok()?);
        let payload = match &handle.wire.flavour {
            Flavour::Extension => payload(answer.result()?),
            Flavour::Core(_) => {
                let id = json!({"taskId": handle.task});
                let answer = self.ask(&handle.wire, &handle.owner, "tasks/result", id).await;
                let whole = answer.result().or_else(|| answer.error()).filter(|_| answer.is_whole)?;
                // The failure is the gateway's, not the task's.
                if answer.result().is_none() && PASSING.iter().any(|reason| whole.contains(reason)) {
                    return None;
                }
                // The task may expire between the two polls.
                if whole.contains("-32602") && whole.contains("Task not found") {
                    return Some(PollResult::Missing);
                }
                whole.to_owned()
            }
        };
        Some(PollResult::Settled { status, payload, updated })
    }

    /// Answers every question of a task, each with a value of its own.
    async fn respond(&self, job: &Job, handle: &Handle, task: &Value) {
        let Some(questions) = task["inputRequests"].as_object() else { return };
        for key in questions.keys() {
            let (task, value) = (handle.task.clone(), format!("v-{}-{key}", job.nonce));
            self.history.record(Fact::Answers { task: task.clone(), value: value.clone() });
            let response = json!({"action": "accept", "content": {"value": value}});
            let params = json!({"taskId": task, "inputResponses": {key: response}});
            let answer = self.ask(&handle.wire, &handle.owner, "tasks/update", params).await;
            if answer.is_whole && answer.result().is_some() {
                self.history.record(Fact::Answered { task, value });
            }
        }
    }

    /// Cancels a task; returns whether that was accepted, or the task is settled.
    async fn cancel(&self, handle: &Handle) -> bool {
        let id = json!({"taskId": handle.task});
        let answer = self.ask(&handle.wire, &handle.owner, "tasks/cancel", id).await;
        if answer.is_whole && answer.result().is_some() {
            self.history.record(Fact::Cancelled { task: handle.task.clone() });
        }
        answer.is_whole && (answer.result().is_some() || answer.error().is_some())
    }

    /// Polls every task with a handle once more at each gateway; returns how many were settled each time. A task whose state a
    /// gateway does not know is not counted.
    pub async fn poll_all(&self) -> usize {
        self.poll_all_until_answered(Duration::ZERO).await
    }

    /// As [`Crowd::poll_all`], and polls again while a gateway does not know a task's state, as on a busy machine. It gives up
    /// on a task once no task's state was known for `patience`.
    pub async fn poll_all_until_answered(&self, patience: Duration) -> usize {
        let handles = self.handles.lock().clone();
        let looks = self.addresses.borrow().len().max(1);
        let answered = &Mutex::new(Instant::now());
        let looked = stream::iter(&handles).map(|handle| async move {
            let mut is_settled = true;
            for _ in 0..looks {
                let seen = self.poll_until_answered(handle, patience, answered).await;
                is_settled &= matches!(seen, Some(PollResult::Settled { .. }));
            }
            usize::from(is_settled)
        });
        looked.buffer_unordered(LOOKS_AT_ONCE).fold(0, |sum, settled| async move { sum + settled }).await
    }

    /// Polls until the task's state is known; `answered` is the time of the last known state of any task.
    async fn poll_until_answered(
        &self,
        handle: &Handle,
        patience: Duration,
        answered: &Mutex<Instant>,
    ) -> Option<PollResult> {
        loop {
            if let Some((seen, _)) = self.poll(handle).await {
                *answered.lock() = Instant::now();
                return Some(seen);
            }
            let waited = answered.lock().elapsed();
            if waited >= patience {
                return None;
            }
            sleep(POLL).await;
        }
    }
}

/// The bytes of a settled task's result or error.
fn payload(task: &str) -> String {
    #[derive(serde::Deserialize)]
    struct Task<'a> {
        #[serde(borrow)]
        result: Option<&'a serde_json::value::RawValue>,
        #[serde(borrow)]
        error: Option<&'a serde_json::value::RawValue>,
    }
    let task: Option<Task<'_>> = serde_json::from_str(task).ok();
    let raw = task.and_then(|task| task.result.or(task.error));
    raw.map(|raw| raw.get().to_owned()).unwrap_or_default()
}
