//! Two gateways on one database, as operators see them: `/replicas`, whose each task is, and `taskgate replicas`.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use support::postgres::{self, PostgresServer, ServerStop};

use super::program::{Call, Folder, Program, Worker, block, send};
use super::upstream::in_time;

/// The configuration of a gateway on a database.
fn configured(folder: &Folder, (url, schema): (&str, &str), name: &str, worker: &Worker) {
    folder.write_whole(&format!(
        "[store]\nkind = \"postgres\"\nurl = \"{url}\"\nschema = \"{schema}\"\ndurability = \"single\"\npath = {:?}\n\
         write_max = \"1s\"\n[replica]\nname = \"{name}\"\nlease = \"4s\"\n\
         [admin]\naddress = \"127.0.0.1:0\"\n[listen]\naddress = \"127.0.0.1:0\"\n{}",
        folder.path(),
        block("up", &worker.server),
    ));
}

/// A gateway on a database, which seals with `key` if there is one yet.
async fn gateway(database: &PostgresServer, name: &str, worker: &Worker, key: Option<&Folder>) -> (Program, Folder) {
    let folder = Folder::new();
    if let Some(other) = key {
        fs::copy(other.path().join("seal.key"), folder.path().join("seal.key")).unwrap();
    }
    configured(&folder, (&database.url(), "operated"), name, worker);
    (Program::serve(&folder).await, folder)
}

/// The table without the parts that differ from run to run.
fn plain(table: &str) -> Vec<String> {
    let version = env!("CARGO_PKG_VERSION");
    let is_age = |word: &&str| !(word.ends_with('s') && word.starts_with(|first: char| first.is_ascii_digit()));
    let words = |line: &str| line.split_whitespace().filter(is_age).collect::<Vec<_>>().join(" ");
    table.lines().map(|line| words(&line.replace(version, "VERSION"))).collect()
}

async fn until_list(program: &Program, what: &str, holds: impl Fn(&Value) -> bool) {
    in_time(async {
        loop {
            let list = program.get("/replicas").await.json();
            if holds(&list["replicas"]) {
                return;
            }
            assert!(list["replicas"].is_array(), "{what}: {list}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn gateways_on_one_database_are_listed_with_the_holder_of_each_task_and_a_dead_one_is_forgotten() {
    let Some(database) = postgres::shared() else { return };
    let worker = Worker::start().await;
    let (one, folder) = gateway(database, "a", &worker, None).await;
    let (other, _other) = gateway(database, "b", &worker, Some(&folder)).await;
    until_list(&one, "both", |list| list.as_array().is_some_and(|list| list.len() == 2)).await;
    let (code, table, said) = one.operate(&["replicas", "list"]).await;
    assert_eq!((code, said.as_str()), (Some(0), ""));
    let records = plain(&table)[1].rsplit(' ').next().unwrap().to_owned();
    let expected = [
        "NAME INCARNATION STATE HEARTBEAT ADDRESS VERSION RECORDS".to_owned(),
        format!("a 1 this one ago VERSION {records}"),
        format!("b 2 living ago VERSION {records}"),
    ];
    assert_eq!(plain(&table), expected, "{table}");
    // A gateway knows the age of a heartbeat only after it has seen a second one.
    until_list(&other, "a heartbeat", |list| list[0]["heartbeat_age_seconds"].is_number()).await;
    let (code, listed, _) = other.operate(&["replicas", "list", "--json"]).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((code, &listed[0]["state"], &listed[1]["state"]), (Some(0), &"living".into(), &"this one".into()));
    assert!(listed[0]["heartbeat_age_seconds"].as_f64().is_some_and(|age| age < 60.0), "{listed}");

    // Each gateway's list has the holder of each task, and each can cancel them all.
    let id = other.task("/up/mcp", "k").await;
    let kept = other.task("/up/mcp", "l").await;
    one.task("/up/mcp", "m").await;
    worker.calls(3).await;
    for program in [&one, &other] {
        let (_, table, _) = program.operate(&["tasks", "list"]).await;
        let mut holders: Vec<_> = table.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
        holders.sort_unstable();
        assert_eq!(holders, ["HOLDER", "a", "b", "b"], "{table}");
    }
    let (code, shown, _) = one.operate(&["tasks", "show", id.as_str().unwrap()]).await;
    assert!(code == Some(0) && shown.contains("\nholder    b\n"), "{shown}");
    let (code, shown, _) = one.operate(&["tasks", "cancel", id.as_str().unwrap()]).await;
    assert!(code == Some(0) && shown.contains("state     cancelled\n"), "{shown}");
    worker.server.world.first(|seen| seen.rpc() == "notifications/cancelled").await;
    other.until("/up/mcp", &id, "cancelled").await;
    let page = one.get("/metrics").await.body;
    for series in [
        "taskgate_replicas_living 2",
        "taskgate_database_unresolved_writes_total 0",
        "taskgate_replica_heartbeats_total ",
    ] {
        assert!(page.contains(&format!("\n{series}")), "{series} in {page}");
    }
    let page = one.get("/").await.body;
    assert!(
        page.contains("\nreplica b (incarnation 2): living, version ") && page.contains("/tasks /calls /replicas "),
        "{page}"
    );

    for (name, why) in [
        ("b", "taskgate: the replica is alive; only a dead replica can be forgotten"),
        ("c", "taskgate: no replica has this name"),
    ] {
        let (code, _, said) = one.operate(&["replicas", "forget", name]).await;
        assert_eq!((code, said.trim()), (Some(1), why));
    }
    other.signal("KILL");
    until_list(&one, "b is dead", |list| list[1]["state"] == "dead").await;
    one.until("/up/mcp", &kept, "failed").await;
    let forgotten = async || one.operate(&["replicas", "forget", "b"]).await;
    let mut answer = forgotten().await;
    while answer.2.contains("still has") {
        answer = forgotten().await;
    }
    assert_eq!(answer, (Some(0), "forgotten: b\n".to_owned(), String::new()));
    until_list(&one, "one is left", |list| list.as_array().is_some_and(|list| list.len() == 1)).await;
    let (code, _, said) = forgotten().await;
    assert_eq!((code, said.trim()), (Some(1), "taskgate: no replica has this name"));
    assert_eq!(database.psql("SELECT count(*) FROM operated.tg_replica"), "1");
}

#[tokio::test]
async fn a_gateway_with_a_store_of_its_own_lists_no_replica() {
    let worker = Worker::start().await;
    let folder = Folder::new();
    folder.write(&block("up", &worker.server));
    let program = Program::serve(&folder).await;
    for order in [&["replicas", "list"][..], &["replicas", "forget", "a"]] {
        let (code, _, said) = program.operate(order).await;
        assert_eq!((code, said.trim()), (Some(1), "taskgate: this gateway shares its store with no other"));
    }
    let page = program.get("/").await.body;
    assert!(!page.contains("replica"), "{page}");
    let json = ("accept", "application/json");
    let page = send(program.admin, "GET", "/", &[json], "").await.json();
    assert!(page["replicas"].is_null() && page["tasks"].is_object(), "{page}");
    assert_eq!(program.get("/replicas/a").await.status, 404);
    assert_eq!(program.get("/replicas/a/forget").await.status, 405);
}

async fn until_ready_says(program: &Program, line: &str) {
    let mut seen = Vec::new();
    let says = async {
        loop {
            let body = program.get("/readyz").await.body;
            if body.trim_end() == line {
                return;
            }
            if seen.last() != Some(&body) {
                seen.push(body);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), says).await;
    assert!(in_time.is_ok(), "{seen:?} and never {line:?}");
}

/// Each trouble has a line of its own, and passes by itself.
#[tokio::test]
async fn readiness_names_each_trouble_of_the_database() {
    let Some(database) = PostgresServer::start(&[]) else { return };
    let worker = Worker::start().await;
    let folder = Folder::new();
    database.psql("CREATE ROLE keeper LOGIN; GRANT CREATE ON DATABASE postgres TO keeper");
    let url = database.url().replace("postgres@", "keeper@");
    configured(&folder, (&url, "operated"), "a", &worker);
    let program = Program::serve(&folder).await;
    until_ready_says(&program, "ready").await;
    let cut =
        || database.psql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'keeper'");
    let role = |change: &str| database.psql(&format!("ALTER ROLE keeper {change}"));
    for (trouble, line, remedy) in [
        ("CONNECTION LIMIT 0", "store refuses connections", "CONNECTION LIMIT -1"),
        ("SET default_transaction_read_only = on", "store read-only", "RESET default_transaction_read_only"),
    ] {
        role(trouble);
        cut();
        until_ready_says(&program, line).await;
        role(remedy);
        until_ready_says(&program, "ready").await;
    }
    let names = |names: &str| {
        database.configure(&[&format!("synchronous_standby_names = '{names}'")]);
        database.reload();
    };
    names("nobody");
    until_ready_says(&program, "store behind").await;
    names("");
    until_ready_says(&program, "ready").await;
    let told = |line: &str| program.log().matches(line).count();
    let outages = || told("overdue tasks cannot be settled or removed");
    // A sweep may have met one of the troubles above, and its outage lasts until the next one succeeds.
    in_time(async {
        while outages() > told("overdue tasks are settled and removed again") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let before = outages();
    database.stop(ServerStop::Fast);
    until_ready_says(&program, "store unavailable").await;
    // Further sweeps, one each second.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    database.restart();
    until_ready_says(&program, "ready").await;
    let log = program.log();
    assert_eq!(outages() - before, 1, "one line for an outage: {log}");
    for (fault, remedy) in [("has no connection left", "limit of connections"), ("is read-only", "primary is found")] {
        let fault = format!(": the database's server {fault}");
        let is_told = |line: &str| line.contains("the database has a fault: /") && line.contains(&fault);
        assert!(log.lines().any(|line| is_told(line) && line.contains(remedy)), "{fault}: {log}");
    }
}

/// As after a restore from a backup, in which the gateway's own counter is older.
#[tokio::test]
async fn a_call_that_waits_hears_that_the_store_is_lost_and_the_gateway_ends_with_74() {
    let Some(database) = postgres::shared() else { return };
    let worker = Worker::start().await;
    let folder = Folder::new();
    configured(&folder, (&database.url(), "restored"), "a", &worker);
    let mut program = Program::serve(&folder).await;
    let call = Call::plain(&json!({}));
    let (answer, ()) = tokio::join!(call.send(program.clients, "/up/mcp"), async {
        worker.calls(1).await;
        in_time(async {
            while program.counted("taskgate_replica_heartbeats_total").await < 2 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        database.psql("UPDATE restored.tg_replica SET beat = 0");
    });
    let data = answer.json()["error"]["data"].take();
    assert_eq!((&data["reason"], &data["executed"]), (&"store_lost".into(), &"unknown".into()), "{answer:?}");
    assert_eq!(program.ended().await, Some(74), "{}", program.log());
}

/// The configuration has port 0; the successor keeps the sockets.
#[tokio::test]
async fn b217_a_gateway_that_restarted_in_its_process_finds_no_address_changed_by_a_reload() {
    let Some(database) = postgres::shared() else { return };
    let worker = Worker::start().await;
    let folder = Folder::new();
    configured(&folder, (&database.url(), "readdressed"), "a", &worker);
    let program = Program::serve(&folder).await;
    until_ready_says(&program, "ready").await;
    database.psql("UPDATE readdressed.tg_replica SET dead = true, died = now()");
    program.says("restarted beside the other replicas", 1).await;
    let file = folder.path().join("taskgate.toml");
    let text = fs::read_to_string(&file).unwrap();
    folder.write_whole(&format!("{text}tasks.grace = \"7s\"\n"));
    program.says("the configuration was read again", 1).await;
    assert!(!program.log().contains("takes effect at the next start"), "{}", program.log());
    let call = Call::new("tools/list", &json!({})).send(program.clients, "/up/mcp").await;
    assert_eq!(call.status, 200, "{call:?}");
}
