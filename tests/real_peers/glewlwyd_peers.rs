//! Real clients that log in at a second authorization server, Debian's glewlwyd, and follow a slow call while their
//! tokens expire: by client credentials, and by the code flow with and without DPoP.
//!
//! `tests/peers/glewlwyd.sh` unpacks it into the folder that `TASKGATE_PEERS` names; without apt-get nothing runs here.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use futures_util::future::join_all;
use serde_json::json;
use support::peers::gateway::Gateway;
use support::peers::install::{Peers, program};
use support::peers::login::{Client, config, slow_server};
use support::peers::process::Child;
use support::ports::reserved_address;

const TOKEN_SECONDS: &str = "5";
/// The gateway accepts a token for a minute after its end; this call takes longer.
const CALL_MILLIS: u64 = 68_000;

/// A client in one of its flows, at the path of a server or of an endpoint.
struct Login {
    client: Client,
    flow: &'static str,
    path: &'static str,
    /// How often a person logs in.
    logins: u64,
}

const fn login(client: Client, flow: &'static str, path: &'static str, logins: u64) -> Login {
    Login { client, flow, path, logins }
}

const LOGINS: [Login; 5] = [
    login(Client::TypeScript, "credentials", "up", 0),
    login(Client::Python, "credentials", "all", 0),
    login(Client::TypeScript, "known", "all", 1),
    login(Client::TypeScript, "known-dpop", "up", 1),
    login(Client::Python, "known", "up", 1),
];

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
    let cookie = issuer.line("user ").await.unwrap();
    let issuer_url = issuer.line("as ").await.unwrap();
    let server = slow_server().await;
    // glewlwyd tells a client about its own tokens alone, and the gateway asks as `machine`.
    let (all, own) = (LOGINS.as_slice(), &LOGINS[..2]);
    for (name, introspection, logins) in [("signed", String::new(), all), ("asked", introspection(&issuer_url), own)] {
        let auth = format!(
            "[auth]\nmode = \"tokens\"\nscopes = [\"mcp\"]\ndpop = \"accept\"\n[[auth.issuers]]\nissuer = \"{issuer_url}\"\n\
             {introspection}"
        );
        let config = config(&auth, &server);
        let gateway = Gateway::start_public_at(&format!("glewlwyd-{name}"), &config, 3, address).await.unwrap();
        let run = async |login: &Login| {
            let Login { client, flow, path, logins } = login;
            let wanted = json!({ "url": gateway.url(path), "issuer": issuer_url, "flow": flow, "cookie": cookie });
            let steps = [client.task(if *path == "all" { "up__slow" } else { "slow" }, CALL_MILLIS)];
            let called = format!("glewlwyd-{name}-{client:?}-{flow}");
            let facts = client.run(&peers, &called, wanted, &steps).await.unwrap().remove(0);
            assert_eq!((&facts["status"], &facts["text"]), (&json!("completed"), &json!("done")), "{called}: {facts}");
            assert!(facts["tokens"].as_u64() >= Some(2), "{called}: {facts}");
            assert_eq!(facts["logins"], *logins, "{called}: {facts}");
            let scheme = if *flow == "known-dpop" { "dpop" } else { "bearer" };
            let is_so = facts["scheme"].as_str().is_some_and(|found| found.eq_ignore_ascii_case(scheme));
            assert!(is_so, "{called}: {facts}");
        };
        join_all(logins.iter().map(run)).await;
    }
}

/// The settings by which the gateway asks about signed tokens too.
fn introspection(issuer: &str) -> String {
    format!(
        "introspection = {{ url = \"{issuer}/introspect\", client_id = \"machine\", client_secret = \"machine-password\", \
         tokens = \"signed\" }}\n"
    )
}
