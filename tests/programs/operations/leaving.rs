//! Clients that send a request about a task and disconnect before the answer: the request is carried out, and the
//! server gets its part of it (L5, L6).

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::program::{Call, Folder, Program, Worker, block};
use super::upstream::{SeenRequest, in_time};

const TIMES: usize = 40;
/// How often a client repeats a request with an unknown result at most.
const TRIES_MAX: usize = 200;

async fn started() -> (Worker, Folder, Program) {
    let worker = Worker::start().await;
    let folder = Folder::on_disk();
    folder.write(&format!("{}in_flight_max = {TIMES}\n", block("up", &worker.server)));
    let program = Program::serve(&folder).await;
    (worker, folder, program)
}

fn asking() -> Value {
    json!({"elicitation": {"form": {}}, "extensions": {"io.modelcontextprotocol/tasks": {}}})
}

async fn about(program: &Program, method: &str, params: &Value) -> Value {
    Call::declaring(method, params, &asking()).send(program.clients, "/up/mcp").await.json()["result"].take()
}

async fn tasks(worker: &Worker, program: &Program) -> Vec<String> {
    let mut ids = Vec::new();
    for n in 0..TIMES {
        let params = json!({"name": "work", "arguments": {"n": n}});
        let mut call = Call::declaring("tools/call", &params, &asking());
        call.headers.push(("idempotency-key", n.to_string()));
        let handle = call.send(program.clients, "/up/mcp").await.json();
        ids.push(handle["result"]["taskId"].as_str().unwrap_or_else(|| panic!("no handle: {handle}")).to_owned());
    }
    worker.calls(TIMES).await;
    ids
}

/// Sends a request and closes the connection at once, with FIN or with RST.
async fn leave(address: std::net::SocketAddr, request: &[u8], by_reset: bool) {
    let mut socket = in_time(TcpStream::connect(address)).await.unwrap();
    socket.write_all(request).await.unwrap();
    if by_reset {
        socket.set_zero_linger().unwrap();
    }
}

/// Has each task's client send a request and leave, again and again until a status shows it.
async fn send_and_leave(program: &Program, ids: &[String], call: impl Fn(&str) -> Call, shows: &[&str]) {
    for (n, id) in ids.iter().enumerate() {
        let request = call(id).bytes("/up/mcp");
        for tried in 0.. {
            assert!(tried < TRIES_MAX, "a request about {id} never arrived");
            leave(program.clients, &request, n % 2 == 1).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            let status = about(program, "tasks/get", &json!({"taskId": id})).await["status"].take();
            if shows.contains(&status.as_str().unwrap_or_default()) {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_cancel_reaches_the_server_though_its_client_is_gone() {
    let (worker, _folder, program) = started().await;
    let ids = tasks(&worker, &program).await;
    let cancel = |id: &str| Call::declaring("tasks/cancel", &json!({"taskId": id}), &asking());
    send_and_leave(&program, &ids, cancel, &["cancelled"]).await;
    worker.server.world.nth(TIMES - 1, |seen| seen.rpc() == "notifications/cancelled").await;
    // Places are free again: as many calls as may run do.
    tasks_again(&worker, &program).await;
}

/// New calls run at once, as nothing of the old ones is left.
async fn tasks_again(worker: &Worker, program: &Program) {
    for n in 0..TIMES {
        program.task("/up/mcp", &format!("again-{n}")).await;
    }
    worker.calls(2 * TIMES).await;
}

#[tokio::test]
async fn an_answer_reaches_the_server_though_its_client_is_gone() {
    let (worker, _folder, program) = started().await;
    let ids = tasks(&worker, &program).await;
    worker.ask_all(&json!({"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}));
    in_time(async {
        for id in &ids {
            while about(&program, "tasks/get", &json!({"taskId": id})).await["status"] != "input_required" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    })
    .await;
    let shown = about(&program, "tasks/get", &json!({"taskId": ids[0]})).await;
    let key = shown["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
    let accepts = json!({"action": "accept", "content": {}});
    let update = |id: &str| {
        Call::declaring("tasks/update", &json!({"taskId": id, "inputResponses": {&key: accepts}}), &asking())
    };
    send_and_leave(&program, &ids, update, &["working"]).await;
    let is_answer = |seen: &SeenRequest| seen.body.get("method").is_none() && seen.body["result"]["action"] == "accept";
    worker.server.world.nth(TIMES - 1, is_answer).await;
    assert_eq!(worker.server.world.all(is_answer).len(), TIMES, "each once");
    worker.answer_all();
    for id in &ids {
        program.until("/up/mcp", &Value::from(id.as_str()), "completed").await;
    }
}
