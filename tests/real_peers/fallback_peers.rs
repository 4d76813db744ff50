//! Real clients that know no tasks, with a timeout that is shorter than the call: held with progress, held over a
//! connection that is cut, and by the three tools in place of tasks.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use support::fault_proxy;
use support::peers::WAIT_MAX;
use support::peers::gateway;
use support::peers::install;
use support::peers::process;
use support::peers::upstream;

use fault_proxy::{Fault, FaultProxy, Verb};
use gateway::Gateway;
use install::Peers;
use process::Child;
use serde_json::{Value, json};
use upstream::{PeerServer, Program};

const EVERYTHING: &str = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
const LONG: &str = "trigger-long-running-operation";
/// The SDKs' code for a request that took too long.
const TIMED_OUT: i64 = -32001;

/// Runs a driver to its end.
async fn facts<const N: usize>(what: &str, peers: &Peers, program: &str, arguments: [&str; N]) -> Value {
    facts_of(Child::start(&format!("{what}-client"), peers.command(program, arguments)).unwrap()).await
}

/// A driver's report, after calls of any length.
async fn facts_of(mut client: Child) -> Value {
    loop {
        let line = client.next_line(WAIT_MAX).await.unwrap().expect("it prints its report");
        if let Some(facts) = line.strip_prefix("facts ") {
            return serde_json::from_str(facts).unwrap();
        }
    }
}

/// The same in front of server-everything over stdio; a call that takes 34 s, of which it says nothing until then.
async fn silent(what: &'static str, mode: &str) -> Option<Value> {
    let peers = Peers::find(what)?;
    let gateway = Gateway::start(&format!("{what}-gateway"), &everything(""), 1).await.unwrap();
    let call = json!({ "duration": 34, "steps": 1 }).to_string();
    Some(facts(what, &peers, "node", ["fallback_ts.mjs", mode, gateway.url("up"), LONG, &call, "26000"]).await)
}

/// The upstream's section: started in the folder of the peers, as its driver is.
fn everything(keys: &str) -> String {
    let folder = std::path::PathBuf::from(std::env::var_os("TASKGATE_PEERS").unwrap()).canonicalize().unwrap();
    format!(
        "[upstreams.up]\ncommand = [{:?}, {EVERYTHING:?}, \"stdio\"]\ncwd = {folder:?}\n{keys}",
        folder.join("node")
    )
}

/// GW-26: the timeout of 60 s that this client has by itself, shortened to 26 s; the signs come every 15 s, and on a
/// busy machine some seconds later.
#[tokio::test]
async fn the_typescript_client_waits_for_as_long_as_progress_resets_its_timeout() {
    let Some(facts) = silent("fallback-hold", "hold").await else { return };
    assert!(facts["text"].as_str().unwrap().starts_with("Long running operation completed"), "{facts}");
    assert!(facts["progress"].as_u64().unwrap() >= 1, "{facts}");
}

#[tokio::test]
async fn the_typescript_client_gives_up_where_progress_resets_nothing() {
    let Some(facts) = silent("fallback-impatient", "impatient").await else { return };
    assert_eq!(facts["code"], TIMED_OUT, "{facts}");
    assert!(facts["progress"].as_u64().unwrap() >= 1, "though it heard of the call: {facts}");
}

/// T-81: the server behind it knows no streams, so the client can resume the gateway's own.
#[tokio::test]
async fn the_typescript_client_resumes_a_held_call_after_a_cut_connection() {
    let what = "fallback-cut";
    let Some(peers) = Peers::find(what) else { return };
    let gateway = Gateway::start(&format!("{what}-gateway"), &everything(""), 1).await.unwrap();
    let url = gateway.url("up");
    let authority = url.split('/').nth(2).unwrap();
    let proxy = FaultProxy::start(authority.parse().unwrap()).await;
    proxy.set_times(Fault::down("tools/call", 900, Verb::Reset), 1);
    let through = url.replace(authority, &proxy.address.to_string());
    let call = json!({ "duration": 6, "steps": 12 }).to_string();
    let facts = facts(what, &peers, "node", ["fallback_ts.mjs", "hold", &through, LONG, &call, "30000"]).await;
    assert_eq!(proxy.struck(), 1, "{facts}");
    assert!(facts["text"].as_str().unwrap().starts_with("Long running operation completed"), "{facts}");
    assert!(facts["resumed"].as_u64().unwrap() >= 1, "{facts}");
    assert!(facts["progress"].as_u64().unwrap() >= 10, "nothing of it was lost: {facts}");
}

/// A tool with an output schema, which both SDKs check results against, and a timeout that the call outlives: it leaves each
/// request and each wait of five seconds time for a busy machine.
async fn by_tools(what: &'static str, program: &str, arguments: &[&str]) {
    let Some(peers) = Peers::find(what) else { return };
    let server = PeerServer::start(Program::FastMcp, &peers, what).await.unwrap();
    let tasks = "[upstreams.up.tasks]\nfallback = \"tools\"\ngrace = \"500ms\"\n";
    let upstream = format!("[upstreams.up]\nurl = \"{}\"\n{tasks}", server.url());
    let gateway = Gateway::start(&format!("{what}-gateway"), &upstream, 1).await.unwrap();
    let call = json!({ "seconds": 30, "steps": 2 }).to_string();
    let words: Vec<String> =
        arguments.iter().map(|word| word.replace("URL", gateway.url("up")).replace("CALL", &call)).collect();
    let client = Child::start(&format!("{what}-client"), peers.command(program, words)).unwrap();
    let facts = facts_of(client).await;
    assert_eq!(facts["text"], "worked 30 s in 2 steps", "{facts}");
    assert_eq!(facts["status"], "working", "{facts}");
    assert!(facts["waits"].as_u64().unwrap() >= 2, "{facts}");
    let names = facts["names"].as_array().unwrap();
    for name in ["slow", "task_status", "task_result", "task_cancel"] {
        assert!(names.contains(&json!(name)), "{facts}");
    }
}

#[tokio::test]
async fn the_typescript_client_has_a_long_call_by_tools_within_a_short_timeout() {
    by_tools("fallback-tools-ts", "node", &["fallback_ts.mjs", "tools", "URL", "slow", "CALL", "20000"]).await;
}

#[tokio::test]
async fn the_python_client_has_a_long_call_by_tools_within_a_short_timeout() {
    by_tools("fallback-tools-py", "py-legacy/bin/python", &["fallback_py.py", "URL", "slow", "CALL", "20"]).await;
}
