//! A server of 2025-06-18 and 2025-11-25 that keeps a ledger: every call, every answer to its questions, every byte
//! that it sent, and whether a client read it. A call's arguments say its course.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::history::{Fact, History};
use crate::scripted::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, answer, status};

/// The names of the ledger's tools. They differ in nothing else; rules match them.
pub const TOOLS: [&str; 3] = ["work", "work_auto", "work_safe"];

/// How long half of an answer waits for its other half.
const HALF_WAIT: Duration = Duration::from_millis(300);

/// Dropping it ends all its connections.
pub struct Ledger {
    pub server: ScriptedServer,
    pub state: Arc<LedgerState>,
}

pub struct LedgerState {
    history: Arc<History>,
    /// Whether streams have event ids, and can be resumed.
    is_resumable: bool,
    calls: Mutex<Calls>,
    /// How often each milestone was reached.
    milestones: watch::Sender<HashMap<&'static str, usize>>,
    sent: Mutex<Vec<(String, String)>>,
    /// Whether calls that are `held` may go on.
    is_released: watch::Sender<bool>,
    tracker: TaskTracker,
}

#[derive(Default)]
struct Calls {
    by_nonce: HashMap<String, Arc<Call>>,
    /// By session and request id.
    by_request: HashMap<(String, String), Arc<Call>>,
}

/// One call that arrived.
struct Call {
    nonce: String,
    id: Value,
    token: Value,
    arguments: Value,
    events: Mutex<Vec<Value>>,
    grew: watch::Sender<usize>,
    readers: watch::Sender<usize>,
    given: Mutex<Option<String>>,
    is_given: Notify,
    cancelled: CancellationToken,
}

impl Ledger {
    /// Writes its events into `history`.
    pub async fn open(history: Arc<History>, is_resumable: bool) -> Self {
        let state = Arc::new(LedgerState {
            history,
            is_resumable,
            calls: Mutex::default(),
            milestones: watch::Sender::default(),
            sent: Mutex::default(),
            is_released: watch::Sender::default(),
            tracker: TaskTracker::new(),
        });
        let asked = Arc::clone(&state);
        let server = ScriptedServer::slow(move |seen, _| {
            let reply = asked.serve(&seen);
            std::future::ready(reply)
        })
        .await;
        Self { server, state }
    }
}

impl LedgerState {
    /// Waits until something has happened this often. The caller bounds it.
    ///
    /// `called`: a call arrived. `sent`: an event left. `half`: half of an answer left. `cancelled`: a cancel arrived.
    /// `resumed`: a stream was resumed.
    pub async fn reached(&self, milestone: &'static str, times: usize) {
        let mut milestones = self.milestones.subscribe();
        let is_there = |seen: &HashMap<&'static str, usize>| seen.get(milestone).is_some_and(|seen| *seen >= times);
        milestones.wait_for(is_there).await.expect("the desk is there");
    }

    /// How often a milestone was reached so far.
    pub fn count(&self, milestone: &'static str) -> usize {
        self.milestones.borrow().get(milestone).copied().unwrap_or_default()
    }

    /// Releases all calls with the argument `held`, and all later ones.
    pub fn release(&self) {
        self.is_released.send_replace(true);
    }

    /// Holds calls that are `held` again, those that come.
    pub fn hold(&self) {
        self.is_released.send_replace(false);
    }

    /// Everything that was sent for a call, in order.
    pub fn sent(&self, nonce: &str) -> String {
        self.sent.lock().iter().filter(|(of, _)| of == nonce).map(|(_, text)| text.as_str()).collect()
    }

    fn mark(&self, milestone: &'static str) {
        self.milestones.send_modify(|seen| *seen.entry(milestone).or_default() += 1);
    }

    fn serve(self: &Arc<Self>, seen: &SeenRequest) -> Option<ScriptedReply> {
        let session = seen.header("mcp-session-id").unwrap_or_default().to_owned();
        match (seen.method.as_str(), seen.rpc()) {
            ("GET", _) => Some(self.resume(seen.header("last-event-id")?).unwrap_or_else(|| status(405))),
            ("POST", "tools/list") => {
                let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
                Some(answer(seen, &json!({"tools": TOOLS.map(tool)})))
            }
            ("POST", "tools/call") => Some(self.call(seen, session)),
            ("POST", "notifications/cancelled") => {
                let request = seen.body["params"]["requestId"].to_string();
                if let Some(call) = self.calls.lock().by_request.get(&(session, request)) {
                    call.cancelled.cancel();
                    self.mark("cancelled");
                }
                Some(status(202))
            }
            ("POST", "") => {
                self.answered(&seen.body);
                Some(status(202))
            }
            (_, _) => None,
        }
    }

    fn call(self: &Arc<Self>, seen: &SeenRequest, session: String) -> ScriptedReply {
        let arguments = seen.body["params"]["arguments"].clone();
        let nonce = arguments["nonce"].as_str().unwrap_or_default().to_owned();
        self.history.record(Fact::Called { nonce: nonce.clone() });
        let call = Arc::new(Call {
            nonce: nonce.clone(),
            id: seen.body["id"].clone(),
            token: seen.body["params"]["_meta"]["progressToken"].clone(),
            arguments,
            events: Mutex::default(),
            grew: watch::Sender::default(),
            readers: watch::Sender::default(),
            given: Mutex::default(),
            is_given: Notify::new(),
            cancelled: CancellationToken::new(),
        });
        {
            let mut calls = self.calls.lock();
            calls.by_request.insert((session, call.id.to_string()), Arc::clone(&call));
            calls.by_nonce.insert(nonce, Arc::clone(&call));
        }
        self.mark("called");
        let reply = self.stream(&call, 0);
        let state = Arc::clone(self);
        self.tracker.spawn(async move { state.run(&call).await });
        reply
    }

    /// The rest of a stream behind an event.
    fn resume(self: &Arc<Self>, after: &str) -> Option<ScriptedReply> {
        let (nonce, index) = after.rsplit_once(':').filter(|_| self.is_resumable)?;
        let call = self.calls.lock().by_nonce.get(nonce).cloned()?;
        self.mark("resumed");
        Some(self.stream(&call, index.parse::<usize>().ok()? + 1))
    }

    /// An answer to a question.
    fn answered(&self, body: &Value) {
        let Some(nonce) = body["id"].as_str().and_then(|id| id.strip_prefix("q-")) else { return };
        let value = body["result"]["content"]["value"].as_str().unwrap_or_default().to_owned();
        if !value.is_empty() {
            self.history.record(Fact::Delivered { nonce: nonce.to_owned(), value: value.clone() });
        }
        if let Some(call) = self.calls.lock().by_nonce.get(nonce) {
            call.given.lock().get_or_insert(value);
            call.is_given.notify_one();
        }
    }

    fn stream(self: &Arc<Self>, call: &Arc<Call>, from: usize) -> ScriptedReply {
        let (events, reply) = BodySender::open();
        let (state, call) = (Arc::clone(self), Arc::clone(call));
        call.readers.send_modify(|readers| *readers += 1);
        self.tracker.spawn(async move {
            tokio::select! {
                () = state.send_events(&call, &events, from) => (),
                () = events.abandoned() => (),
            }
            call.readers.send_modify(|readers| *readers -= 1);
        });
        reply
    }

    /// Sends all events from `from` on, also later ones, until the answer.
    async fn send_events(&self, call: &Call, events: &BodySender, from: usize) {
        let mut grew = call.grew.subscribe();
        for index in from.. {
            if grew.wait_for(|count| *count > index).await.is_err() {
                return;
            }
            let event = call.events.lock()[index].clone();
            let id = if self.is_resumable { format!("id: {}:{index}\n", call.nonce) } else { String::new() };
            let text = if event.is_null() { format!("{id}data:\n\n") } else { format!("{id}data: {event}\n\n") };
            if let Some(result) = event.get("result") {
                let half = if call.arguments["half"] == true { text.len() / 2 } else { 0 };
                if half > 0 {
                    self.send(call, events, &text[..half]);
                    self.mark("half");
                    tokio::time::sleep(HALF_WAIT).await;
                }
                // Recorded before it is sent: its effects must not be recorded first.
                if events.is_read() {
                    let payload = result["content"][0]["text"].as_str().unwrap_or_default().to_owned();
                    self.history.record(Fact::Returned { nonce: call.nonce.clone(), payload });
                }
                return self.send(call, events, &text[half..]);
            }
            self.send(call, events, &text);
            self.mark("sent");
        }
    }

    fn send(&self, call: &Call, events: &BodySender, text: &str) {
        self.sent.lock().push((call.nonce.clone(), text.to_owned()));
        events.raw(text.to_owned());
    }

    /// The tool: steps, a question, a result.
    async fn run(&self, call: &Call) {
        if self.is_resumable {
            call.push(Value::Null);
        }
        let steps = call.arguments["steps"].as_u64().unwrap_or(2);
        let pause = Duration::from_millis(call.arguments["ms"].as_u64().unwrap_or(20) / steps.max(1));
        for step in 1..=steps {
            if call.cancelled.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
            if !call.token.is_null() {
                let params = json!({"progressToken": call.token, "progress": step, "message": format!("step {step}")});
                call.push(json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}));
            }
        }
        if call.arguments["held"] == true {
            let mut released = self.is_released.subscribe();
            let released = released.wait_for(|is_released| *is_released);
            if call.cancelled.run_until_cancelled(released).await.is_none() {
                return;
            }
        }
        let mut said = String::new();
        if call.arguments["asks"] == true {
            match self.ask(call).await {
                Some(value) => said = value,
                None => return,
            }
        }
        let text = format!("{} done {said}", call.nonce);
        let result = json!({"content": [{"type": "text", "text": text}]});
        call.push(json!({"jsonrpc": "2.0", "id": call.id, "result": result}));
    }

    /// The answer to a question; `None` once no client can give it.
    async fn ask(&self, call: &Call) -> Option<String> {
        self.history.record(Fact::Asks { nonce: call.nonce.clone() });
        let schema = json!({"type": "object", "properties": {"value": {"type": "string"}}});
        let params = json!({"mode": "form", "message": "Which?", "requestedSchema": schema});
        let id = format!("q-{}", call.nonce);
        call.push(json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": params}));
        let mut readers = call.readers.subscribe();
        let lost = async {
            // A client cannot resume the stream of such a server, so no answer will come.
            if self.is_resumable || readers.wait_for(|readers| *readers == 0).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = call.is_given.notified() => (),
            () = call.cancelled.cancelled() => (),
            () = lost => (),
        }
        self.history.record(Fact::StopsAsking { nonce: call.nonce.clone() });
        call.given.lock().clone()
    }
}

impl Call {
    fn push(&self, event: Value) {
        let mut events = self.events.lock();
        events.push(event);
        self.grew.send_replace(events.len());
    }
}
