//! A real client that comes with its certificate, and nothing else.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::time::Duration;

use rcgen::string::Ia5String;
use rcgen::{CertificateParams, DistinguishedName, DnType, SanType};
use serde_json::{Value, json};
use support::certificates::{self, Authority};
use support::peers::gateway::Gateway;
use support::peers::install::Peers;
use support::peers::process::Child;
use support::scripted::{ScriptedServer, SeenRequest, answer};

/// A slow call as a task, and its owner by the name of the certificate alone.
#[tokio::test]
async fn a_client_with_a_certificate_follows_its_slow_call_to_the_end_and_sees_no_other_clients() {
    let Some(peers) = Peers::find("certificate") else { return };
    let server = ScriptedServer::slow(async |seen: SeenRequest, _| match seen.rpc() {
        "tools/list" => {
            Some(answer(&seen, &json!({ "tools": [{ "name": "slow", "inputSchema": { "type": "object" } }] })))
        }
        "tools/call" => {
            let millis = seen.body["params"]["arguments"]["ms"].as_u64().unwrap();
            tokio::time::sleep(Duration::from_millis(millis)).await;
            Some(answer(&seen, &json!({ "content": [{ "type": "text", "text": "done" }] })))
        }
        _ => None,
    });
    let server = server.await;
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    // With their authority's subject they would look self-signed to OpenSSL.
    let vouch = |name: &str, change: &dyn Fn(&mut CertificateParams)| {
        let identity = authority.vouch(|params| {
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
            change(params);
        });
        identity.write(folder.path(), name)
    };
    vouch("server", &|_| ());
    let ca = certificates::write(folder.path(), "ca.pem", "CERTIFICATE", authority.certificate());
    let agent = |name: &str| {
        let uri = SanType::URI(Ia5String::try_from(format!("spiffe://corp/agents/{name}")).unwrap());
        vouch(name, &|params| params.subject_alt_names = vec![uri.clone()])
    };
    let (ada, bob) = (agent("ada"), agent("bob"));
    let at = folder.path().display();
    let config = format!(
        "[listen.tls]\ncertificate = \"{at}/server.pem\"\nkey = \"{at}/server.key\"\nclient_ca = \"{at}/ca.pem\"\n\
         client_certificates = \"required\"\n[auth]\nmode = \"certificates\"\n\
         [[auth.certificates]]\nsan = \"spiffe://corp/agents/*\"\n\
         [upstreams.up]\nurl = \"{}\"\n[upstreams.up.tasks]\ngrace = \"300ms\"\npoll_interval = \"100ms\"\n",
        server.url()
    );
    let gateway = Gateway::start("certificate-gateway", &config, 1).await.unwrap();
    let seen = async |name: &str, files: [&str; 2], steps: Value| {
        let arguments =
            ["certificate_ts.mjs", gateway.url("up"), ca.to_str().unwrap(), files[0], files[1], &steps.to_string()];
        let mut child = Child::start(&format!("certificate-{name}"), peers.command("node", arguments)).unwrap();
        let mut facts: Vec<Value> = Vec::new();
        for step in steps.as_array().unwrap() {
            let line = child.line("facts ").await.unwrap_or_else(|why| panic!("{name} {step}: {why}"));
            facts.push(serde_json::from_str(&line).unwrap());
        }
        facts
    };
    let path = |file: &std::path::Path| file.to_str().unwrap().to_owned();
    let (certificate, key) = (path(&ada.certificate), path(&ada.key));
    let of_ada = seen("ada", [&certificate, &key], json!([{ "tools": true }, { "task": "slow", "ms": 1_500 }])).await;
    assert_eq!(of_ada[0]["tools"], json!(["slow"]), "{of_ada:?}");
    assert_eq!((&of_ada[1]["status"], &of_ada[1]["text"]), (&json!("completed"), &json!("done")), "{of_ada:?}");
    let peek = json!([{ "peek": of_ada[1]["taskId"] }]);
    assert_eq!(seen("ada-again", [&certificate, &key], peek.clone()).await[0]["status"], json!("completed"));
    let (certificate, key) = (path(&bob.certificate), path(&bob.key));
    let of_bob = seen("bob", [&certificate, &key], peek).await;
    assert_eq!((&of_bob[0]["status"], &of_bob[0]["code"]), (&Value::Null, &json!(-32602)), "{of_bob:?}");
    let nobody = seen("nobody", ["none", "none"], json!([{ "tools": true }])).await;
    assert_eq!(nobody[0]["error"], json!("ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED"));
}
