//! Real clients that log in at a second authorization server, Debian's glewlwyd, and follow a slow call while their tokens expire.
//!
//! `tests/peers/glewlwyd.sh` unpacks it into the folder that `TASKGATE_PEERS` names; without apt-get nothing runs here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use serde_json::json;
use support::peers::gateway::Gateway;
use support::peers::install::{Peers, program};
use support::peers::login::{Client, config, slow_server};
use support::peers::process::Child;
use support::ports::reserved_address;

const TOKEN_SECONDS: &str = "5";
/// The gateway accepts a token for a minute after its end; this call takes longer.
const CALL_MILLIS: u64 = 68_000;

/// Only the third of the three addresses of metadata exists there, and its answers to introspection have neither `iss` nor `sub`.
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
    let server = slow_server().await;
    for (name, introspection) in [("signed", String::new()), ("asked", introspection(&issuer_url))] {
        let auth = format!(
            "[auth]\nmode = \"tokens\"\nscopes = [\"mcp\"]\n[[auth.issuers]]\nissuer = \"{issuer_url}\"\n{introspection}"
        );
        let config = config(&auth, &server);
        let gateway = Gateway::start_public_at(&format!("glewlwyd-{name}"), &config, 3, address).await.unwrap();
        let run = async |client: Client, path: &str, tool: &str| {
            let wanted = json!({ "url": gateway.url(path), "issuer": issuer_url, "flow": "credentials" });
            let steps = [client.task(tool, CALL_MILLIS)];
            let seen = client.run(&peers, &format!("glewlwyd-{name}-{path}"), wanted, &steps).await;
            seen.unwrap().remove(0)
        };
        let (ts, py) = (run(Client::TypeScript, "up", "slow"), run(Client::Python, "all", "up__slow"));
        for facts in <[_; 2]>::from(tokio::join!(ts, py)) {
            assert_eq!((&facts["status"], &facts["text"]), (&json!("completed"), &json!("done")), "{name}: {facts}");
            assert!(facts["tokens"].as_u64() >= Some(2), "{name}: {facts}");
        }
    }
}

/// The settings by which the gateway asks about signed tokens too.
fn introspection(issuer: &str) -> String {
    format!(
        "introspection = {{ url = \"{issuer}/introspect\", client_id = \"machine\", client_secret = \"machine-password\", \
         tokens = \"signed\" }}\n"
    )
}
