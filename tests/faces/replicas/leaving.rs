//! A replica drains while others live: the requests that it gets and forwards, and those that others take over.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use taskgate::replica::ReplicaMember;
use tokio_util::task::TaskTracker;

use super::client::{Client, call, initialize};
use super::harness::{Replicas, before};
use super::talk::SessionMessages;
use super::upstream::{BodySender, Once, ScriptedReply, ScriptedServer, SeenRequest, answer, in_time};
use crate::session_bridge::server::stateless;

const ASKED: &str = "elicitation/create";

/// Of all replicas these are there, of which one may be about to end, and all know it.
fn all_see(replicas: &Replicas, living: &[usize], leaving: Option<usize>) {
    let seen = living.iter().map(|at| {
        let one = &replicas.all[*at];
        ReplicaMember { is_leaving: leaving == Some(*at), ..one.member() }
    });
    let seen: Vec<_> = seen.collect();
    replicas.all.iter().for_each(|one| one.sees(seen.clone()));
}

fn announce_end_of_the_first(replicas: &Replicas) {
    let all: Vec<_> = (0..replicas.all.len()).collect();
    all_see(replicas, &all, Some(0));
}

/// A client that can be asked by the capabilities that it declares, with a session that was begun at the first replica.
async fn client(replicas: &Replicas) -> Client {
    let stranger = replicas.client_without_session(0);
    let declared = json!({ "elicitation": { "form": {} }, "sampling": {}, "roots": {} });
    let reply = stranger.post(initialize("2025-11-25", &declared)).await;
    let session = reply.header("mcp-session-id").map(str::to_owned);
    assert!(session.is_some(), "{}", reply.text().await);
    Client { session, version: Some("2025-11-25".to_owned()), ..stranger }
}

/// F67. Its client returns to another replica, and gets the missed events from the session's owner.
#[tokio::test]
async fn a_stream_that_a_replica_passes_on_ends_with_that_replica() {
    for is_endpoint in [false, true] {
        let server = ScriptedServer::start(move |seen| {
            (seen.method == "GET").then(|| {
                let (events, reply) = BodySender::open();
                events.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n");
                // Open until no client reads.
                TaskTracker::new().spawn(async move { events.abandoned().await });
                reply
            })
        })
        .await;
        let mut replicas = in_front_of(&server, is_endpoint).await;
        let there = replicas.at(1, &client(&replicas).await);
        let reply = there.get(None).await;
        assert_eq!(reply.status, StatusCode::OK);
        let mut own = SessionMessages::of(reply);
        in_time(own.next_of("notifications/tools/list_changed")).await;
        let second = replicas.all.remove(1);
        let draining = TaskTracker::new().spawn(second.gateway.drain(Some(Duration::ZERO)));
        assert_eq!(in_time(own.next()).await, None);
        in_time(draining).await.unwrap();
    }
}

/// The list with the tool that is called here.
pub(super) fn listed(seen: &SeenRequest) -> Option<ScriptedReply> {
    let tool = json!({ "name": "t", "inputSchema": { "type": "object" } });
    let list = json!({ "resultType": "complete", "tools": [tool], "ttlMs": 0, "cacheScope": "private" });
    (seen.rpc() == "tools/list").then(|| answer(seen, &list))
}

/// A server without sessions, whose calls ask before they return.
async fn asking() -> ScriptedServer {
    stateless(|seen| {
        let params = &seen.body["params"];
        match (seen.rpc(), params["requestState"].as_str()) {
            ("tools/call", None) => {
                let form = json!({ "mode": "form", "message": "?", "requestedSchema": { "type": "object" } });
                let questions = json!({ "k": { "method": ASKED, "params": form } });
                let result = json!({ "resultType": "input_required", "inputRequests": questions, "requestState": "s" });
                Some(answer(seen, &result))
            }
            ("tools/call", Some(_)) => {
                Some(answer(seen, &json!({ "content": [], "structuredContent": params["inputResponses"] })))
            }
            _ => listed(seen),
        }
    })
    .await
}

/// One whose first call is the test's to answer.
async fn holding() -> (BodySender, ScriptedServer) {
    let (events, calls) = Once::events();
    let server = stateless(move |seen| if seen.is_call() { calls.take() } else { listed(seen) }).await;
    (events, server)
}

fn accepted(id: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "result": { "action": "accept", "content": {} } }).to_string()
}

fn cancelled(id: u32) -> String {
    let params = json!({ "requestId": id });
    json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }).to_string()
}

/// At its own path, and at an endpoint of several servers.
pub(super) async fn in_front_of(server: &ScriptedServer, is_endpoint: bool) -> Replicas {
    let served = match is_endpoint {
        false => before(server),
        true => format!(
            "[upstreams.up]\nurl = \"{}\"\n[[endpoints]]\npath = \"/mcp\"\nupstreams = [\"up\"]\nprefix = \"auto\"\n",
            server.url()
        ),
    };
    Replicas::serving(3, &served, &[]).await
}

/// Where the call was made, and where its client goes on with it: one of them runs it.
const AT: [(usize, usize); 6] = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)];

/// A call that comes while a session's owner drains runs at another replica, and the rest of it goes there.
#[tokio::test]
async fn a_question_of_a_call_that_another_runs_for_a_leaving_home_is_answered_there() {
    for is_endpoint in [false, true] {
        let server = asking().await;
        let replicas = in_front_of(&server, is_endpoint).await;
        let client = client(&replicas).await;
        announce_end_of_the_first(&replicas);
        for (calls, answers) in AT {
            let [there, elsewhere] = [calls, answers].map(|at| replicas.at(at, &client));
            let mut stream = SessionMessages::of(there.post(call(1)).await);
            let question = in_time(stream.next_of(ASKED)).await;
            assert_eq!(elsewhere.post(accepted(&question["id"])).await.status, StatusCode::ACCEPTED);
            let result = in_time(stream.next()).await.unwrap();
            let told = &result["result"]["structuredContent"]["k"]["action"];
            assert_eq!(told, "accept", "{is_endpoint} {calls} {answers}: {result}");
        }
    }
}

#[tokio::test]
async fn a_call_that_another_runs_for_a_leaving_home_is_cancelled_there() {
    for is_endpoint in [false, true] {
        for (calls, cancels) in AT {
            let (events, server) = holding().await;
            let replicas = in_front_of(&server, is_endpoint).await;
            let client = client(&replicas).await;
            announce_end_of_the_first(&replicas);
            let [there, elsewhere] = [calls, cancels].map(|at| replicas.at(at, &client));
            let calling = TaskTracker::new().spawn(async move { there.post(call(1)).await });
            server.world.first(SeenRequest::is_call).await;
            assert_eq!(elsewhere.post(cancelled(1)).await.status, StatusCode::ACCEPTED);
            events.left().await;
            assert_eq!(in_time(calling).await.unwrap().text().await, "", "a request that was cancelled has no answer");
        }
    }
}

/// The session's owner is dead: of the two live replicas one takes over from it, and then one of them drains.
#[tokio::test]
async fn calls_of_a_successor_are_reached_there_while_it_drains() {
    for (leaving, goes_on_at) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let server = asking().await;
        let replicas = in_front_of(&server, false).await;
        let client = client(&replicas).await;
        all_see(&replicas, &[1, 2], None);
        let [there, elsewhere] = [1, goes_on_at].map(|at| replicas.at(at, &client));
        let mut stream = SessionMessages::of(there.post(call(1)).await);
        let question = in_time(stream.next_of(ASKED)).await;
        all_see(&replicas, &[1, 2], Some(leaving));
        assert_eq!(elsewhere.post(accepted(&question["id"])).await.status, StatusCode::ACCEPTED);
        let result = in_time(stream.next()).await.unwrap();
        assert_eq!(result["result"]["structuredContent"]["k"]["action"], "accept", "{leaving} {goes_on_at}: {result}");

        let (events, server) = holding().await;
        let replicas = in_front_of(&server, false).await;
        let client = self::client(&replicas).await;
        all_see(&replicas, &[1, 2], None);
        let [there, elsewhere] = [1, goes_on_at].map(|at| replicas.at(at, &client));
        let calling = TaskTracker::new().spawn(async move { there.post(call(1)).await });
        server.world.first(SeenRequest::is_call).await;
        all_see(&replicas, &[1, 2], Some(leaving));
        assert_eq!(elsewhere.post(cancelled(1)).await.status, StatusCode::ACCEPTED);
        events.left().await;
        in_time(calling).await.unwrap();
    }
}

/// The session has another owner by then: a replica joined that comes first for it.
#[tokio::test]
async fn a_question_is_answered_where_it_was_asked_though_its_session_moved() {
    let server = asking().await;
    let replicas = in_front_of(&server, false).await;
    for _ in 0..4 {
        let client = client(&replicas).await;
        for (before, after) in [(1, 2), (2, 1)] {
            all_see(&replicas, &[before], None);
            let mut stream = SessionMessages::of(replicas.at(before, &client).post(call(1)).await);
            let question = in_time(stream.next_of(ASKED)).await;
            all_see(&replicas, &[1, 2], None);
            let answered = replicas.at(after, &client).post(accepted(&question["id"])).await;
            assert_eq!(answered.status, StatusCode::ACCEPTED);
            let result = in_time(stream.next()).await.unwrap();
            assert_eq!(result["result"]["structuredContent"]["k"]["action"], "accept", "{before} {after}: {result}");
        }
    }
}

/// The same with the end of a call, for which nothing says where it runs.
#[tokio::test]
async fn a_call_is_cancelled_where_it_runs_though_its_session_moved() {
    for is_endpoint in [false, true] {
        for (before, cancels) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let (events, server) = holding().await;
            let replicas = in_front_of(&server, is_endpoint).await;
            let client = client(&replicas).await;
            all_see(&replicas, &[before], None);
            let there = replicas.at(before, &client);
            let calling = TaskTracker::new().spawn(async move { there.post(call(1)).await });
            server.world.first(SeenRequest::is_call).await;
            all_see(&replicas, &[1, 2], None);
            assert_eq!(replicas.at(cancels, &client).post(cancelled(1)).await.status, StatusCode::ACCEPTED);
            events.left().await;
            assert_eq!(in_time(calling).await.unwrap().text().await, "", "{is_endpoint} {before} {cancels}");
        }
    }
}

/// Each message of an array goes to its own replica: two calls run, one at the draining owner and one elsewhere.
#[tokio::test]
async fn an_array_cancels_calls_at_several_replicas() {
    for cancels in [0, 1, 2] {
        let (streams, calls): (Vec<_>, Vec<_>) = (0..2).map(|_| Once::events()).unzip();
        let taken = move || calls.iter().find_map(|one| one.take());
        let server = stateless(move |seen| if seen.is_call() { taken() } else { listed(seen) }).await;
        let replicas = in_front_of(&server, false).await;
        let client = replicas.client_of("2025-03-26").await;
        let mut calling = Vec::new();
        for id in [1, 2] {
            let there = replicas.at(1, &client);
            calling.push(TaskTracker::new().spawn(async move { there.post(call(id)).await }));
            server.world.nth(calling.len() - 1, SeenRequest::is_call).await;
            announce_end_of_the_first(&replicas);
        }
        let both = format!("[{},{}]", cancelled(1), cancelled(2));
        assert_eq!(replicas.at(cancels, &client).post(both).await.status, StatusCode::ACCEPTED);
        for (events, calling) in streams.iter().zip(calling) {
            events.left().await;
            in_time(calling).await.unwrap();
        }
    }
}

/// Its own call, which the server has in a session.
#[tokio::test]
async fn an_owner_that_drains_cancels_its_calls_though_its_successor_is_unreachable() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let mut replicas = Replicas::pair(&server).await;
    let here = replicas.client().await;
    let calling = TaskTracker::new().spawn({
        let here = here.clone();
        async move { here.post(call(1)).await }
    });
    server.world.first(SeenRequest::is_call).await;
    announce_end_of_the_first(&replicas);
    replicas.kill(1);
    assert_eq!(here.post(cancelled(1)).await.status, StatusCode::ACCEPTED);
    server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    drop(events);
    in_time(calling).await.unwrap();
}

/// The server asked its client through the owner, and gets the progress on it there, though new requests go to the successor.
#[tokio::test]
async fn progress_on_a_question_reaches_a_draining_owner_though_its_successor_is_unreachable() {
    let server = ScriptedServer::polite().await;
    let mut replicas = in_front_of(&server, false).await;
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(replicas.at(2, &client(&replicas).await));
    }
    announce_end_of_the_first(&replicas);
    replicas.kill(1);
    let params = json!({ "progressToken": "of-a-question", "progress": 1 });
    let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }).to_string();
    for client in clients {
        assert_eq!(client.post(progress.clone()).await.status, StatusCode::ACCEPTED);
    }
    server.world.nth(15, |seen| seen.rpc() == "notifications/progress").await;
}

/// LEG-09.
#[tokio::test]
async fn a_stream_that_another_began_for_a_leaving_home_is_taken_up_from_anywhere() {
    for is_endpoint in [false, true] {
        let (events, server) = holding().await;
        let replicas = in_front_of(&server, is_endpoint).await;
        let client = client(&replicas).await;
        announce_end_of_the_first(&replicas);
        let params = json!({ "name": "t", "_meta": { "progressToken": "p" } });
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
        let there = replicas.at(1, &client);
        let (mut reply, seen) = tokio::join!(there.post(request), async {
            let seen = server.world.first(SeenRequest::is_call).await;
            let params = json!({ "progressToken": seen.token(), "progress": 7 });
            events.message(&json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }));
            seen
        });
        let begun = reply.until("\n\n").await;
        let beginning = begun.lines().find_map(|line| line.strip_prefix("id: ")).unwrap();
        drop(reply);
        for at in 0..3 {
            assert_eq!(
                replicas.at(at, &client).get(Some(beginning)).await.status,
                StatusCode::OK,
                "{is_endpoint} {at}"
            );
        }
        events.result(&seen, &json!({ "content": [] }));
        let last = SessionMessages::of(replicas.at(0, &client).get(Some(beginning)).await);
        assert_eq!(in_time(last.rest()).await.last().unwrap()["id"], 1);
    }
}

/// T-31. Its tasks run at the owner, which alone knows of them.
#[tokio::test]
async fn t_31_the_end_of_a_session_waits_for_the_tasks_of_a_home_that_is_leaving() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
    let replicas = Replicas::pair(&server).await;
    let here = client(&replicas).await;
    let task = json!({ "name": "slow", "arguments": {}, "task": {} });
    let made = here.post(json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": task }).to_string());
    assert!(made.await.json().await["result"]["task"]["taskId"].is_string());
    let running = server.world.first(SeenRequest::is_call).await;
    announce_end_of_the_first(&replicas);
    assert_eq!(replicas.at(1, &here).delete().await.status, StatusCode::OK);
    let is_end = |seen: &SeenRequest| seen.method == "DELETE";
    assert_eq!(server.world.all(is_end).len(), 0, "a task still runs");
    events.result(&running, &json!({ "content": [] }));
    drop(events);
    server.world.first(is_end).await;
}
