//! Real clients that log in at a second authorization server, Debian's glewlwyd, and follow a slow call while their tokens expire.
//!
//! `tests/peers/glewlwyd.sh` unpacks it into the folder that `TASKGATE_PEERS` names; without apt-get nothing runs here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::time::Duration;

use serde_json::{Value, json};
use support::peers::gateway::Gateway;
use support::peers::install::{Peers, program};
use support::peers::process::Child;
use support::ports::reserved_address;
use support::scripted::{ScriptedServer, SeenRequest, answer};

const TOKEN_SECONDS: &str = "5";
/// The gateway accepts a token for a minute after its end.
const CALL: Duration = Duration::from_secs(68);

/// Its metadata is at the third of the three places alone, and its answer to introspection has neither `iss` nor `sub`.
#[tokio::test]
#[ignore = "takes over a minute, and needs packages of Debian: part of `make peers`"]
async fn clients_of_glewlwyd_log_in_and_read_the_result_of_a_call_that_outlives_their_token() {
    let what = "glewlwyd";
    let Some(peers) = Peers::find(what) else { return };
    let glewlwyd = peers.join("glewlwyd/usr/bin/glewlwyd");
    if !glewlwyd.is_file() && program("apt-get").is_none() {
        eprintln!("SKIPPED: {what}; it comes from Debian's packages");
        return;
    }
    assert!(glewlwyd.is_file(), "run tests/peers/glewlwyd.sh first");
    let (folder, address) = (tempfile::tempdir().unwrap(), reserved_address());
    let resources = ["up", "all"].map(|path| format!("http://{address}/{path}/mcp"));
    let [glewlwyd, at] = [glewlwyd.as_path(), folder.path()].map(|path| path.to_str().unwrap());
    let arguments = ["login_glewlwyd.py", glewlwyd, at, TOKEN_SECONDS, &resources[0], &resources[1]];
    let mut issuer = Child::start("glewlwyd-issuer", peers.command("py-modern/bin/python", arguments)).unwrap();
    let issuer_url = issuer.line("as ").await.unwrap();
    let server = ScriptedServer::slow(|seen: SeenRequest, _| async move {
        match seen.rpc() {
            "tools/list" => {
                let tools = json!([{ "name": "slow", "inputSchema": { "type": "object" } }]);
                Some(answer(&seen, &json!({ "tools": tools })))
            }
            "tools/call" => {
                tokio::time::sleep(CALL).await;
                Some(answer(&seen, &json!({ "content": [{ "type": "text", "text": "done" }] })))
            }
            _ => None,
        }
    });
    let server = server.await;
    for (name, introspection) in [("signed", String::new()), ("asked", introspection(&issuer_url))] {
        let upstream = |name: &str| {
            format!(
                "[upstreams.{name}]\nurl = \"{}\"\nfirst_byte_max = \"5m\"\nidle_max = \"5m\"\n\
                 [upstreams.{name}.tasks]\ngrace = \"300ms\"\npoll_interval = \"1s\"\nfallback = \"tools\"\n",
                server.url()
            )
        };
        let config = format!(
            "[auth]\nmode = \"tokens\"\nscopes = [\"mcp\"]\n[[auth.issuers]]\nissuer = \"{issuer_url}\"\n{introspection}{}{}\
             [[endpoints]]\npath = \"/all/mcp\"\nupstreams = [\"up\", \"two\"]\n",
            upstream("up"),
            upstream("two")
        );
        let gateway = Gateway::start_public_at(&format!("glewlwyd-{name}"), &config, 3, address).await.unwrap();
        let run = async |client: (&str, &str), path: &str, tool: &str| {
            let wanted = json!({
                "url": gateway.url(path), "issuer": issuer_url, "flow": "credentials", "user": "none", "tool": tool, "ms": 0,
            });
            let command = peers.command(client.0, [client.1.to_owned(), wanted.to_string()]);
            let mut child = Child::start(&format!("glewlwyd-{name}-{path}"), command).unwrap();
            loop {
                // Its call takes longer than a line may.
                let line = child.next_line(2 * CALL).await.unwrap().expect("it says what it saw");
                if let Some(facts) = line.strip_prefix("facts ") {
                    break serde_json::from_str::<Value>(facts).unwrap();
                }
            }
        };
        let (ts, py) = (("node", "login_ts.mjs"), ("py-modern/bin/python", "login_py.py"));
        let (first, second) = tokio::join!(run(ts, "up", "slow"), run(py, "all", "up__slow"));
        for facts in [first, second] {
            assert_eq!((&facts["status"], &facts["text"]), (&json!("completed"), &json!("done")), "{name}: {facts}");
            assert!(facts["tokens"].as_u64() >= Some(2), "{name}: {facts}");
        }
    }
}

/// The gateway asks about signed tokens, too.
fn introspection(issuer: &str) -> String {
    format!(
        "introspection = {{ url = \"{issuer}/introspect\", client_id = \"machine\", client_secret = \"machine-password\", \
         tokens = \"signed\" }}\n"
    )
}
