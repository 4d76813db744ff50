//! No principal keeps others from a program, with any number of sessions.

use std::fmt::Write as _;

use serde_json::json;
use tokio_util::task::TaskTracker;

use super::client::{StandaloneClient, fault, text};
use super::gate::GatewayProcess;

const ADA: &str = "tg_ada1_0011223344556677889900aabbccddee";
const BOB: &str = "tg_bob1_a1b2c3d4e5f60718293a4b5c6d7e8f90";
const CAROL: &str = "tg_caro_c0ffee00112233445566778899aabbcc";

/// A gateway for people with keys, which runs at most so many programs.
async fn gate(processes_max: u32) -> GatewayProcess {
    let mut keys = format!("processes_max = {processes_max}\n[auth]\nmode = \"api_keys\"\n");
    for (id, key) in [("ada", ADA), ("bob", BOB), ("carol", CAROL)] {
        write!(keys, "[[auth.api_keys]]\nid = \"{id}\"\nkey = \"{key}\"\n").unwrap();
    }
    GatewayProcess::with("", &keys).await
}

fn of(gate: &GatewayProcess, key: &'static str) -> StandaloneClient {
    StandaloneClient::stateless(gate).with_key(key)
}

/// Opens a session and calls in it.
async fn first_call(client: StandaloneClient, whose: &str) -> StandaloneClient {
    let client = client.try_open().await.unwrap_or_else(|error| panic!("no session for {whose}: {error}"));
    assert_eq!(text(&client.call(1, "greet", json!({ "name": whose })).await), format!("Hello, {whose}!"));
    client
}

#[tokio::test]
async fn sessions_that_one_principal_only_listens_in_give_way_to_others() {
    let gate = gate(4).await;
    let (mut sessions, mut streams) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let session = first_call(of(&gate, ADA), "Ada").await;
        streams.push(session.listen().await);
        sessions.push(session);
    }
    let refused = of(&gate, ADA).try_open().await.unwrap_err();
    assert_eq!(fault(&refused)["reason"], "queue_full", "a quarter is for others: {refused}");
    let bob = first_call(of(&gate, BOB), "Bob").await;
    let carol = first_call(of(&gate, CAROL), "Carol").await;
    // One of Ada's streams has ended, and the others of her sessions go on.
    let mut answered = 0;
    for session in &sessions {
        answered += usize::from(session.call(2, "greet", json!({ "name": "Ada" })).await.get("result").is_some());
    }
    assert_eq!(answered, 2);
    for client in [bob, carol] {
        assert_eq!(text(&client.call(2, "greet", json!({ "name": "you" })).await), "Hello, you!");
    }
}

#[tokio::test]
async fn calls_in_progress_keep_their_programs_and_leave_one_for_other_principals() {
    let gate = gate(4).await;
    let mut asked = Vec::new();
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let session = first_call(of(&gate, ADA), "Ada").await;
        asked.push(
            session
                .ask(2, "tools/call", json!({ "name": "slow_report", "arguments": { "seconds": 4, "steps": 1 } }))
                .await,
        );
        sessions.push(session);
    }
    let bob = first_call(of(&gate, BOB), "Bob").await;
    // Only Bob's is idle, and his share is the least: she waits for another.
    let carol = TaskTracker::new().spawn(first_call(of(&gate, CAROL), "Carol"));
    for reply in &mut asked {
        let (answer, _) = reply.answer().await;
        assert!(answer.get("result").is_some(), "it was let finish: {answer}");
    }
    carol.await.unwrap();
    assert_eq!(text(&bob.call(2, "greet", json!({ "name": "Bob" })).await), "Hello, Bob!");
}

#[tokio::test]
async fn sessions_for_many_capabilities_of_one_principal_are_all_counted_as_its() {
    let gate = gate(8).await;
    for number in 0..8 {
        let ada = of(&gate, ADA).with_experimental(number);
        let answer = ada.call(1, "greet", json!({ "name": "Ada" })).await;
        match number {
            0..6 => assert_eq!(text(&answer), "Hello, Ada!", "{number}"),
            _ => assert_eq!(fault(&answer)["reason"], "queue_full", "{number}: {answer}"),
        }
    }
    let bob = of(&gate, BOB);
    assert_eq!(text(&bob.call(1, "greet", json!({ "name": "Bob" })).await), "Hello, Bob!");
    first_call(of(&gate, CAROL), "Carol").await;
}

/// With one place there is nothing to set aside: it changes hands while nothing is in progress.
#[tokio::test]
async fn the_only_program_goes_to_a_principal_without_one() {
    let gate = gate(1).await;
    let ada = first_call(of(&gate, ADA), "Ada").await;
    let _stream = ada.listen().await;
    first_call(of(&gate, BOB), "Bob").await;
}
