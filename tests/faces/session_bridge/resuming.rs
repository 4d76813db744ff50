//! Calls whose clients lose the stream, and take it up again.

use http::StatusCode;
use serde_json::{Value, json};

use super::client::{Client, Reply, TestGateway};
use super::server::{open, request, stateless};
use super::upstream::{BodySender, Once, ScriptedServer, SeenRequest};

async fn asking() -> (ScriptedServer, BodySender) {
    let (events, once) = Once::events();
    let server = stateless(move |seen| if seen.is_call() { once.take() } else { None }).await;
    (server, events)
}

fn progress(events: &BodySender, seen: &SeenRequest, value: u32) {
    let params = json!({ "progressToken": seen.token(), "progress": value });
    events.message(&json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }));
}

async fn call(client: &Client) -> Reply {
    let params = json!({ "name": "t", "_meta": { "progressToken": "p" } });
    client.post(request(7, "tools/call", &params)).await
}

/// The id of the next event, and its message; comments are skipped.
async fn event(reply: &mut Reply, read: &mut String) -> Option<(Option<String>, Value)> {
    loop {
        if let Some((event, rest)) = read.clone().split_once("\n\n") {
            *read = rest.to_owned();
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name).map(str::trim));
            if let Some(data) = field("data:") {
                let said = if data.is_empty() { Value::Null } else { serde_json::from_str(data).unwrap() };
                return Some((field("id:").map(str::to_owned), said));
            }
            continue;
        }
        read.push_str(&reply.piece().await?);
    }
}

/// All that is left of a stream: progress as its value, the answer as its id.
async fn rest(mut reply: Reply) -> (Vec<Value>, Option<String>) {
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, Some("text/event-stream")));
    let (mut read, mut said, mut last) = (String::new(), Vec::new(), None);
    while let Some((id, message)) = event(&mut reply, &mut read).await {
        let progress = message["params"].get("progress");
        said.push(progress.unwrap_or_else(|| &message["id"]).clone());
        last = id;
    }
    (said, last)
}

/// LEG-09, T-81.
#[tokio::test]
async fn leg_09_a_client_resumes_a_lost_stream_and_gets_the_missed_events() {
    let (server, events) = asking().await;
    let gate = TestGateway::before(&server).await;
    let client = open(&gate, "2025-11-25", &json!({})).await;
    let (mut reply, seen) = tokio::join!(call(&client), async {
        let seen = server.world.first(|seen| seen.is_call()).await;
        progress(&events, &seen, 1);
        seen
    });
    let mut read = String::new();
    let (beginning, said) = event(&mut reply, &mut read).await.unwrap();
    assert_eq!(said, Value::Null, "it can be taken up from its beginning on");
    let (first, said) = event(&mut reply, &mut read).await.unwrap();
    assert_eq!(said["params"]["progress"], 1);
    let (beginning, first) = (beginning.unwrap(), first.unwrap());
    drop(reply);
    progress(&events, &seen, 2);
    let again = client.get(Some(&first)).await;
    progress(&events, &seen, 3);
    events.result(&seen, &json!({ "resultType": "complete", "content": [] }));
    let (said, last) = rest(again).await;
    assert_eq!(said, [json!(2), json!(3), json!(7)], "the missed events, then new ones");
    assert_eq!(rest(client.get(Some(&beginning)).await).await.0, [json!(1), json!(2), json!(3), json!(7)]);
    assert_eq!(rest(client.get(last.as_deref()).await).await.0, Vec::<Value>::new(), "it has heard it all");
    let stranger = open(&gate, "2025-11-25", &json!({})).await;
    assert_eq!(stranger.get(Some(&first)).await.status, StatusCode::BAD_REQUEST, "another session's");
    assert_eq!(client.get(Some("x")).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(server.world.all(SeenRequest::is_call).len(), 1);
    client.delete().await;
    assert_eq!(client.get(Some(&first)).await.status, StatusCode::NOT_FOUND);
}

/// T-28, LEG-09: only versions that have event ids are shown any, and only the newest is shown an empty one.
#[tokio::test]
async fn streams_have_event_ids_where_the_version_has_them() {
    for (version, ids) in [("2024-11-05", 0), ("2025-03-26", 2), ("2025-06-18", 2), ("2025-11-25", 3)] {
        let (server, events) = asking().await;
        let gate = TestGateway::before(&server).await;
        let client = open(&gate, version, &json!({})).await;
        let (reply, ()) = tokio::join!(call(&client), async {
            let seen = server.world.first(|seen| seen.is_call()).await;
            progress(&events, &seen, 1);
            events.result(&seen, &json!({ "resultType": "complete", "content": [] }));
        });
        let text = reply.text().await;
        let found = text.lines().filter(|line| line.starts_with("id:")).count();
        let empty = text.lines().filter(|line| *line == "data:").count();
        assert_eq!((found, empty), (ids, usize::from(ids == 3)), "{version}: {text}");
    }
}
