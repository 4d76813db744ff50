//! The credential of each request to a server: sessions that the gateway opens, cached lists, tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use support::scripted::{SeenRequest, answer, json_text};
use support::session_client::TestGateway;

use super::fixture::{CHALLENGE, Caller, FORWARDS, PAIRS, SESSION, STATELESS, challenged, is_let_in, protected, said};

/// T-82: sessions are never shared between credentials.
#[tokio::test]
async fn t_82_a_session_that_the_gateway_opens_for_a_client_bears_that_clients_credential() {
    let server = protected(SESSION, |_| None).await;
    let gate = TestGateway::with(server.address, FORWARDS).await;
    for token in ["good-ada", "good-bob", "good-ada"] {
        let caller = Caller::let_in(&gate, STATELESS, token).await;
        assert_eq!(said(caller.call("plain").await).await["result"]["content"][0]["text"], "plain");
    }
    let opened = server.world.all(|seen| seen.rpc() == "initialize");
    let whose: Vec<_> = opened.iter().filter_map(|seen| seen.header("authorization")).collect();
    assert_eq!(whose, ["Bearer good-ada", "Bearer good-bob"], "one session each");
    let own = server.world.all(|seen| seen.rpc() != "server/discover");
    assert!(own.iter().all(is_let_in), "{own:?}");
    let sessions_of = |token: &str| {
        let theirs = own.iter().filter(|seen| seen.header("authorization") == Some(token));
        let mut sessions: Vec<_> = theirs.filter_map(|seen| seen.header("mcp-session-id")).collect();
        sessions.dedup();
        sessions
    };
    assert_eq!((sessions_of("Bearer good-ada").len(), sessions_of("Bearer good-bob").len()), (1, 1));
    assert_ne!(sessions_of("Bearer good-ada"), sessions_of("Bearer good-bob"));
}

/// A server's list may depend on the credential.
#[tokio::test]
async fn tool_lists_are_kept_for_the_credential_that_they_were_shown_to() {
    for (client, kind) in PAIRS {
        let server = protected(kind, |seen| {
            let is_ada = seen.header("authorization") == Some("Bearer good-ada");
            let tool = json!({"name": if is_ada { "secret" } else { "open" }, "inputSchema": {"type": "object"}});
            let result = json!({"tools": [tool], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"});
            (is_let_in(seen) && seen.rpc() == "tools/list").then(|| answer(seen, &result))
        })
        .await;
        let gate = TestGateway::with(server.address, FORWARDS).await;
        let (ada, bob) =
            (Caller::let_in(&gate, client, "good-ada").await, Caller::let_in(&gate, client, "good-bob").await);
        for (person, tool) in [(&ada, "secret"), (&bob, "open"), (&ada, "secret")] {
            let list = said(person.ask("tools/list", json!({})).await).await;
            assert_eq!(list["result"]["tools"][0]["name"], tool, "{client} {kind}");
        }
    }
}

fn task_of(made: &Value) -> String {
    let id = made["result"]["taskId"].as_str();
    id.unwrap_or_else(|| panic!("no handle: {made}")).to_owned()
}

async fn ended(person: &Caller, id: &str) -> Value {
    for _ in 0..400 {
        let task = said(person.ask("tasks/get", json!({"taskId": id})).await).await;
        if task["result"]["status"] != "working" {
            return task;
        }
        tokio::time::sleep(std::time::Duration::from_millis(25)).await;
    }
    panic!("the task does not end");
}

/// A server that makes a task of its own of each call, and refuses every credential once that is done.
#[tokio::test]
async fn a_credential_that_expires_while_a_task_runs_ends_the_task_and_says_so() {
    let is_made = Arc::new(AtomicBool::new(false));
    let made = Arc::clone(&is_made);
    let server = protected(STATELESS, move |seen: &SeenRequest| {
        if made.load(Ordering::SeqCst) {
            return Some(challenged(401, &[CHALLENGE.as_bytes()]));
        }
        let handle = json!({
            "resultType": "task", "taskId": "u-1", "status": "working", "ttlMs": 60_000, "pollIntervalMs": 50,
            "createdAt": "2026-11-25T00:00:00Z", "lastUpdatedAt": "2026-11-25T00:00:00Z",
        });
        (seen.is_call() && is_let_in(seen)).then(|| {
            made.store(true, Ordering::SeqCst);
            answer(seen, &handle)
        })
    })
    .await;
    let gate = TestGateway::with(server.address, &format!("{FORWARDS}\n[upstreams.up.tasks]\nmode = \"always\"")).await;
    let (ada, bob) =
        (Caller::let_in(&gate, STATELESS, "good-ada").await, Caller::new(&gate, STATELESS, Some("good-bob")));
    let id = task_of(&said(ada.call("plain").await).await);
    let task = ended(&ada, &id).await;
    assert_eq!(task["result"]["status"], "failed", "{task}");
    let error = &task["result"]["error"];
    assert_eq!(
        (&error["data"]["reason"], &error["data"]["executed"]),
        (&json!("upstream_auth"), &json!("unknown")),
        "{task}"
    );
    assert!(is_made.load(Ordering::SeqCst));
    // Another principal sees nothing of it.
    let foreign = said(bob.ask("tasks/get", json!({"taskId": id})).await).await;
    let unknown = said(bob.ask("tasks/get", json!({"taskId": "0".repeat(32)})).await).await;
    assert_eq!(foreign, unknown);
}

/// A server in sessions whose stream breaks off, and which refuses to resume it.
#[tokio::test]
async fn a_stream_that_a_credential_can_take_up_no_more_ends_the_call() {
    let server = protected(SESSION, |seen: &SeenRequest| {
        if seen.method == http::Method::GET && seen.header("last-event-id").is_some() {
            return Some(challenged(401, &[CHALLENGE.as_bytes()]));
        }
        let primer = "id: 1\nretry: 10\ndata:\n\n";
        (seen.is_call() && is_let_in(seen)).then(|| {
            let mut reply = json_text(primer);
            reply.headers_mut().insert("content-type", "text/event-stream".parse().unwrap());
            reply
        })
    })
    .await;
    let gate = TestGateway::with(server.address, &format!("{FORWARDS}\n[upstreams.up.tasks]\nmode = \"always\"")).await;
    let ada = Caller::let_in(&gate, STATELESS, "good-ada").await;
    let id = task_of(&said(ada.call("plain").await).await);
    let task = ended(&ada, &id).await;
    assert_eq!(task["result"]["error"]["data"]["reason"], "upstream_auth", "{task}");
    let resumed = server.world.first(|seen| seen.header("last-event-id").is_some()).await;
    assert_eq!(resumed.header("authorization"), Some("Bearer good-ada"));
}
