//! Real servers with tasks of their own in the words of 2025-11-25, driven as exchanges, questions included.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so. The matrix drives such servers through the whole gateway.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use support::peers::install;
use support::peers::upstream;

use std::sync::Arc;
use std::time::Duration;

use install::Peers;
use serde_json::{Value, json};
use support::peers::in_time;
use taskgate::task::Principal;
use taskgate::upstream::TaskScope;
use taskgate::upstream::http::{HttpUpstreamSettings, SessionUpstream};
use taskgate::upstream::{
    Answer, CallContext, Exchange, ExchangeEvent, Timeouts, Upstream, UpstreamRequest, UpstreamTaskMode,
};
use taskgate::wire::{Payload, RpcError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use upstream::{PeerServer, Program};

fn connect(server: &PeerServer) -> SessionUpstream {
    let settings = HttpUpstreamSettings::new(Arc::from(server.program.name()), server.url().parse().unwrap());
    SessionUpstream::new(settings, TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() }).unwrap()
}

fn context() -> CallContext {
    let capabilities = Payload::of(&json!({"elicitation": {}, "sampling": {}}));
    CallContext {
        progress: true,
        native_task: UpstreamTaskMode::WhereServed { deadline: Duration::from_secs(300) },
        ..CallContext::new(Principal::local(), capabilities, Timeouts::default(), 1 << 20)
    }
}

async fn begin(upstream: &SessionUpstream, tool: &str, arguments: &Value) -> Box<dyn Exchange> {
    let params = Payload::of(&json!({"name": tool, "arguments": arguments}));
    let request = UpstreamRequest { method: Arc::from("tools/call"), params: Some(params) };
    in_time(upstream.begin(request, context())).await.unwrap()
}

/// The course of a call: its questions, its status messages, the text of its result.
#[derive(Debug, Default)]
struct Course {
    questions: Vec<String>,
    words: Vec<String>,
    text: String,
}

/// Follows a call to its end and answers all its questions like this.
async fn follow(exchange: &mut Box<dyn Exchange>, answer: &Answer) -> Course {
    let mut course = Course::default();
    loop {
        match in_time(exchange.next()).await {
            ExchangeEvent::Asked { ask, method, params } => {
                assert!(!params.unwrap().as_str().contains("related-task"), "T-67");
                course.questions.push(method.to_string());
                in_time(exchange.answer(&ask, answer.clone())).await.unwrap();
            }
            ExchangeEvent::Status(words) => course.words.push(words.to_string()),
            ExchangeEvent::Progress(_)
            | ExchangeEvent::Task(_)
            | ExchangeEvent::Subtasks(_)
            | ExchangeEvent::Notification(_)
            | ExchangeEvent::Withdrawn { .. } => (),
            ExchangeEvent::Returned(result) => {
                let result: Value = result.read().unwrap();
                course.text = result["content"][0]["text"].as_str().unwrap_or_default().to_owned();
                return course;
            }
            end @ (ExchangeEvent::Faulted(_) | ExchangeEvent::Cancelled | ExchangeEvent::Lost(_)) => {
                panic!("no result but {end:?} after {course:?}")
            }
        }
    }
}

/// Starts a server and makes one call with questions; checks them, and that its result holds `expected`.
async fn check(program: Program, call: (&str, Value), answer: Answer, expected: (&[&str], &str)) {
    let Some(peers) = Peers::find("real servers with tasks of their own") else { return };
    let server = PeerServer::start(program, &peers, "native").await.unwrap();
    let upstream = connect(&server);
    let mut exchange = begin(&upstream, call.0, &call.1).await;
    let course = follow(&mut exchange, &answer).await;
    assert_eq!(course.questions, expected.0, "{program:?} {}: {course:?}", call.0);
    assert!(course.text.contains(expected.1), "{program:?} {}: {course:?}", call.0);
    in_time(upstream.close()).await;
}

fn result(value: &Value) -> Answer {
    Answer::Result(Payload::of(value))
}

const ELICIT: &str = "elicitation/create";

#[tokio::test]
async fn upc_07_server_everything_asks_on_the_stream_of_tasks_result() {
    let call = ("simulate-research-query", json!({"topic": "python", "ambiguous": true}));
    let snake = result(&json!({"action": "accept", "content": {"interpretation": "snake"}}));
    check(Program::Everything, call, snake, (&[ELICIT], "Research Report: python (snake)")).await;
}

#[tokio::test]
async fn server_everything_goes_on_where_a_question_is_refused() {
    let call = ("simulate-research-query", json!({"topic": "python", "ambiguous": true}));
    let refused = Answer::Error(RpcError::new(-32_602, "not now"));
    check(Program::Everything, call, refused, (&[ELICIT], "default - elicitation unavailable")).await;
}

#[tokio::test]
async fn server_everything_says_how_far_it_is() {
    let Some(peers) = Peers::find("real servers with tasks of their own") else { return };
    let server = PeerServer::start(Program::Everything, &peers, "native-words").await.unwrap();
    let upstream = connect(&server);
    let mut exchange = begin(&upstream, "simulate-research-query", &json!({"topic": "tea"})).await;
    let course = follow(&mut exchange, &result(&json!({}))).await;
    assert!(course.words.len() >= 3, "{course:?}");
    assert!(course.text.contains("Research Report: tea"), "{course:?}");
}

#[tokio::test]
async fn the_typescript_sdks_example_asks_for_input_and_for_words() {
    let yes = result(&json!({"action": "accept", "content": {"confirm": true}}));
    let call = ("confirm_delete", json!({"filename": "a.txt"}));
    check(Program::TypeScriptTasks, call, yes, (&[ELICIT], "Deleted 'a.txt'")).await;
    let poem = json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": "old pond"}});
    let call = ("write_haiku", json!({"topic": "frogs"}));
    check(Program::TypeScriptTasks, call, result(&poem), (&["sampling/createMessage"], "old pond")).await;
}

#[tokio::test]
async fn t_20_fastmcp_asks_on_the_sessions_stream_without_naming_its_task() {
    let ada = result(&json!({"action": "accept", "content": {"value": "Ada"}}));
    check(Program::FastMcpTasks, ("ask", json!({"question": "who?"})), ada, (&[ELICIT], "accept: Ada")).await;
}

#[tokio::test]
async fn upc_13_a_task_of_a_real_server_is_taken_up_in_another_life() {
    for (program, tool, arguments, text) in [
        (Program::FastMcpTasks, "only_as_task", json!({"seconds": 3}), "worked 3 s as a task"),
        (Program::Everything, "simulate-research-query", json!({"topic": "tea"}), "Research Report: tea"),
    ] {
        let Some(peers) = Peers::find("real servers with tasks of their own") else { return };
        let server = PeerServer::start(program, &peers, "native-resume").await.unwrap();
        let first_life = connect(&server);
        let mut exchange = begin(&first_life, tool, &arguments).await;
        let token = in_time(async {
            loop {
                if let Some(token) = exchange.resume_token() {
                    return token;
                }
                // Events and the handle come in any order.
                let _ = tokio::time::timeout(Duration::from_millis(50), exchange.next()).await;
            }
        })
        .await;
        drop(exchange);
        in_time(first_life.close()).await;
        drop(first_life);
        let second_life = connect(&server);
        let mut resumed = in_time(second_life.resume(token, context())).await.unwrap();
        let course = follow(&mut resumed, &result(&json!({}))).await;
        assert!(course.text.contains(text), "{program:?}: {course:?}");
    }
}
