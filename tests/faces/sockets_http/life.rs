//! Panics, caps and the end of a listener.

use std::env;
use std::fs::File;
use std::num::NonZeroUsize;
use std::process::Command;

use taskgate::server::{DrainPlan, Drained, ListenSettings, ListenerLimits};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::harness::{PATIENCE, connect, gate, gate_with, outcome, post, settings};

fn held() -> String {
    post("", "{}").replace("/mcp", "/hold")
}

/// F64: a panic costs one answer and its connection; the next request is served.
#[tokio::test]
async fn a_panic_is_a_bare_500() {
    let gate = gate().await;
    assert_eq!(outcome(&gate, post("", "{}").replace("/mcp", "/panic").as_bytes()).await, "500∅ close");
    assert_eq!(outcome(&gate, post("", "{}").as_bytes()).await, "200");
}

/// B77: one too many is closed at once, and there is room again when a client disconnects.
#[tokio::test]
async fn connections_beyond_the_cap_are_closed_at_once() {
    let two = ListenSettings { connections_max: NonZeroUsize::new(2).unwrap(), ..settings() };
    let gate = gate_with(two, ListenerLimits::default()).await;
    let mut clients = [gate.connect().await, gate.connect().await];
    for client in &mut clients {
        client.send(post("", "{}").as_bytes()).await;
        assert_eq!(client.answer().await.unwrap().status(), "200");
    }
    assert!(gate.connect().await.ends().await);
    assert_eq!(gate.running.connections(), 2);
    drop(clients);
    gate.emptied().await;
    assert_eq!(outcome(&gate, post("", "{}").as_bytes()).await, "200");
}

/// The request in flight is answered, with `Connection: close`; an idle connection ends; new ones are refused.
#[tokio::test]
async fn a_drain_lets_requests_in_flight_finish() {
    let gate = gate().await;
    let address = gate.running.local_addr();
    let mut idle = gate.connect().await;
    idle.send(post("", "{}").as_bytes()).await;
    assert_eq!(idle.answer().await.unwrap().status(), "200");
    gate.arrivals(1).await;
    let mut busy = gate.connect().await;
    busy.send(held().as_bytes()).await;
    gate.arrivals(1).await;

    let recorder = gate.recorder;
    let plan = DrainPlan { has_substitute: true, ..DrainPlan::default() };
    let client = async {
        assert!(idle.answer().await.is_none(), "an idle connection ends first");
        recorder.released.add_permits(1);
        let answer = busy.answer().await.unwrap();
        assert_eq!((answer.status(), answer.header("connection")), ("200", Some("close")));
        assert!(busy.answer().await.is_none());
    };
    let (drained, ()) = tokio::join!(gate.running.drain(plan), client);
    assert_eq!(drained, Drained { aborted: 0 });
    assert!(TcpStream::connect(address).await.is_err(), "nothing listens any more");
}

/// F67, first phase: who comes during the notice is served, once.
#[tokio::test]
async fn a_connection_during_the_notice_gets_one_answer() {
    let gate = gate().await;
    let address = gate.running.local_addr();
    let mut early = gate.connect().await;
    early.send(post("", "{}").as_bytes()).await;
    assert_eq!(early.answer().await.unwrap().status(), "200");
    // Longer than the test: how a drain ends is not looked at here.
    let plan = DrainPlan { notice: PATIENCE, has_substitute: true, ..DrainPlan::default() };
    let drain = gate.running.drain(plan);
    let client = async {
        assert!(early.answer().await.is_none(), "the notice has begun");
        let mut late = connect(address).await;
        late.send(post("", "{}").as_bytes()).await;
        let answer = late.answer().await.unwrap();
        assert_eq!((answer.status(), answer.header("connection")), ("200", Some("close")));
    };
    tokio::select! {
        drained = drain => panic!("the notice is over: {drained:?}"),
        () = client => (),
    }
}

#[tokio::test]
async fn a_drain_cuts_off_requests_that_outlast_it() {
    let gate = gate().await;
    let mut busy = gate.connect().await;
    busy.send(held().as_bytes()).await;
    gate.arrivals(1).await;
    let plan = DrainPlan { has_substitute: true, ..DrainPlan::at_once() };
    let drained = timeout(PATIENCE, gate.running.drain(plan)).await.unwrap();
    assert_eq!(drained, Drained { aborted: 1 });
    assert!(busy.ends().await);
}

#[tokio::test]
async fn dropping_a_listener_ends_its_connections() {
    let gate = gate().await;
    let mut busy = gate.connect().await;
    busy.send(held().as_bytes()).await;
    gate.arrivals(1).await;
    drop(gate.running);
    assert!(busy.ends().await);
}

/// GW-45: a client that is refused again and again has to connect again.
#[tokio::test]
async fn refusals_without_end_cost_the_connection() {
    let gate = gate_with(settings(), ListenerLimits { glitches_max: 2, ..ListenerLimits::default() }).await;
    let mut client = gate.connect().await;
    for expected in [None, None, Some("close")] {
        client.send(b"GET /unknown HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        let answer = client.answer().await.unwrap();
        assert_eq!((answer.status(), answer.header("connection")), ("404", expected));
    }
    assert!(client.answer().await.is_none());
}

/// A handler ends with its client; work that must go on runs elsewhere.
#[tokio::test]
async fn a_request_ends_when_its_client_leaves() {
    let gate = gate().await;
    let mut leaver = gate.connect().await;
    leaver.send(held().as_bytes()).await;
    gate.arrivals(1).await;
    drop(leaver);
    gate.emptied().await;
}

/// Set in the process that has few descriptors.
const FEW_DESCRIPTORS: &str = "TASKGATE_TEST_FEW_DESCRIPTORS";

/// F60: with no descriptor left a client is refused at once, open connections go on, and later ones are served.
#[tokio::test]
async fn a_shortage_of_descriptors_passes() {
    let itself = env::current_exe().unwrap();
    if env::var_os(FEW_DESCRIPTORS).is_none() {
        // The limit is the process's, so it needs one of its own.
        let mut child = Command::new("sh");
        child.args(["-c", "ulimit -n 64 && exec \"$0\" --exact sockets_http::life::a_shortage_of_descriptors_passes"]);
        let output = child.arg(itself).env(FEW_DESCRIPTORS, "1").output().unwrap();
        let report = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && report.contains("1 passed"), "{report}");
        return;
    }
    let gate = gate().await;
    let mut early = gate.connect().await;
    early.send(post("", "{}").as_bytes()).await;
    assert_eq!(early.answer().await.unwrap().status(), "200");

    let mut fillers = Vec::new();
    while let Ok(filler) = File::open(&itself) {
        fillers.push(filler);
    }
    fillers.pop();
    assert!(gate.connect().await.ends().await, "the last descriptor is the client's own");
    early.send(post("", "{}").as_bytes()).await;
    assert_eq!(early.answer().await.unwrap().status(), "200");

    drop(fillers);
    assert_eq!(outcome(&gate, post("", "{}").as_bytes()).await, "200");
}
