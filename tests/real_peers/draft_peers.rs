//! Real clients where the operator lets clients use the drafts SEP-1686 and SEP-1904.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use support::peers::WAIT_MAX;
use support::peers::gateway;
use support::peers::install;
use support::peers::process;
use support::peers::upstream;

use gateway::Gateway;
use install::Peers;
use process::Child;
use serde_json::{Value, json};
use upstream::{PeerServer, Program};

use super::session_matrix::driver::Pair;
use super::session_matrix::table::table;

/// A gateway with the drafts on, in front of one server.
async fn gateway(server: &PeerServer, what: &str) -> Gateway {
    let tasks = "[upstreams.up.tasks]\ndrafts = [\"sep-1686\", \"sep-1904\"]\npoll_interval = \"200ms\"\n";
    let upstream = format!("[upstreams.up]\nurl = \"{}\"\n{tasks}", server.url());
    Gateway::start(&format!("{what}-gateway"), &upstream, 1).await.unwrap()
}

/// A driver's report.
async fn facts(what: &str, peers: &Peers, program: &str, words: Vec<String>) -> Value {
    let mut client = Child::start(&format!("{what}-client"), peers.command(program, words)).unwrap();
    loop {
        let line = client.next_line(WAIT_MAX).await.unwrap().expect("it prints its report");
        if let Some(facts) = line.strip_prefix("facts ") {
            return serde_json::from_str(facts).unwrap();
        }
    }
}

/// A driver's command line: three tools of the server.
fn words(driver: &str, gateway: &Gateway) -> Vec<String> {
    let slow = json!({"seconds": 1, "steps": 2}).to_string();
    let ask = json!({"question": "Who?"}).to_string();
    [driver, gateway.url("up"), "slow", &slow, "fail", "{}", "ask", &ask].map(str::to_owned).into()
}

/// Checks the report of a client that chooses the ids of its tasks.
#[track_caller]
fn check_chosen(facts: &Value) {
    assert_eq!(facts["protocol"], "2025-11-25", "{facts}");
    let waited = json!({
        "running": "working", "keepAlive": 60_000, "early": -32602, "again": -32602, "text": "worked 1 s in 2 steps",
        "related": "mine 1", "same": true, "status": "completed", "listed": ["mine 1"], "deleted": -32602,
    });
    assert_eq!(facts["waited"], waited, "{facts}");
    assert_eq!(facts["cancelled"], -32602, "{facts}");
    assert_eq!(facts["failed"], json!({"isError": true, "text": "it broke", "status": "completed"}), "{facts}");
    assert_eq!(facts["asked"], json!({"text": "accept: Ada", "of": ["mine 4"]}), "{facts}");
}

/// D86-02 to D86-04, D86-06, D86-15, D86-18, D86-22: an SDK that knows nothing of the draft lets its user speak it. FIL-01,
/// FIL-04, FIL-06: and filter lists.
#[tokio::test]
async fn the_typescript_sdk_makes_calls_under_chosen_ids_and_filters_lists() {
    let what = "draft-ts1";
    let Some(peers) = Peers::find(what) else { return };
    let server = PeerServer::start(Program::FastMcp, &peers, what).await.unwrap();
    let gateway = gateway(&server, what).await;
    let facts = facts(what, &peers, "node", words("draft_ts1.mjs", &gateway)).await;
    check_chosen(&facts);
    let filtered = json!({
        "offered": ["methods", "taskIds", "status", "createdAt", "lastUpdatedAt", "order"],
        "completed": [0], "cancelled": [1], "oldest": [0, 1], "named": [1], "none": [],
    });
    assert_eq!(facts["filtered"], filtered, "{facts}");
}

/// The same ids with the other SDK, which drops notifications that it does not know.
#[tokio::test]
async fn the_python_sdk_makes_calls_under_chosen_ids() {
    let what = "draft-py1";
    let Some(peers) = Peers::find(what) else { return };
    let server = PeerServer::start(Program::FastMcp, &peers, what).await.unwrap();
    let gateway = gateway(&server, what).await;
    let facts = facts(what, &peers, "py-legacy/bin/python", words("draft_py1.py", &gateway)).await;
    check_chosen(&facts);
}

/// T-37: a client between the draft and 2025-11-25, before a server that knows no tasks.
#[tokio::test]
async fn fastmcp_2_calls_tools_as_tasks() {
    let what = "draft-fastmcp2";
    let Some(peers) = Peers::find(what) else { return };
    let server = PeerServer::start(Program::FastMcp, &peers, what).await.unwrap();
    let gateway = gateway(&server, what).await;
    let facts = facts(what, &peers, "py-fastmcp2/bin/python", words("draft_fastmcp2.py", &gateway)).await;
    assert_eq!((&facts["version"], &facts["protocol"]), (&json!("2.14.7"), &json!("2025-11-25")), "{facts}");
    let text = "worked 1 s in 2 steps";
    let slow = json!({
        "immediate": false, "polled": "working", "same_id": true, "waited": "completed", "text": text, "again": text,
    });
    assert_eq!(facts["slow"], slow, "{facts}");
    assert_eq!(facts["cancelled"]["status"], "cancelled", "{facts}");
    assert!(facts["cancelled"]["code"].is_i64(), "its result is an error: {facts}");
    assert_eq!(facts["failed"], json!({"status": "failed", "error": "it broke"}), "{facts}");
    assert_eq!(facts["asked"], json!({"text": "accept: Ada", "questions": 1}), "{facts}");
}

/// Clients of 2025-11-25 accept the same handle.
#[tokio::test]
async fn clients_of_2025_11_25_read_the_same_handles() {
    let what = "draft-handles";
    let Some(peers) = Peers::find(what) else { return };
    let server = PeerServer::start(Program::FastMcp, &peers, what).await.unwrap();
    let gateway = gateway(&server, what).await;
    let names = ["task", "task_ask", "task_cancel"];
    let cases = names.map(|case| (case, table().case("fastmcp3", Program::FastMcp.name(), case).unwrap()));
    for client in ["ts1", "py1", "fastmcp3", "fastmcp2"] {
        let driven = Pair { client, name: what, url: gateway.url("up") }.drive(&peers, &cases, None).await;
        for ((case, given), driven) in cases.iter().zip(driven) {
            let judged = driven.and_then(|facts| table().judge(client, case, given, &facts));
            assert_eq!(judged, Ok(()), "{client}: {case}");
        }
    }
}
