//! Replicas that show one another certificates.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use taskgate::server::replicas::ReplicaTls;

use super::certificates::{Authority, write};
use super::client::call;
use super::harness::{Replicas, before as serving};
use super::upstream::ScriptedServer;

/// An identity for this machine's address that `authority` signed, and that trusts `trusted`.
fn identity(folder: &Path, name: &str, authority: &Authority, trusted: &Authority) -> ReplicaTls {
    let own = authority.vouch(|params| {
        params.subject_alt_names = vec![rcgen::SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST))];
    });
    let ca = write(folder, &format!("{name}-ca.pem"), "CERTIFICATE", trusted.certificate());
    ReplicaTls { identity: own.write(folder, name), ca }
}

async fn answer(tls: &[ReplicaTls]) -> Value {
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::serving(2, &serving(&server), tls).await;
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
async fn a_replica_with_no_certificate_or_a_foreign_one_is_refused() {
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
        let found = (&data["reason"], &data["executed"]);
        assert_eq!(found, (&json!("replica_unavailable"), &json!("no")), "{what}: {answer}");
    }
    // The owner wants certificates, and the other has none to show.
    let answer = answer(&[good]).await;
    assert_eq!(answer["error"]["data"]["reason"], "replica_unavailable", "{answer}");
}

/// As an authority is renewed: its successor joins it in the file, then certificates are the successor's.
#[tokio::test]
async fn an_authority_that_joins_the_file_is_believed_without_a_start() {
    let (before, after, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    let home = identity(folder.path(), "home", &before, &before);
    let renewed = identity(folder.path(), "renewed", &after, &before);
    let successor = write(folder.path(), "successor.pem", "CERTIFICATE", after.certificate());
    let server = ScriptedServer::polite().await;
    let replicas = Replicas::serving(2, &serving(&server), &[home.clone(), renewed]).await;
    let there = replicas.at(1, &replicas.client().await);
    assert_eq!(there.post(call(1)).await.json().await["error"]["data"]["reason"], "replica_unavailable");
    let both = [&home.ca, &successor].map(|file| fs::read_to_string(file).unwrap()).concat();
    fs::write(&home.ca, both).unwrap();
    for attempt in 2..400 {
        let answer = there.post(call(attempt)).await.json().await;
        if answer["result"]["n"] == attempt {
            return;
        }
        assert_eq!(answer["error"]["data"]["reason"], "replica_unavailable", "{answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the home does not believe the successor");
}
