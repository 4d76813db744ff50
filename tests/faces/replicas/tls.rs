//! Replicas that show one another certificates.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use serde_json::Value;
use taskgate::server::replicas::ReplicaTls;

use super::certificates::{Authority, write};
use super::client::call;
use super::harness::{Replicas, before};
use super::upstream::ScriptedServer;

/// An identity for this machine's address that `authority` vouches for, and whom its holder trusts.
fn identity(folder: &Path, name: &str, authority: &Authority, trusted: &Authority) -> ReplicaTls {
    let own = authority.vouch(|params| {
        params.subject_alt_names = vec![rcgen::SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST))];
    });
    let ca = write(folder, &format!("{name}-ca.pem"), "CERTIFICATE", trusted.certificate());
    ReplicaTls { identity: own.write(folder, name), ca }
}

async fn answer(tls: &[ReplicaTls]) -> Value {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::serving(2, &before(&server), tls).await;
    let there = replicas.at(1, &replicas.client().await);
    there.post(call(1)).await.json().await
}

#[tokio::test]
async fn replicas_that_the_same_authority_vouches_for_pass_requests_on() {
    let (ours, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let tls = ["a", "b"].map(|name| identity(folder.path(), name, &ours, &ours));
    assert_eq!(answer(&tls).await["result"]["n"], 1);
}

#[tokio::test]
async fn a_replica_that_shows_no_certificate_or_a_foreign_one_is_nobody() {
    let (ours, theirs, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let good = identity(folder.path(), "good", &ours, &ours);
    let of = |name: &str, by: &Authority, trusting: &Authority| identity(folder.path(), name, by, trusting);
    let elsewhere = ReplicaTls { identity: ours.vouch(|_| ()).write(folder.path(), "named"), ca: good.ca.clone() };
    for (what, home, other) in [
        ("the other is not vouched for", good.clone(), of("a", &theirs, &ours)),
        ("the home is not vouched for", of("b", &theirs, &theirs), good.clone()),
        ("the home's is for another address", elsewhere, good.clone()),
    ] {
        let answer = answer(&[home, other]).await;
        let data = &answer["error"]["data"];
        assert!(data["reason"] == "replica_away", "{what}: {answer}");
    }
    // The home wants certificates, and the other has none to show.
    let answer = answer(&[good]).await;
    assert_eq!(answer["error"]["data"]["reason"], "replica_away", "{answer}");
}
