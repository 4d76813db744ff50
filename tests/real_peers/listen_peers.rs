//! Real clients that subscribe through the gateway: those of 2026-07-28 at a real session server and at one of their
//! own era, and one with a session at the latter.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use support::peers::gateway;
use support::peers::install;
use support::peers::process;
use support::peers::upstream;

use gateway::Gateway;
use install::Peers;
use process::Child;
use serde_json::{Value, json};
use upstream::{PeerServer, Program};

/// A resource of server-everything, and the tool that makes it tell of updates.
const RESOURCE: &str = "demo://resource/dynamic/text/1";
const TOOL: &str = "toggle-subscriber-updates";

/// MOD-24, MOD-25, T-52, GW-27: granted, notified, and ended in order when the gateway shuts down.
async fn check(what: &'static str, program: &str, script: &str) {
    let Some(peers) = Peers::find(what) else { return };
    let server = PeerServer::start(Program::Everything, &peers, what).await.unwrap();
    let upstream = format!("[upstreams.everything]\nurl = \"{}\"\n", server.url());
    let gateway = Gateway::start(&format!("{what}-gateway"), &upstream, 1).await.unwrap();
    let command = peers.command(program, [script, gateway.url("everything"), RESOURCE, TOOL]);
    let mut client = Child::start(&format!("{what}-client"), command).unwrap();
    let granted: Value = serde_json::from_str(&client.line("granted ").await.unwrap()).unwrap();
    assert_eq!(granted, json!({ "resourceSubscriptions": [RESOURCE], "toolsListChanged": true }));
    assert_eq!(client.line("updated ").await.unwrap(), RESOURCE);
    gateway.interrupt().unwrap();
    assert_eq!(client.line("closed ").await.unwrap(), "graceful");
}

#[tokio::test]
async fn the_typescript_client_hears_of_a_resource_until_the_gateway_says_goodbye() {
    check("listen-ts", "node", "listen_ts.mjs").await;
}

#[tokio::test]
async fn the_python_client_hears_of_a_resource_until_the_gateway_says_goodbye() {
    check("listen-py", "py-modern/bin/python", "listen_py2.py").await;
}

/// The resource that the server of the Python SDK 2 notifies about, and the tool that changes it.
const NOTE: &str = "note://1";
const TOUCH: &str = "touch";

/// A gateway in front of a server that sends notifications only to subscribers.
async fn before_listened(what: &'static str, peers: &Peers) -> (PeerServer, Gateway) {
    let server = PeerServer::start(Program::Listened, peers, what).await.unwrap();
    let upstream = format!("[upstreams.listened]\nurl = \"{}\"\nprotocol = \"2026-07-28\"\n", server.url());
    let gateway = Gateway::start(&format!("{what}-gateway"), &upstream, 1).await.unwrap();
    (server, gateway)
}

/// GW-27.
#[tokio::test]
async fn the_typescript_client_with_a_session_hears_of_a_server_without_any() {
    let what = "listen-ts1";
    let Some(peers) = Peers::find(what) else { return };
    let (_server, gateway) = before_listened(what, &peers).await;
    let command = peers.command("node", ["listen_ts1.mjs", gateway.url("listened"), NOTE, TOUCH]);
    let mut client = Child::start(&format!("{what}-client"), command).unwrap();
    let offered: Value = serde_json::from_str(&client.line("offered ").await.unwrap()).unwrap();
    assert_eq!(offered, json!({ "resources": true, "tools": true }));
    assert_eq!(client.line("updated ").await.unwrap(), NOTE);
    client.line("changed").await.unwrap();
}

#[tokio::test]
async fn clients_without_sessions_listen_to_a_server_of_their_own_era_as_before() {
    for (what, program, script) in
        [("listen-own-ts", "node", "listen_ts.mjs"), ("listen-own-py", "py-modern/bin/python", "listen_py2.py")]
    {
        let Some(peers) = Peers::find(what) else { return };
        let (_server, gateway) = before_listened(what, &peers).await;
        let command = peers.command(program, [script, gateway.url("listened"), NOTE, TOUCH]);
        let mut client = Child::start(&format!("{what}-client"), command).unwrap();
        let granted: Value = serde_json::from_str(&client.line("granted ").await.unwrap()).unwrap();
        assert_eq!(granted, json!({ "resourceSubscriptions": [NOTE], "toolsListChanged": true }));
        assert_eq!(client.line("updated ").await.unwrap(), NOTE);
        gateway.interrupt().unwrap();
        assert_eq!(client.line("closed ").await.unwrap(), "graceful");
    }
}
