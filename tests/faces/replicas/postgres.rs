//! Gateways that know of one another by their database alone.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use support::postgres::{self, PostgresServer};
use taskgate::app::Gateway;
use taskgate::config;
use tempfile::TempDir;

use super::client::{Client, KEY, call};
use super::harness::{before, client_at};
use super::upstream::{ScriptedServer, in_time};

/// A look at the others each second, with time for a busy machine.
const TAKEN_OVER_MAX: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(200);

async fn start(database: &PostgresServer, name: &str, schema: &str, served: &str) -> (Gateway, TempDir) {
    // Others are told where it is before it listens, so it needs a port of its own choice.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "[store]\nkind = \"postgres\"\nurl = \"{}\"\nschema = \"{schema}\"\ndurability = \"single\"\npath = {:?}\n\
         [replica]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\nlease = \"4s\"\n\
         [admin]\naddress = \"127.0.0.1:0\"\n[listen]\naddress = \"127.0.0.1:0\"\n{served}\n",
        database.url(),
        folder.path(),
    );
    let key = folder.path().join("seal.key");
    fs::write(&key, KEY).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let config = config::parse("test", &text, &|_| None).unwrap().config;
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    (in_time(Gateway::start(config, metrics)).await.unwrap(), folder)
}

/// F85, with what each gateway reads of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_on_one_database_find_each_others_sessions_and_take_over_those_of_one_that_ended() {
    let Some(database) = postgres::shared() else { return };
    let server = ScriptedServer::polite().await;
    let served = before(&server);
    let (one, _folder) = start(database, "a", "passed_on", &served).await;
    let (two, _other) = start(database, "b", "passed_on", &served).await;
    let here = client_at(one.address()).opened("2025-11-25").await;
    let there = Client { address: two.address(), ..here.clone() };
    for client in [&there, &here, &there] {
        assert_eq!(client.post(call(1)).await.json().await["result"]["n"], 1);
    }
    assert_eq!(here.delete().await.status, 200);
    assert_eq!(there.post(call(1)).await.status, 404, "the second knows by the first alone that it has ended");
    let session = client_at(one.address()).opened("2025-11-25").await;
    let there = Client { address: two.address(), ..session };
    // It declares itself dead, which the other one reads at its next look.
    one.drain(Some(Duration::ZERO)).await;
    let taken_over = async {
        loop {
            let answer = there.post(call(3)).await.json().await;
            if answer["result"]["n"] == 3 {
                break;
            }
            assert_eq!(answer["error"]["data"]["reason"], "replica_away", "{answer}");
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(TAKEN_OVER_MAX, taken_over).await.expect("the session goes on where it is asked for");
    assert_eq!(server.world.count("initialize"), 2, "at the server it is the same");
    two.drain(Some(Duration::ZERO)).await;
}
