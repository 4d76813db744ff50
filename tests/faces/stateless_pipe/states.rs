//! Rounds of questions: the upstream's state goes to the client sealed and comes back as it was.

use serde_json::{Value, json};
use taskgate::face::sealed::{IdKind, Sealer, SealingKeys};
use taskgate::task::Principal;

use super::client::{Client, KEY, TestGateway};
use super::peers::{body_of, client, gate, post, server};
use super::upstream::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, answer, json_text};

/// The upstream's own state, in a spelling that must come back.
const STATE: &str = r#""st\u0061te \/1""#;

/// The client's capabilities.
const DECLARED: &str = r#"{"elicitation":{}}"#;

/// Asks, and returns the retry's answers and state.
fn asking(seen: &SeenRequest) -> Option<ScriptedReply> {
    if !matches!(seen.rpc(), "tools/call" | "prompts/get" | "resources/read") {
        return None;
    }
    if seen.body["params"].get("inputResponses").is_some() {
        return Some(answer(seen, &json!({"resultType": "complete", "content": []})));
    }
    let id = &seen.body["id"];
    let result = format!(
        r#"{{"resultType":"input_required", "inputRequests":{{"k":{{"method":"elicitation/create","params":{{"n":1.10}}}}}},"requestState": {STATE}}}"#
    );
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#);
    if seen.rpc() == "prompts/get" {
        let (events, reply) = BodySender::open();
        events.raw(format!("data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}}\n\ndata: {text}\n\n"));
        return Some(reply);
    }
    Some(json_text(text))
}

async fn ask(client: &Client, method: &str, params: &str) -> Value {
    ask_declaring(client, DECLARED, method, params).await
}

async fn ask_declaring(client: &Client, declared: &str, method: &str, params: &str) -> Value {
    let text = post(client, &body_of(method, declared, params)).await.text().await;
    let last = text.lines().rfind(|line| line.contains("\"result\"")).unwrap_or(&text);
    serde_json::from_str(last.trim_start_matches("data: ")).unwrap()
}

async fn world() -> (ScriptedServer, TestGateway) {
    let server = server(asking).await;
    let gate = gate(&server).await;
    (server, gate)
}

/// MOD-28, T-24, UPC-14.
#[tokio::test]
async fn mod28_a_state_is_sealed_and_comes_back_byte_for_byte() {
    let (server, gate) = world().await;
    let client = client(&gate);
    for (method, params) in [
        ("tools/call", r#""name":"t","arguments":{"a":1,"b":2}"#),
        ("prompts/get", r#""name":"p""#),
        ("resources/read", r#""uri":"a:b""#),
    ] {
        let asked = ask(&client, method, params).await;
        let sealed = asked["result"]["requestState"].as_str().unwrap().to_owned();
        assert!(!sealed.contains("state"), "{sealed}");
        assert_eq!(asked["result"]["inputRequests"]["k"]["params"], json!({"n": 1.1}), "keys and entries stay");
        let retried = format!(r#"{params},"inputResponses":{{"k":{{"action":"accept"}}}},"requestState":"{sealed}""#);
        let done = ask(&client, method, &retried).await;
        assert_eq!(done["result"]["resultType"], "complete", "{done}");
        let seen = server.world.all(|seen| seen.rpc() == method).pop().unwrap();
        let text = String::from_utf8(seen.bytes.to_vec()).unwrap();
        assert!(text.contains(&format!(r#""requestState":{STATE}"#)), "{text}");
        assert!(text.contains(r#""inputResponses":{"k":{"action":"accept"}}"#), "{text}");
    }
}

/// B135, T-24, MOD-28: nothing of it goes upstream.
#[tokio::test]
async fn t_24_a_state_of_another_request_is_refused_and_nothing_is_sent() {
    let (server, gate) = world().await;
    let client = client(&gate);
    let asked = ask(&client, "tools/call", r#""name":"t","arguments":{"a":1,"b":2}"#).await;
    let sealed = asked["result"]["requestState"].as_str().unwrap();
    let other = if sealed.as_bytes()[40] == b'A' { 'B' } else { 'A' };
    let forged = format!("{}{other}{}", &sealed[..40], &sealed[41..]);
    let before = server.world.count("tools/call");
    for (what, name, arguments, state) in [
        ("other arguments", "t", r#"{"a":1,"b":3}"#, sealed),
        ("other tool", "region", r#"{"a":1,"b":2}"#, sealed),
        ("forged", "t", r#"{"a":1,"b":2}"#, &forged),
        ("the upstream's own", "t", r#"{"a":1,"b":2}"#, "state /1"),
    ] {
        let params =
            format!(r#""name":"{name}","arguments":{arguments},"inputResponses":{{}},"requestState":"{state}""#);
        let reply = post(&client, &body_of("tools/call", DECLARED, &params)).await;
        assert_eq!(reply.status.as_u16(), 200, "{what}");
        let error = reply.json().await["error"].take();
        assert_eq!(
            (&error["code"], &error["data"]["reason"]),
            (&json!(-32602), &json!("invalid_request_state")),
            "{what}"
        );
    }
    assert_eq!(server.world.count("tools/call"), before);
    let params = format!(r#""requestState":"{sealed}","arguments":{{"b":2, "a":1}},"name":"t","inputResponses":{{}}"#);
    let done = ask(&client, "tools/call", &params).await;
    assert_eq!(done["result"]["resultType"], "complete", "the spelling does not matter: {done}");
}

/// The state as if a gateway had sealed it two hours ago.
fn aged(state: &str) -> String {
    let (sealer, owner) = (Sealer::new(SealingKeys::parse(KEY).unwrap()), Principal::local());
    let opened = sealer.open(IdKind::RequestState, Some(&owner), state).unwrap();
    let mut payload = opened.payload().to_vec();
    // The time stands behind a digest of 32 bytes.
    let sealed_at = u64::from_be_bytes(payload[32..40].try_into().unwrap());
    payload[32..40].copy_from_slice(&(sealed_at - 7_200_000).to_be_bytes());
    sealer.seal(&opened.id, Some(&owner), &payload).unwrap()
}

/// MOD-28: the operator's `input_deadline` may be longer than an hour.
#[tokio::test]
async fn the_state_of_a_held_call_lasts_as_long_as_the_call() {
    let server = server(asking).await;
    let tasks = "[upstreams.up.tasks]\nearly_input = \"ask-first\"\ngrace = \"30s\"";
    let gate = TestGateway::with(server.address, tasks).await;
    let client = client(&gate);
    let (params, with_tasks) =
        (r#""name":"t","arguments":{}"#, r#"{"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}"#);
    for (declared, expected) in [(with_tasks, json!("complete")), (DECLARED, Value::Null)] {
        let asked = ask_declaring(&client, declared, "tools/call", params).await;
        let state = asked["result"]["requestState"].as_str().unwrap_or_else(|| panic!("{asked}"));
        let key = asked["result"]["inputRequests"].as_object().unwrap().keys().next().unwrap();
        let answers = format!(r#""inputResponses":{{"{key}":{{"action":"accept"}}}},"requestState":"{}""#, aged(state));
        let done = ask_declaring(&client, declared, "tools/call", &format!("{params},{answers}")).await;
        assert_eq!(done["result"]["resultType"], expected, "a held call, then a forwarded one: {done}");
    }
}
