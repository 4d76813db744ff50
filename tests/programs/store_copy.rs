//! `taskgate store copy`: the tasks of a gateway on disk that was killed are those of gateways on a database, under their ids, for
//! their owners, and nothing in the folder that they come from is changed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use support::ports::reserved_address;
use support::postgres::{self, PostgresServer};
use support::sample_task::working;
use support::scripted::in_time;
use support::subtask_server::{SubtaskServer, TOP};
use support::talk::SessionUser;
use taskgate::store::{DiskSettings, DiskStore, TaskStore as _};
use taskgate::task::{Principal, Task, Timestamp};
use tokio::process::Command;

use super::operations::program::{Call, Folder, Program, Worker, block};

const WORK: &str = "/desk/mcp";

/// Where a configuration on the database is, and what it is. Each test has a schema of its own.
fn database_file(home: &Path, database: &PostgresServer, schema: &str, upstreams: &str) -> String {
    let text = format!(
        "[store]\nkind = \"postgres\"\nurl = \"{}\"\nschema = \"{schema}\"\ndurability = \"single\"\nwrite_max = \"60s\"\n\
         path = {:?}\n[replica]\nname = \"a\"\nlease = \"4s\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [listen]\naddress = \"127.0.0.1:0\"\n{upstreams}",
        database.url(),
        home.join("shared"),
    );
    fs::create_dir_all(home.join("shared")).unwrap();
    let file = home.join("database.toml");
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    command.current_dir(home).args(["store", "copy"]).args(arguments).env("TASKGATE_LOG", "off").kill_on_drop(true);
    command
}

async fn copy(home: &Path, to: &str) -> Output {
    in_time(command(home, &["--from", "data", "--to", to]).output()).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let found = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    found.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// A client of 2025-11-25, in a session if it had one before.
async fn user(address: SocketAddr, before: Option<&SessionUser>) -> SessionUser {
    SessionUser::at(address, ("2025-11-25", &json!({"elicitation": {}})), before).await
}

/// Answers what has come until a task is done: a call is there to be answered a moment after it was seen.
async fn answered(worker: &Worker, gateway: &Program, id: &Value) {
    in_time(async {
        while gateway.status(WORK, id).await != "completed" {
            worker.answer_all();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Copies six tasks, and then what is left of them, which is nothing; says the right thing of the key each time.
async fn copied_twice(home: &Path, to: &str) {
    let before = files(&home.join("data"));
    let copied = copy(home, to).await;
    assert_eq!((copied.status.code(), text(&copied.stderr).as_str()), (Some(0), ""), "{copied:?}");
    let said = text(&copied.stdout);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("data: 6 tasks (4 unsettled, "), "{said}");
    assert!(lines[1].starts_with("copied: 6 tasks (4 unsettled, "), "{said}");
    assert!(lines[1].ends_with("; there already: 0; past their ttl: 0; not copied: 0"), "{said}");
    assert!(lines[2].starts_with("the database: 0 before, now 6 tasks (4 unsettled, "), "{said}");
    let key = home.join("shared/seal.key");
    let advice = "for each gateway, else clients' sessions and open questions end";
    assert_eq!(lines[3], format!("copy data/seal.key to {}, {advice}", key.display()));
    assert_eq!(lines[4], "start no gateway on data any more: it would go on with the same calls");
    assert!(files(&home.join("data")) == before, "nothing in the folder is changed");
    fs::copy(home.join("data/seal.key"), &key).unwrap();
    let again = copy(home, to).await;
    let said = text(&again.stdout);
    assert!(said.contains("\ncopied: 0 tasks (0 unsettled, 0 KiB); there already: 6;"), "{said}");
    assert!(said.contains(&format!("\n{}: opens clients' sessions and open questions\n", key.display())), "{said}");
    assert_eq!(again.status.code(), Some(0));
}

/// L1, L4: what the gateway on disk left is gone on with by one on the database, as by the next life of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_killed_gateway_are_found_and_gone_on_with_on_the_database() {
    let Some(database) = postgres::shared() else { return };
    let (worker, tree) = (Worker::start().await, SubtaskServer::start().await);
    let (work, trees) = (block("desk", &worker.server), block("tree", &tree.server));
    let upstreams = format!(
        "{work}[upstreams.desk.tasks]\nmode = \"always\"\n{trees}path = \"/mcp\"\n[upstreams.tree.tasks]\ndrafts = [\"sep-2268\"]\n"
    );
    let folder = Folder::on_disk();
    let home = folder.path();
    folder.write(&upstreams);
    let to = database_file(home, database, "moved_in", &upstreams);
    let mut gateway = Program::serve(&folder).await;
    let done = gateway.task(WORK, "done").await;
    worker.calls(1).await;
    answered(&worker, &gateway, &done).await;
    let running = gateway.task(WORK, "running").await;
    worker.calls(2).await;
    let person = user(gateway.clients, None).await;
    let top = person.start().await["taskId"].clone();
    tree.add(TOP, "ended");
    tree.add(TOP, "a");
    tree.add("a", "leaf");
    let below = in_time(person.children(&top, 2)).await;
    let leaf = in_time(person.children(&below[1], 1)).await.remove(0);
    tree.end("ended", "completed", &json!({"content": [], "n": 1}));
    person.until(&below[0], "completed").await;
    tree.ask("leaf", 7);
    person.until(&leaf, "input_required").await;

    let refused = copy(home, &to).await;
    assert_eq!(text(&refused.stderr), "taskgate: data: a gateway has the store open; end it first");
    assert_eq!((refused.status.code(), text(&refused.stdout).as_str()), (Some(75), ""));
    let schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'moved_in'";
    assert_eq!(database.psql(schemas), "0", "nothing was touched");
    assert_eq!(person.task(&leaf).await["status"], "input_required");

    gateway.signal("KILL");
    gateway.ended().await;
    copied_twice(home, &to).await;
    folder.write_whole(&fs::read_to_string(&to).unwrap());
    let gateway = Program::serve(&folder).await;
    assert_eq!(gateway.status(WORK, &done).await, "completed");
    // Its owner has it by its name, too.
    assert_eq!(gateway.task(WORK, "done").await, done);
    gateway.until(WORK, &running, "failed").await;
    assert_eq!(gateway.task(WORK, "running").await, running);
    let person = user(gateway.clients, Some(&person)).await;
    assert_eq!(in_time(person.children(&top, 2)).await, below);
    assert_eq!(in_time(person.children(&below[1], 1)).await, std::slice::from_ref(&leaf));
    assert_eq!(person.task(&below[0]).await["status"], "completed");
    assert_eq!(person.task(&leaf).await["parentTaskId"], below[1]);
    for id in ["leaf", "a", TOP] {
        tree.end(id, "completed", &json!({"content": []}));
    }
    person.until(&top, "completed").await;
    person.until(&leaf, "completed").await;
    assert_eq!((tree.server.world.count("tools/call"), worker.server.world.count("tools/call")), (1, 2));
    assert_eq!(tree.named_by("tasks/cancel"), Vec::<String>::new());
}

/// Gateways that are there take over what they get, and what they were given a second time stays as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_on_the_database_takes_over_what_comes_while_it_runs() {
    let Some(database) = postgres::shared() else { return };
    let worker = Worker::start().await;
    let upstreams = format!(
        "{}[upstreams.desk.tasks]\nmode = \"always\"\nafter_crash = \"rerun\"\n",
        block("desk", &worker.server)
    );
    let folder = Folder::on_disk();
    let home = folder.path();
    folder.write(&upstreams);
    let to = database_file(home, database, "moved_beside", &upstreams);
    let mut before = Program::serve(&folder).await;
    let id = before.task(WORK, "one").await;
    worker.calls(1).await;
    before.signal("KILL");
    before.ended().await;
    fs::copy(home.join("data/seal.key"), home.join("shared/seal.key")).unwrap();
    folder.write_whole(&fs::read_to_string(&to).unwrap());
    let gateway = Program::serve(&folder).await;
    assert_eq!(copy(home, &to).await.status.code(), Some(0));
    worker.calls(2).await;
    answered(&worker, &gateway, &id).await;
    let again = copy(home, &to).await;
    assert!(text(&again.stdout).contains("there already: 1;"), "{again:?}");
    assert_eq!(gateway.status(WORK, &id).await, "completed");
    let gets = Call::new("tasks/get", &json!({"taskId": id})).send(gateway.clients, WORK).await;
    assert_eq!(gets.json()["result"]["result"]["content"][0]["text"], "done", "{gets:?}");
    assert_eq!(worker.server.world.count("tools/call"), 2);
}

const ROWS: u128 = 600;

async fn many(home: &Path) {
    let mut settings = DiskSettings::new(home.join("data"), 1 << 30);
    settings.is_ephemeral = true;
    let store = DiskStore::open(settings).await.unwrap();
    // Made long ago, and there for longer.
    let (made, ttl) = (Timestamp::from_millis(1_700_000_000_000), Duration::from_secs(1 << 32));
    let tasks: Vec<_> = (1..=ROWS).map(|id| Task { ttl, ..working(Principal::local(), id, made) }).collect();
    for made in futures_util::future::join_all(tasks.iter().map(|task| store.insert(task))).await {
        made.unwrap();
    }
    store.close().await;
}

/// However it is ended, the next one goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_was_ended_is_run_again_and_goes_on() {
    let Some(database) = postgres::shared() else { return };
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    many(home).await;
    let to = database_file(home, database, "moved_twice", "[upstreams.work]\nurl = \"http://127.0.0.1:9/mcp\"\n");
    let before = files(&home.join("data"));
    let mut killed = command(home, &["--from", "data", "--to", &to]);
    let killed = in_time(killed.env("TASKGATE_FAILPOINT", "rows-copied:1").output()).await.unwrap();
    assert_eq!(killed.status.code(), None, "{killed:?}");
    let count = || database.psql("SELECT count(*) FROM moved_twice.tg_task").parse::<usize>().unwrap();
    let first = count();
    assert!(first > 0 && first < ROWS as usize, "{first}");

    // Its writes wait for somebody who has the table, so that it is not done when it is told to end.
    let lock = "BEGIN; LOCK moved_twice.tg_task IN SHARE MODE;
        DO $$ BEGIN FOR i IN 1..3000 LOOP
            EXIT WHEN EXISTS (SELECT FROM pg_class WHERE relname = 'unlocked'); PERFORM pg_sleep(0.02);
        END LOOP; END $$; COMMIT";
    let locker = std::thread::spawn(|| database.psql(lock));
    let waits = |sql: &'static str| async move {
        in_time(async {
            while database.psql(sql) == "0" {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    };
    waits("SELECT count(*) FROM pg_locks WHERE granted AND mode = 'ShareLock' AND relation = 'moved_twice.tg_task'::regclass").await;
    let mut stopped = command(home, &["--from", "data", "--to", &to]);
    let stopped = stopped.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    waits("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'moved_twice.tg_task'::regclass").await;
    assert!(support::processes::signal(stopped.id().unwrap(), "INT"));
    database.psql("CREATE TABLE moved_twice.unlocked ()");
    locker.join().unwrap();
    let stopped = in_time(stopped.wait_with_output()).await.unwrap();
    assert_eq!(text(&stopped.stderr), "taskgate: it was stopped; run it again, and it goes on");
    assert_eq!(stopped.status.code(), Some(75));
    let second = count();
    assert!(second >= first && second < ROWS as usize, "{second}");

    let done = copy(home, &to).await;
    let said = text(&done.stdout);
    let (left, rows) = (ROWS as usize - second, ROWS as usize);
    assert!(said.contains(&format!("\ncopied: {left} tasks ({left} unsettled, ")), "{said}");
    assert!(said.contains(&format!("; there already: {second}; past their ttl: 0; not copied: 0\n")), "{said}");
    assert!(said.contains(&format!("\nthe database: {second} before, now {rows} tasks ({rows} unsettled, ")), "{said}");
    assert_eq!((done.status.code(), count()), (Some(0), rows));
    assert!(files(&home.join("data")) == before, "nothing in the folder is changed");
}

/// What is missing or wrong: with which code it ends, and what it says.
#[tokio::test]
async fn a_mistake_is_named_and_nothing_is_written() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    many(home).await;
    fs::create_dir(home.join("empty")).unwrap();
    let rest = "[admin]\naddress = \"127.0.0.1:0\"\n[listen]\naddress = \"127.0.0.1:0\"\n\
                [upstreams.work]\nurl = \"http://127.0.0.1:9/mcp\"\n";
    let nobody = reserved_address().port();
    let url = format!("postgres://postgres@127.0.0.1:{nobody}/postgres?sslmode=disable");
    for (name, store) in [
        ("disk.toml", "kind = \"disk\"\npath = \"other\"".to_owned()),
        ("memory.toml", "kind = \"memory\"\npath = \"other\"".to_owned()),
        ("none.toml", "path = \"other\"".to_owned()),
        ("bare.toml", format!("kind = \"postgres\"\nurl = \"{url}\"\npath = \"other\"")),
        ("away.toml", format!("kind = \"postgres\"\nurl = \"{url}\"\ndurability = \"single\"\npath = \"other\"")),
        ("key.toml", format!("kind = \"postgres\"\nurl = \"{url}\"\ndurability = \"single\"\npath = \"bad\"")),
    ] {
        fs::write(home.join(name), format!("[store]\n{store}\n{rest}")).unwrap();
    }
    fs::create_dir(home.join("bad")).unwrap();
    fs::write(home.join("bad/seal.key"), "x").unwrap();
    let before = files(&home.join("data"));
    let kind = "key `store.kind`: is not \"postgres\", and tasks are copied into a database that gateways share";
    for (arguments, code, said) in [
        (vec![], 64, "Usage".to_owned()),
        (vec!["--from", "data"], 64, "--to".to_owned()),
        (vec!["--to", "away.toml"], 64, "--from".to_owned()),
        (vec!["--from", "data", "--to", "away.toml", "more"], 64, "more".to_owned()),
        (vec!["--from", "data", "--to", "nowhere.toml"], 64, "nowhere.toml: ".to_owned()),
        (vec!["--from", "data", "--to", "disk.toml"], 64, format!("disk.toml: {kind}")),
        (vec!["--from", "data", "--to", "memory.toml"], 64, format!("memory.toml: {kind}")),
        (vec!["--from", "data", "--to", "none.toml"], 64, format!("none.toml: {kind}")),
        (
            vec!["--from", "data", "--to", "bare.toml"],
            64,
            "bare.toml:2: key `store.kind`: a database needs `durability`".to_owned(),
        ),
        (vec!["--from", "data", "--to", "key.toml"], 64, "key.toml:5: key `store.path`: bad/seal.key: ".to_owned()),
        (vec!["--from", "nowhere", "--to", "away.toml"], 64, "taskgate: nowhere: No such file or directory".to_owned()),
        (vec!["--from", "disk.toml", "--to", "away.toml"], 64, "taskgate: disk.toml: not a directory".to_owned()),
        (vec!["--from", "empty", "--to", "away.toml"], 64, "taskgate: empty/tasks.db: is no task store".to_owned()),
        (
            vec!["--from", "data", "--to", "away.toml"],
            69,
            "away.toml: key `store.url`: the database cannot be used yet: ".to_owned(),
        ),
    ] {
        let refused = in_time(command(home, &arguments).output()).await.unwrap();
        let stderr = text(&refused.stderr);
        assert!(stderr.contains(&said), "{arguments:?}: {stderr}");
        assert_eq!(
            (refused.status.code(), text(&refused.stdout).as_str()),
            (Some(code), ""),
            "{arguments:?}: {stderr}"
        );
        assert!(!home.join("other").exists() && files(&home.join("data")) == before, "{arguments:?}");
        assert_eq!(fs::read_dir(home.join("empty")).unwrap().count(), 0);
    }
}
