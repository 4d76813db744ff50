//! A session with an unreachable owner, and one with a dead owner.

use std::net::SocketAddr;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use support::fault_proxy::{Fault, FaultProxy, Verb};
use taskgate::face::sealed::{GatewayId, IdKind};
use taskgate::replica::{Incarnation, ReplicaDirectory, ReplicaMember};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::client::{Client, call};
use super::harness::{Replicas, before, sealer};
use super::raw_replica::{Does, replica};
use super::talk::SessionMessages;
use super::upstream::{BodySender, Once, ScriptedServer, SeenRequest, answer, in_time};

const NOTE: &str = r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#;

fn fault(answer: &Value) -> (&str, &str) {
    let data = &answer["error"]["data"];
    (data["reason"].as_str().unwrap_or_default(), data["executed"].as_str().unwrap_or_default())
}

/// Requests of a session client under 200; a message without an id may be sent again. The GET waits ten seconds first.
#[tokio::test]
async fn gw_04_f85_a_home_that_cannot_be_reached_is_not_taken_for_dead() {
    let server = ScriptedServer::polite().await;
    let mut replicas = Replicas::pair(&server).await;
    let first = replicas.client().await;
    let there = replicas.at(1, &first);
    assert_eq!(there.post(call(1)).await.status, StatusCode::OK);
    replicas.kill(0);
    for _ in 0..2 {
        let reply = there.post(call(2)).await;
        assert_eq!(reply.status, StatusCode::OK);
        let answer = reply.json().await;
        assert_eq!((&answer["id"], fault(&answer)), (&json!(2), ("replica_unavailable", "no")), "{answer}");
        assert_eq!(answer["error"]["data"]["retryAfterMs"], 1_000);
    }
    let without_id = [there.post(NOTE).await, there.get(None).await, there.delete().await];
    for reply in without_id {
        assert_eq!((reply.status, reply.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, Some("1")));
        assert!(reply.text().await.contains("replica_unavailable"));
    }
    assert_eq!(server.world.count("tools/call"), 1, "nothing was sent");
    assert_eq!(server.world.count("initialize"), 1, "the session was not taken over");
}

/// A client that gets two refusals opens no stream any more, and would hear nothing for the rest of its session.
#[tokio::test]
async fn f85_a_get_waits_for_the_successor_of_an_owner_that_cannot_be_reached() {
    let server = ScriptedServer::start(|seen| (seen.method == "GET").then(BodySender::silent)).await;
    let replicas = Replicas::pair(&server).await;
    let there = replicas.at(1, &replicas.client().await);
    let (resetting, mut read) = replica(&[Does::ReadAndReset; 32]).await;
    replicas.all[1].sees(vec![replicas.all[0].member_at(resetting.address)]);
    let getting = TaskTracker::new().spawn(async move { there.get(None).await });
    in_time(read.recv()).await;
    replicas.all[1].sees(vec![replicas.all[1].member()]);
    let reply = in_time(getting).await.unwrap();
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, Some("text/event-stream")));
}

/// The id of a task that a client of a session makes.
async fn made_task(client: &Client) -> String {
    let task = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"slow","arguments":{},"task":{}}}"#;
    let made = client.post(task).await.json().await;
    made["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
}

/// The answer to a request about a task.
async fn asked(client: Client, method: &'static str, id: String) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 2, "method": method, "params": {"taskId": id}});
    client.post(body.to_string()).await.json().await
}

/// F85. A task's state is in the store, with any owner of the session.
#[tokio::test]
async fn tasks_of_a_session_are_told_while_its_home_cannot_be_reached() {
    let server = ScriptedServer::polite().await;
    let mut replicas = Replicas::pair(&server).await;
    let first = replicas.client().await;
    let id = made_task(&first).await;
    let ask = |client: Client, method| asked(client, method, id.clone());
    let result = ask(first.clone(), "tasks/result").await;
    let there = replicas.at(1, &first);
    replicas.kill(0);
    assert_eq!(ask(there.clone(), "tasks/get").await["result"]["status"], "completed");
    assert_eq!(ask(there.clone(), "tasks/result").await["result"], result["result"]);
    let unknown = ask(there.clone(), "tasks/update").await;
    assert_eq!(fault(&unknown), ("replica_unavailable", "no"), "{unknown}");
}

/// F85. A poll changes nothing, so it is done here after it failed at the owner; a cancel may have been carried out there.
#[tokio::test]
async fn tasks_of_a_session_are_told_where_its_home_was_lost_while_it_was_asked() {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::pair(&server).await;
    let first = replicas.client().await;
    let id = made_task(&first).await;
    let ask = |client: Client, method| asked(client, method, id.clone());
    let result = ask(first.clone(), "tasks/result").await;
    let (resetting, _read) = replica(&[Does::ReadAndReset; 4]).await;
    replicas.all[1].sees(vec![replicas.all[0].member_at(resetting.address)]);
    let there = replicas.at(1, &first);
    assert_eq!(ask(there.clone(), "tasks/get").await["result"]["status"], "completed");
    assert_eq!(ask(there.clone(), "tasks/result").await["result"], result["result"]);
    assert_eq!(ask(there.clone(), "tasks/list").await["result"]["tasks"][0]["taskId"], id);
    let cancelled = ask(there, "tasks/cancel").await;
    assert_eq!(fault(&cancelled), ("replica_unavailable", "unknown"), "{cancelled}");
}

/// The sender of a message without an id gets an error too, and is not asked to retry.
#[tokio::test]
async fn a_notification_whose_home_was_lost_may_have_been_taken() {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::pair(&server).await;
    let there = replicas.at(1, &replicas.client().await);
    let (resetting, _read) = replica(&[Does::ReadAndReset]).await;
    replicas.all[1].sees(vec![replicas.all[0].member_at(resetting.address)]);
    let reply = there.post(NOTE).await;
    assert_eq!((reply.status, reply.header("retry-after")), (StatusCode::ACCEPTED, None));
}

#[tokio::test]
async fn an_array_without_requests_whose_home_was_lost_may_have_been_taken() {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::pair(&server).await;
    let there = replicas.at(1, &replicas.client_of("2025-03-26").await);
    let (resetting, _read) = replica(&[Does::ReadAndReset; 3]).await;
    replicas.all[1].sees(vec![replicas.all[0].member_at(resetting.address)]);
    let reply = there.post(format!("[{NOTE},{NOTE}]")).await;
    assert_eq!((reply.status, reply.header("retry-after")), (StatusCode::ACCEPTED, None));
    assert_eq!(reply.text().await, "");
    let answer = there.post(format!("[{NOTE},{}]", call(1))).await.json().await;
    assert_eq!((&answer[0]["id"], fault(&answer[0])), (&json!(1), ("replica_unavailable", "unknown")), "{answer}");
}

/// A task that has asked its client, and the id of the question.
async fn asked_by_task(client: &Client) -> (String, Value) {
    let id = made_task(client).await;
    let body = json!({"jsonrpc": "2.0", "id": 3, "method": "tasks/result", "params": {"taskId": id}});
    let mut stream = SessionMessages::of(client.post(body.to_string()).await);
    let question = in_time(stream.next_of("elicitation/create")).await;
    (id, question["id"].clone())
}

/// EXT-39. A task's questions are in the store, and so are the answers, at any replica and any number of times.
#[tokio::test]
async fn answers_to_tasks_are_taken_while_the_sessions_home_cannot_be_reached_and_where_it_was_lost() {
    let endpoint = "[[endpoints]]\npath = \"/mcp\"\nupstreams = [\"up\"]\nprefix = \"auto\"\n";
    for (is_endpoint, is_lost) in [(false, false), (false, true), (true, false), (true, true)] {
        let (events, stream) = Once::events();
        let server = ScriptedServer::start(move |seen| {
            let tool = json!({ "name": "slow", "inputSchema": { "type": "object" } });
            match seen.rpc() {
                "tools/list" => Some(answer(seen, &json!({ "tools": [tool] }))),
                _ => seen.is_call().then(|| stream.take()).flatten(),
            }
        })
        .await;
        events.message(&json!({ "jsonrpc": "2.0", "id": 0, "method": "elicitation/create", "params":
            { "message": "?", "requestedSchema": { "type": "object", "properties": {} } } }));
        let at_an_endpoint = || format!("[upstreams.up]\nurl = \"{}\"\n{endpoint}", server.url());
        let served = if is_endpoint { at_an_endpoint() } else { before(&server) };
        let mut replicas = Replicas::serving(2, &served, &[]).await;
        let here = replicas.client().await;
        let (task, question) = asked_by_task(&here).await;
        let there = replicas.at(1, &here);
        let _resetting = match is_lost {
            true => {
                let resetting = replica(&[Does::ReadAndReset; 8]).await;
                replicas.all[1].sees(vec![replicas.all[0].member_at(resetting.0.address)]);
                Some(resetting)
            }
            false => {
                replicas.kill(0);
                None
            }
        };
        let said = json!({ "jsonrpc": "2.0", "id": question, "result": { "action": "accept", "content": {} } });
        for _ in 0..2 {
            assert_eq!(there.post(said.to_string()).await.status, StatusCode::ACCEPTED, "{is_endpoint} {is_lost}");
            let told = asked(there.clone(), "tasks/get", task.clone()).await;
            assert_eq!(told["result"]["status"], "working", "{is_endpoint} {is_lost}: {told}");
        }
    }
}

/// F85. As after a restart: the session at the server is the same, and the state in memory is gone.
#[tokio::test]
async fn when_a_home_is_dead_the_living_agree_on_another_and_the_session_goes_on() {
    let server = ScriptedServer::polite().await;
    let mut replicas = Replicas::serving(4, &before(&server), &[]).await;
    let mut sessions = Vec::new();
    for _ in 0..8 {
        sessions.push(replicas.client().await);
    }
    replicas.kill(0);
    replicas.share_members();
    for client in &sessions {
        for at in 0..3 {
            assert_eq!(replicas.at(at, client).post(call(3)).await.json().await["result"]["n"], 3);
        }
    }
    assert_eq!(server.world.count("initialize"), sessions.len());
    // The end of a session holds at all replicas, so one replica alone gets it.
    for (at, client) in sessions.iter().enumerate() {
        assert_eq!(replicas.at(at % 3, client).delete().await.status, StatusCode::OK);
        for at in 0..3 {
            assert_eq!(replicas.at(at, client).post(call(4)).await.status, StatusCode::NOT_FOUND);
        }
    }
}

/// It may have run, and is not sent again.
#[tokio::test]
async fn f86_a_call_whose_home_ends_before_it_answers_may_have_run() {
    let server = ScriptedServer::holding_calls().await;
    let mut replicas = Replicas::pair(&server).await;
    let there = replicas.at(1, &replicas.client().await);
    let calling = TaskTracker::new().spawn(async move { there.post(call(1)).await });
    server.world.first(SeenRequest::is_call).await;
    replicas.kill(0);
    let reply = calling.await.unwrap();
    let status = reply.status;
    let answer = reply.json().await;
    assert_eq!((status, fault(&answer)), (StatusCode::OK, ("replica_unavailable", "unknown")), "{answer}");
    assert_eq!(server.world.count("tools/call"), 1);
}

/// F92. Its client, which is connected to another replica, gets an error; with an event's id it may resume instead.
#[tokio::test]
async fn f92_a_stream_that_has_begun_ends_with_an_error_when_its_owner_ends() {
    for (id, answer, expected) in [("", false, Some(1)), ("", true, Some(0)), ("id: 7\n", false, None)] {
        let (events, stream) = Once::events();
        let server = ScriptedServer::start(move |seen| seen.is_call().then(|| stream.take()).flatten()).await;
        let mut replicas = Replicas::pair(&server).await;
        let there = replicas.at(1, &replicas.client().await);
        events.raw(format!("{id}data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}}\n\n"));
        let mut reply = there.post(call(1)).await;
        reply.until("\n\n").await;
        if answer {
            events.message(&json!({"jsonrpc": "2.0", "id": 1, "result": {}}));
            reply.until("\n\n").await;
        }
        replicas.kill(0);
        let rest = reply.try_text().await;
        let told = rest.as_ref().map(|rest| rest.matches("replica_unavailable").count());
        assert_eq!(told, expected, "{id:?} {answer}: {rest:?}");
        if expected == Some(1) {
            let rest = rest.unwrap();
            let message = rest.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
            let message: Value = serde_json::from_str(message).unwrap();
            assert_eq!((&message["id"], fault(&message)), (&json!(1), ("replica_unavailable", "unknown")), "{rest}");
        }
        assert_eq!(server.world.count("tools/call"), 1);
    }
}

/// F92. Each request of an array has a response, once its owner has ended.
#[tokio::test]
async fn f92_an_array_whose_owner_ends_is_completed_with_an_error_for_each_request_without_a_response() {
    for accept in ["application/json, text/event-stream", "text/event-stream"] {
        let server = ScriptedServer::slow(|seen, _| async move {
            if seen.is_call() && seen.body["id"] != 1 {
                std::future::pending::<()>().await;
            }
            None
        })
        .await;
        let mut replicas = Replicas::pair(&server).await;
        let here = replicas.client_of("2025-03-26").await;
        let there = Client { accept, ..replicas.at(1, &here) };
        let mut reply = there.post(format!("[{},{},{}]", call(1), call(2), call(3))).await;
        let first = reply.until(if accept == "text/event-stream" { "}}\n\n" } else { "}}" }).await;
        server.world.nth(2, SeenRequest::is_call).await;
        replicas.kill(0);
        let rest = reply.try_text().await.unwrap();
        let whole = format!("{first}{rest}");
        let answers: Vec<Value> = match accept {
            "text/event-stream" => whole
                .lines()
                .filter_map(|line| line.strip_prefix("data: "))
                .map(|data| serde_json::from_str(data).unwrap())
                .collect(),
            _ => serde_json::from_str(&whole).unwrap_or_else(|error| panic!("{error}: {whole}")),
        };
        let mut ids: Vec<_> = answers.iter().map(|answer| answer["id"].as_i64().unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3], "{whole}");
        assert_eq!(answers[0]["result"]["n"], 1, "{whole}");
        for answer in &answers[1..] {
            assert_eq!(fault(answer), ("replica_unavailable", "unknown"), "{whole}");
        }
        assert_eq!(server.world.count("tools/call"), 3);
    }
}

/// The others may see a second later that an owner drains; a request that they forward meanwhile begins nothing.
#[tokio::test]
async fn a_call_that_is_passed_on_to_a_home_that_drains_is_refused_there() {
    let server = ScriptedServer::holding_calls().await;
    let mut replicas = Replicas::pair(&server).await;
    let here = replicas.client().await;
    let there = replicas.at(1, &here);
    let tracker = TaskTracker::new();
    // As long as it is in progress the drain lasts.
    let held = tracker.spawn(async move { here.post(call(1)).await });
    server.world.first(SeenRequest::is_call).await;
    let home = replicas.all.remove(0);
    let draining = tracker.spawn(home.gateway.drain(Some(Duration::ZERO)));
    // A call that still begins is held, and so has no answer within that time.
    let refused = in_time(async {
        loop {
            if let Ok(reply) = tokio::time::timeout(Duration::from_secs(2), there.post(call(2))).await {
                return reply.json().await;
            }
        }
    })
    .await;
    assert_eq!(fault(&refused), ("draining", "no"), "{refused}");
    draining.abort();
    held.abort();
}

/// F86. A process is stopped, or a machine fails without a message: before a replica reached it, and afterwards.
#[tokio::test]
async fn a_home_that_takes_requests_and_says_nothing_is_noticed_within_seconds() {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::pair_with_real_timeout(&server).await;
    let there = replicas.at(1, &replicas.client().await);
    let [home, other] = [0, 1].map(|at| replicas.all[at].member());
    let line = FaultProxy::start(home.peer.address).await;
    // The system accepts its connections, and no process reads them.
    let mute = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    for (address, expected) in [(mute.local_addr().unwrap(), "no"), (line.address, "unknown")] {
        replicas.all[1].sees(vec![replicas.all[0].member_at(address), other.clone()]);
        if expected == "unknown" {
            // It is reached, on a busy machine after a few attempts.
            in_time(async { while there.post(call(1)).await.json().await["result"]["n"] != 1 {} }).await;
            line.set(Some(Fault::down("", 0, Verb::Hold)));
        }
        let began = Instant::now();
        let answer = there.post(call(2)).await.json().await;
        assert_eq!(fault(&answer), ("replica_unavailable", expected), "{answer}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}

/// Another server has its address by now.
#[tokio::test]
async fn answers_of_a_server_that_is_no_replica_are_ignored() {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::pair(&server).await;
    let there = replicas.at(1, &replicas.client().await);
    // The scripted server speaks HTTP/2, and answers any request.
    let stranger = replicas.all[0].member_at(server.address);
    replicas.all[1].sees(vec![stranger, replicas.all[1].member()]);
    let answer = there.post(call(1)).await.json().await;
    assert_eq!(fault(&answer), ("replica_unavailable", "no"), "{answer}");
}

/// One hop: a request that was forwarded by mistake is answered, and goes nowhere else.
#[tokio::test]
async fn a_forwarded_request_is_answered_by_the_replica_that_receives_it() {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::serving(3, &before(&server), &[]).await;
    let first = replicas.client().await;
    let [second, third] = [1, 2].map(|at| replicas.all[at].member());
    // To the second one the owner is dead and all sessions are the third's, and to the third all are the second's.
    replicas.all[1].sees(vec![third.clone()]);
    replicas.all[2].sees(vec![second.clone()]);
    for at in [1, 2] {
        assert_eq!(replicas.at(at, &first).post(call(5)).await.json().await["result"]["n"], 5);
    }
    assert_eq!(server.world.count("tools/call"), 2);
}

/// A replica that drains takes no new requests, but the rest of those that it has begun.
#[tokio::test]
async fn an_answer_reaches_a_home_that_is_leaving_and_new_calls_do_not() {
    let (events, stream) = Once::events();
    let server = ScriptedServer::start(move |seen| {
        (seen.body["params"]["arguments"]["n"] == 1).then(|| stream.take()).flatten()
    })
    .await;
    let replicas = Replicas::pair(&server).await;
    let there = replicas.at(1, &replicas.client().await);
    events.raw("data: {\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"elicitation/create\",\"params\":{}}\n\n");
    let mut reply = there.post(call(1)).await;
    reply.until("\n\n").await;
    let [home, other] = [0, 1].map(|at| replicas.all[at].member());
    let made_there =
        sealer().seal(&GatewayId::in_memory(IdKind::EventStream, Some(home.peer.incarnation), 7), None, &[]).unwrap()
            + ".1";
    let gone_soon = ReplicaMember { is_leaving: true, ..home };
    replicas.all[1].sees(vec![gone_soon, other]);
    // An answer does not say which replica asked: both forward it, the owner and its successor.
    let answered = there.post(r#"{"jsonrpc":"2.0","id":0,"result":{"action":"decline"}}"#).await;
    assert_eq!(answered.status, StatusCode::ACCEPTED);
    server.world.nth(1, |seen| seen.body["result"]["action"] == "decline").await;
    let owners = replicas.all[0].gateway.session_owners().unwrap();
    owners.replace(ReplicaDirectory::alone(Incarnation(999)));
    // Neither begins anything: the rest of a call's stream, if the owner made that, and the end.
    for rest in [there.get(Some(&made_there)).await, there.delete().await] {
        assert_eq!(
            rest.status,
            StatusCode::SERVICE_UNAVAILABLE,
            "it was sent to the home, which has another name by now"
        );
    }
    assert_eq!(there.post(NOTE).await.status, StatusCode::ACCEPTED, "for the session that is gone on with");
    let nobodys = sealer().seal(&GatewayId::in_memory(IdKind::EventStream, None, 7), None, &[]).unwrap() + ".1";
    for last_event in [None, Some("x"), Some("7-1"), Some(nobodys.as_str())] {
        assert_ne!(there.get(last_event).await.status, StatusCode::SERVICE_UNAVAILABLE, "{last_event:?}");
    }
    let resumed = server.world.all(|seen| seen.method == "GET" && seen.header("last-event-id").is_some());
    assert_eq!(resumed.len(), 3, "the server's stream is resumed at the owner, through any replica");
    assert_eq!(there.post(call(2)).await.json().await["result"]["n"], 2, "and this was not");
    drop(events);
}
