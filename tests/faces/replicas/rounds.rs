//! A plain call of a stateless client that is held by one replica between two rounds of questions, and answers that come to
//! another.

use std::sync::Arc;

use serde_json::{Value, json};
use support::wire_client::{Answer, Flavour, WireClient};
use taskgate::replica::ReplicaMember;
use tokio_util::task::TaskTracker;

use super::harness::Replicas;
use super::upstream::{BodySender, ScriptedReply, ScriptedServer, ScriptedState, SeenRequest, answer};

const ADA: &str = "tg_ada1_0011223344556677889900aabbccddee";
const BOB: &str = "tg_bob1_a1b2c3d4e5f60718293a4b5c6d7e8f90";
/// The response about a lost call, and to an invalid state.
const NO_STATE: (u16, &str) = (200, "invalid_request_state");

/// Its only tool asks, and returns the answer.
async fn server() -> ScriptedServer {
    ScriptedServer::slow(|seen, world| std::future::ready(act(&seen, &world))).await
}

fn act(seen: &SeenRequest, world: &Arc<ScriptedState>) -> Option<ScriptedReply> {
    if seen.rpc() == "tools/list" {
        return Some(answer(seen, &json!({ "tools": [{ "name": "ask", "inputSchema": {} }] })));
    }
    if !seen.is_call() {
        return None;
    }
    let (events, reply) = BodySender::open();
    let params = json!({ "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } });
    let n = world.count("tools/call");
    events.message(&json!({ "jsonrpc": "2.0", "id": n, "method": "elicitation/create", "params": params }));
    let (seen, world) = (seen.clone(), Arc::clone(world));
    TaskTracker::new().spawn(async move {
        let told = world.first(|other| is_answer(other) && other.body["id"] == n).await;
        events.result(&seen, &json!({ "content": [], "structuredContent": told.body["result"] }));
    });
    Some(reply)
}

fn is_answer(seen: &SeenRequest) -> bool {
    seen.body.get("result").is_some()
}

/// Two replicas in front of it, and of the other servers in `more`. A client with a key is the principal that it names.
async fn pair(server: &ScriptedServer, more: &str) -> Replicas {
    let keys = format!(
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n[[auth.api_keys]]\nid = \"bob\"\nkey = \"{BOB}\"\n"
    );
    let up = format!("[upstreams.up]\nurl = \"{}\"\n[upstreams.up.tasks]\nmode = \"never\"\n", server.url());
    Replicas::serving(2, &(keys + &up + more), &[]).await
}

/// A call that is held at the first replica.
struct HeldCall {
    path: &'static str,
    state: String,
    question: String,
}

impl HeldCall {
    async fn begin(replicas: &Replicas) -> Self {
        Self::begin_at(replicas, "/up/mcp").await
    }

    async fn begin_at(replicas: &Replicas, path: &'static str) -> Self {
        let answer = call(replicas, (0, path), ADA, json!({})).await;
        let asked = &answer.json()["result"];
        let state = asked["requestState"].as_str().unwrap_or_else(|| panic!("{answer:?}")).to_owned();
        let question = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        Self { path, state, question }
    }

    /// The same for one with another state.
    fn with(&self, state: String) -> Self {
        Self { path: self.path, state, question: self.question.clone() }
    }

    async fn answer(&self, replicas: &Replicas, at: usize, key: &str) -> Answer {
        let said = json!({ self.question.as_str(): { "action": "accept", "content": { "sure": true } } });
        call(replicas, (at, self.path), key, json!({ "inputResponses": said, "requestState": self.state })).await
    }
}

async fn call(replicas: &Replicas, (at, path): (usize, &'static str), key: &str, more: Value) -> Answer {
    let mut params = json!({ "name": "ask", "arguments": { "n": 1 } });
    for (name, value) in more.as_object().unwrap() {
        params[name] = value.clone();
    }
    let headers = vec![("authorization", format!("Bearer {key}"))];
    let client = WireClient { headers, path, ..WireClient::new(Flavour::Extension) };
    client.ask(replicas.all[at].gateway.address(), "tools/call", params).await
}

#[track_caller]
fn check_result(answer: &Answer) {
    let said = answer.json();
    assert_eq!(said["result"]["structuredContent"]["content"], json!({ "sure": true }), "{said}");
}

#[track_caller]
fn check_refused(answer: &Answer, expected: (u16, &str)) {
    let reason = answer.json()["error"]["data"]["reason"].clone();
    assert_eq!((answer.status, reason), (Some(expected.0), json!(expected.1)), "{answer:?}");
}

/// GW-20, F52.
#[tokio::test]
async fn answers_at_another_replica_reach_the_call_that_is_held_and_bring_its_result() {
    let server = server().await;
    let replicas = pair(&server, "").await;
    let held = HeldCall::begin(&replicas).await;
    check_result(&held.answer(&replicas, 1, ADA).await);
    for at in [1, 0] {
        check_result(&held.answer(&replicas, at, ADA).await);
    }
    assert_eq!(
        (server.world.count("tools/call"), server.world.all(is_answer).len()),
        (1, 1),
        "once, however often it came"
    );
    // A replica that drains takes the rest of a call that it began.
    let held = HeldCall::begin(&replicas).await;
    let home = replicas.all[0].member();
    replicas.all[1].sees(vec![ReplicaMember { is_leaving: true, ..home }]);
    check_result(&held.answer(&replicas, 1, ADA).await);
    assert_eq!((server.world.count("tools/call"), server.world.all(is_answer).len()), (2, 2));
}

#[tokio::test]
async fn answers_at_an_endpoint_of_several_servers_reach_the_call_at_another_replica() {
    let list = |seen: &SeenRequest| {
        let tool = json!({ "name": "other", "inputSchema": {} });
        (seen.rpc() == "tools/list").then(|| answer(seen, &json!({ "tools": [tool] })))
    };
    let (server, other) = (server().await, ScriptedServer::start(list).await);
    let endpoint = "[[endpoints]]\npath = \"/all\"\nprefix = \"auto\"\nupstreams = [\"up\", \"other\"]\n";
    let replicas = pair(&server, &format!("[upstreams.other]\nurl = \"{}\"\n{endpoint}", other.url())).await;
    let held = HeldCall::begin_at(&replicas, "/all").await;
    check_result(&held.answer(&replicas, 1, ADA).await);
    assert_eq!((server.world.count("tools/call"), server.world.all(is_answer).len()), (1, 1));
}

/// T-56: as after a restart of the gateway, nothing is run again.
#[tokio::test]
async fn a_held_call_may_be_answered_again_while_its_replica_is_away_and_is_lost_with_it() {
    let server = server().await;
    let mut replicas = pair(&server, "").await;
    let held = HeldCall::begin(&replicas).await;
    replicas.kill(0);
    for _ in 0..2 {
        let away = held.answer(&replicas, 0, ADA).await;
        check_refused(&away, (503, "replica_unavailable"));
        assert_eq!(away.retry_after.as_deref(), Some("1"));
    }
    replicas.share_members();
    for _ in 0..2 {
        check_refused(&held.answer(&replicas, 0, ADA).await, NO_STATE);
    }
    assert_eq!((server.world.count("tools/call"), server.world.all(is_answer).len()), (1, 0));
}

/// SEC-17: no other principal learns that there is such a call.
#[tokio::test]
async fn a_foreign_request_state_answers_no_question_at_any_replica() {
    let server = server().await;
    let mut replicas = pair(&server, "").await;
    let held = HeldCall::begin(&replicas).await;
    let mut garbled = held.state.clone();
    garbled.replace_range(..1, if garbled.starts_with('A') { "B" } else { "A" });
    let garbled = held.with(garbled);
    for at in [0, 1] {
        let (foreign, unknown) = (held.answer(&replicas, at, BOB).await, garbled.answer(&replicas, at, BOB).await);
        check_refused(&foreign, NO_STATE);
        assert_eq!(foreign.text, unknown.text);
    }
    assert_eq!(server.world.all(is_answer).len(), 0);
    check_result(&held.answer(&replicas, 1, ADA).await);
    let held = HeldCall::begin(&replicas).await;
    replicas.kill(0);
    check_refused(&held.answer(&replicas, 0, BOB).await, NO_STATE);
    check_refused(&held.answer(&replicas, 0, ADA).await, (503, "replica_unavailable"));
}
