//! A real client that a certificate alone authenticates.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use rcgen::string::Ia5String;
use rcgen::{CertificateParams, DistinguishedName, DnType, SanType};
use serde_json::{Value, json};
use support::certificates::{self, Authority};
use support::peers::gateway::Gateway;
use support::peers::install::Peers;
use support::peers::login::{Client, slow_server};
use taskgate::tls::IdentityFiles;

/// The name in the certificate owns the task.
#[tokio::test]
async fn a_client_with_a_certificate_follows_its_slow_call_to_the_end_and_sees_no_other_clients() {
    let Some(peers) = Peers::find("certificate") else { return };
    let server = slow_server().await;
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
    let seen = async |name: &str, identity: Option<&IdentityFiles>, steps: &[Value]| {
        let wanted = json!({
            "url": gateway.url("up"), "flow": "certificate",
            "certificate": {
                "ca": ca, "certificate": identity.map(|files| &files.certificate), "key": identity.map(|files| &files.key),
            },
        });
        let name = format!("certificate-{name}");
        let seen = Client::TypeScript.run(&peers, &name, wanted, steps).await;
        seen.unwrap_or_else(|why| panic!("{name}: {why}"))
    };
    let of_ada = seen("ada", Some(&ada), &[json!({ "tools": true }), json!({ "task": "slow", "ms": 1_500 })]).await;
    assert_eq!(of_ada[0]["tools"], json!(["slow", "change"]), "{of_ada:?}");
    assert_eq!((&of_ada[1]["status"], &of_ada[1]["text"]), (&json!("completed"), &json!("done")), "{of_ada:?}");
    let peek = [json!({ "peek": of_ada[1]["taskId"] })];
    assert_eq!(seen("ada-again", Some(&ada), &peek).await[0]["status"], json!("completed"));
    let of_bob = seen("bob", Some(&bob), &peek).await;
    assert_eq!((&of_bob[0]["status"], &of_bob[0]["code"]), (&Value::Null, &json!(-32602)), "{of_bob:?}");
    let without = seen("none", None, &[json!({ "tools": true })]).await;
    assert_eq!(without[0]["error"], json!("ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED"));
}
