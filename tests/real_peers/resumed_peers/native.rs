//! Servers that make tasks of their own: calls are resumed by the server's id of the task.

use serde_json::{Value, json};

use super::caller::Caller;
use super::install::Peers;
use super::life::{End, Gateway};
use super::peer::{PeerServer, Program};

const RESEARCH: &str = "simulate-research-query";

async fn server_everything_completes(how: End, test: &'static str) {
    let Some(peers) = Peers::find("a gateway that ends in the middle of a server's own tasks") else { return };
    let server = PeerServer::start(Program::Everything, &peers, test).await.unwrap();
    let mut gateway = Gateway::start(test, &server.url(), "").await;
    let mut callers = Caller::both(gateway.address).await;
    let mut asking = Vec::new();
    for caller in &callers {
        let id = caller.start(RESEARCH, &json!({"topic": "python", "ambiguous": true})).await;
        let question = caller.question(&id).await;
        asking.push((id, question));
    }
    let mut plain = Vec::new();
    for caller in &callers {
        plain.push(caller.start(RESEARCH, &json!({"topic": "tea"})).await);
    }
    gateway.keeps(asking.len() + plain.len()).await;

    gateway.end(how).await;
    gateway.start_again().await;
    for ((caller, (id, seen)), plain) in callers.iter_mut().zip(&asking).zip(&plain) {
        caller.moves(gateway.address);
        caller.answer_as_seen(id, seen, &json!({"interpretation": "snake"})).await;
        let text = caller.text(id).await;
        assert!(text.contains("Research Report: python (snake)"), "{text}");
        let text = caller.text(plain).await;
        assert!(text.contains("Research Report: tea"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upc_13_a_killed_gateway_finds_the_tasks_of_server_everything_again() {
    server_everything_completes(End::Killed, "everything-killed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upc_13_a_drained_gateway_leaves_the_tasks_of_server_everything_to_the_next() {
    server_everything_completes(End::InOrder, "everything-drained").await;
}

/// How often the example says that a tool was called.
fn calls_of(test: &str) -> usize {
    let log = super::process::log_file(&format!("{test}-upstream-{}", Program::TypeScriptTasks.name())).unwrap();
    std::fs::read_to_string(log).unwrap().matches("confirm_delete called, task created").count()
}

async fn the_example_is_called_once(how: End, test: &'static str) {
    let Some(peers) = Peers::find("a gateway that ends in the middle of a question in a server's own task") else {
        return;
    };
    let server = PeerServer::start(Program::TypeScriptTasks, &peers, test).await.unwrap();
    let mut gateway = Gateway::start(test, &server.url(), "").await;
    let mut callers = Caller::both(gateway.address).await;
    let mut asking = Vec::new();
    for caller in &callers {
        let id: Value = caller.start("confirm_delete", &json!({"filename": caller.name()})).await;
        let question = caller.question(&id).await;
        asking.push((id, question));
    }
    gateway.keeps(asking.len()).await;

    gateway.end(how).await;
    gateway.start_again().await;
    for (caller, (id, seen)) in callers.iter_mut().zip(&asking) {
        caller.moves(gateway.address);
        caller.answer_as_seen(id, seen, &json!({"confirm": true})).await;
        assert_eq!(caller.text(id).await, format!("Deleted '{}'", caller.name()));
    }
    assert_eq!(calls_of(test), asking.len(), "each call was made once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upc_13_a_killed_gateway_goes_on_with_the_tasks_of_the_typescript_sdks_example() {
    the_example_is_called_once(End::Killed, "ts-tasks-killed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upc_13_a_drained_gateway_leaves_the_tasks_of_the_typescript_sdks_example_to_the_next() {
    the_example_is_called_once(End::InOrder, "ts-tasks-drained").await;
}
