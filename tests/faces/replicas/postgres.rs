//! Gateways that know of one another by their database alone.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use support::ports::reserved_address;
use support::postgres::{self, PostgresServer};
use support::wire_client::{Flavour, WireClient};
use taskgate::app::Gateway;
use taskgate::app::sockets::Sockets;
use taskgate::config::{self, Config, StoreSettings};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{Client, KEY, call};
use super::harness::{before, client_at};
use super::upstream::{ScriptedServer, SeenRequest, answer, in_time};

/// A look at the others each second, with time for a busy machine; less than a lease, by which a gateway that ends without a word
/// is noticed.
const TAKEN_OVER_MAX: Duration = Duration::from_secs(45);
const LOOK: Duration = Duration::from_millis(200);

fn configured(database: &PostgresServer, (name, schema): (&str, &str), folder: &TempDir, served: &str) -> Config {
    // Other replicas learn its address before it listens, so it needs a port of its own choice.
    let port = reserved_address().port();
    let text = format!(
        "[store]\nkind = \"postgres\"\nurl = \"{}\"\nschema = \"{schema}\"\ndurability = \"single\"\npath = {:?}\n\
         [replica]\nname = \"{name}\"\naddress = \"127.0.0.1:{port}\"\nlease = \"60s\"\n\
         [admin]\naddress = \"127.0.0.1:0\"\n[listen]\naddress = \"127.0.0.1:0\"\n{served}\n",
        database.url(),
        folder.path(),
    );
    config::parse("test", &text, &|_| None).unwrap().config
}

async fn start(database: &PostgresServer, name: &str, schema: &str, served: &str) -> (Gateway, TempDir) {
    let (config, folder) = with_key(database, name, schema, served);
    let metrics = PrometheusBuilder::new().build_recorder().handle();
    (in_time(Gateway::start(config, metrics)).await.unwrap(), folder)
}

fn with_key(database: &PostgresServer, name: &str, schema: &str, served: &str) -> (Config, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("seal.key");
    fs::write(&key, KEY).unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    (configured(database, (name, schema), &folder, served), folder)
}

/// A start ends in order at a signal. The second one has another folder, so it knows nothing of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_stopped_while_it_starts_leaves_its_name_at_once() {
    let Some(database) = postgres::shared() else { return };
    let served = before(&ScriptedServer::polite().await);
    let (one, _folder) = start(database, "a", "stopped", &served).await;
    let (config, _other) = with_key(database, "b", "stopped", &served);
    let StoreSettings::Postgres(settings) = &config.store else { panic!("{:?}", config.store) };
    let address = settings.replica.address.unwrap();
    let (stop, metrics) = (CancellationToken::new(), PrometheusBuilder::new().build_recorder().handle());
    let starting = Gateway::start_until(config, metrics, Sockets::default(), stop.clone());
    // It listens to the other replicas before it waits until they have seen it.
    let stopping = async {
        while TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
    };
    let (started, ()) = in_time(async { tokio::join!(starting, stopping) }).await;
    assert_eq!(started.unwrap_err().to_string(), "the start was stopped");
    let again = tokio::time::timeout(TAKEN_OVER_MAX, start(database, "b", "stopped", &served));
    let (two, _third) = again.await.expect("its name is free");
    one.drain(Some(Duration::ZERO)).await;
    two.drain(Some(Duration::ZERO)).await;
}

/// F85, with the rows that each gateway reads of the others.
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
            assert_eq!(answer["error"]["data"]["reason"], "replica_unavailable", "{answer}");
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(TAKEN_OVER_MAX, taken_over).await.expect("the session goes on where it is asked for");
    assert_eq!(server.world.count("initialize"), 2, "at the server it is the same");
    two.drain(Some(Duration::ZERO)).await;
}

/// `[replica] divide`: of two places at a server each gateway has one, until the other gateway has gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_at_a_time_are_divided_among_gateways_that_live() {
    let Some(database) = postgres::shared() else { return };
    let server = ScriptedServer::holding_calls().await;
    let served = format!("{}in_flight_max = 2\nqueue_max = 0\n", before(&server));
    let (one, _folder) = start(database, "a", "divided", &served).await;
    let (two, _other) = start(database, "b", "divided", &served).await;
    let client = client_at(two.address()).opened("2025-11-25").await;
    let calls = TaskTracker::new();
    let hold = || {
        let client = client.clone();
        calls.spawn(async move { client.post(call(1)).await.json().await })
    };
    let held = hold();
    server.world.first(SeenRequest::is_call).await;
    let refused = in_time(hold()).await.unwrap();
    assert_eq!(refused["error"]["data"]["reason"], "queue_full", "{refused}");
    one.drain(Some(Duration::ZERO)).await;
    let all_its_own = async {
        loop {
            let second = hold();
            tokio::select! {
                refused = second => assert_eq!(refused.unwrap()["error"]["data"]["reason"], "queue_full"),
                _ = server.world.nth(1, SeenRequest::is_call) => return,
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(TAKEN_OVER_MAX, all_its_own).await.expect("it has both places");
    drop((held, two));
}

/// F24: a replica that takes over sessions keeps no upstream that a reload replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sessions_of_an_upstream_that_a_reload_replaced_are_closed() {
    let Some(database) = postgres::shared() else { return };
    let server = ScriptedServer::start(|seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}))),
        "tools/call" => Some(answer(seen, &json!({"content": [{"type": "text", "text": "done"}]}))),
        _ => None,
    })
    .await;
    // Its call is no task, on a busy machine either.
    let served = format!("{}tasks.grace = \"30s\"\n", before(&server));
    let (mut gateway, folder) = start(database, "a", "replaced", &served).await;
    // Its session at the server is the gateway's own.
    let client = WireClient { path: "/mcp", ..WireClient::new(Flavour::Extension) };
    let called = client.ask(gateway.address(), "tools/call", json!({"name": "t", "arguments": {}})).await;
    assert_eq!(called.json()["result"]["content"][0]["text"], "done", "{called:?}");
    let changed = configured(database, ("a", "replaced"), &folder, &format!("{served}life_signs = false\n"));
    let changes = gateway.reload(changed).unwrap();
    assert_eq!((changes.opened, changes.retired), (1, 1), "{changes:?}");
    server.world.first(|seen| seen.method == "DELETE").await;
    gateway.drain(Some(Duration::ZERO)).await;
}
