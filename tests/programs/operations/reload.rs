//! The configuration, read again while calls run (F24, F66).

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use http::StatusCode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use support::session_client::call;
use tokio::process::Command;

use super::endpoint_reload::{client, listening};
use super::program::{Call, Folder, Program, Worker, block, send};
use super::upstream::{BodySender, Once, ScriptedServer, SeenRequest, in_time};

const APPLIED: &str = "taskgate_config_reloads_total{outcome=\"applied\"}";
const REJECTED: &str = "taskgate_config_reloads_total{outcome=\"rejected\"}";
const READ: &str = "the configuration was read again";

/// Sends a plain call in the background and waits until the server has it; `count` calls have come by then.
async fn held(worker: &Worker, program: &Program, path: &'static str, count: usize) -> tokio::task::JoinHandle<String> {
    let clients = program.clients;
    let call = tokio_util::task::TaskTracker::new().spawn(async move {
        Call::plain(&json!({})).send(clients, path).await.json()["result"]["content"][0]["text"].to_string()
    });
    worker.calls(count).await;
    call
}

#[tokio::test]
async fn a_changed_file_is_put_in_force_and_no_held_call_notices() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    let program = Program::serve(&folder).await;
    let call = held(&worker, &program, "/up/mcp", 1).await;
    let task = program.task("/up/mcp", "k").await;
    worker.calls(2).await;
    assert_eq!(Call::plain(&json!({})).send(program.clients, "/new/mcp").await.status, 404);
    let before = worker.sessions_opened();

    folder.write(&(block("up", &worker.server) + &block("new", &worker.server)));
    program.says(READ, 1).await;
    let fresh = held(&worker, &program, "/new/mcp", 3).await;
    assert!(program.log().contains("\"opened\":1,\"kept\":1,\"retired\":0"), "{}", program.log());
    assert_eq!(worker.sessions_opened(), before + 1, "an upstream that is as it was keeps its session");
    worker.answer_all();
    for call in [call, fresh] {
        assert_eq!(in_time(call).await.unwrap(), "\"done\"");
    }
    program.until("/up/mcp", &task, "completed").await;
    assert_eq!((program.counted(APPLIED).await, program.counted(REJECTED).await), (1, 0));
}

/// A rule with a typing error in its name would have no effect without a warning.
#[tokio::test]
async fn a_rule_that_fits_no_tool_is_told_of_once_at_the_first_list_and_after_a_reload() {
    const TOLD: &str = "a tool rule matches no tool of the server";
    let (worker, folder) = (Worker::start().await, Folder::new());
    let rule = |pattern: &str, keys: &str| format!("[[upstreams.up.tools]]\nmatch = \"{pattern}\"\n{keys}\n");
    folder.write(&(block("up", &worker.server) + &rule("wrok", "grace = \"1s\"") + &rule("w*", "grace = \"3s\"")));
    let program = Program::serve(&folder).await;
    let list = || async { Call::new("tools/list", &json!({})).send(program.clients, "/up/mcp").await.json() };
    assert!(!program.log().contains(TOLD), "before anything was listed: {}", program.log());
    for _ in 0..2 {
        assert_eq!(list().await["result"]["tools"][0]["name"], "work");
    }
    program.says(TOLD, 1).await;
    let told = |log: &str, pattern: &str| {
        let is_meant =
            |line: &&str| line.contains(TOLD) && line.contains("\"upstream\":\"up\"") && line.contains(pattern);
        log.lines().filter(is_meant).count()
    };
    assert_eq!(told(&program.log(), "\"pattern\":\"wrok\""), 1, "{}", program.log());

    // Where tools are hidden or renamed, a rule is about the server's own names.
    let rules = rule("secret", "hide = true") + &rule("work", "rename = \"job\"") + &rule("job", "grace = \"1s\"");
    folder.write(&(block("up", &worker.server) + &rules));
    program.says(READ, 1).await;
    for _ in 0..2 {
        assert_eq!(list().await["result"]["tools"][0]["name"], "job");
    }
    program.says(TOLD, 3).await;
    let log = program.log();
    assert_eq!(log.matches(TOLD).count(), 3, "{log}");
    assert_eq!((told(&log, "\"pattern\":\"secret\""), told(&log, "\"pattern\":\"job\"")), (1, 1), "{log}");
}

/// B166, F66.
#[tokio::test]
async fn a_bad_file_leaves_the_old_one_in_force_and_says_why() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    let program = Program::serve(&folder).await;
    for (round, (text, why)) in [
        ("[upstreams.up]\nurl = 7\n", "upstreams.up.url"),
        ("nonsense", "key with no value"),
        (
            "[upstreams.up]\nurl = \"https://localhost:1/mcp\"\n[upstreams.up.tls]\nca = \"nowhere.pem\"\n",
            "nowhere.pem",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        folder.write_whole(text);
        program.says("the one in force is kept", round + 1).await;
        assert!(program.log().lines().last().unwrap().contains(why), "{}", program.log());
    }
    assert_eq!(program.counted(REJECTED).await, 3);
    let call = held(&worker, &program, "/up/mcp", 1).await;
    worker.answer_all();
    assert_eq!(in_time(call).await.unwrap(), "\"done\"");
    // And the next good one is put in force.
    folder.write(&block("other", &worker.server));
    program.says(READ, 1).await;
    assert_eq!(program.counted(APPLIED).await, 1);
}

/// F66: its tasks finish and are read where they were; nothing new begins; in the end its session is closed.
#[tokio::test]
async fn f66_tasks_of_an_upstream_that_is_gone_finish_and_are_read() {
    let (worker, other, folder) = (Worker::start().await, Worker::start().await, Folder::new());
    folder.write(&(block("up", &worker.server) + &block("other", &other.server)));
    let program = Program::serve(&folder).await;
    let task = program.task("/up/mcp", "k").await;
    worker.calls(1).await;
    folder.write(&block("other", &other.server));
    program.says(READ, 1).await;
    program.says("\"unsettled_tasks\":1", 1).await;
    assert_eq!(Call::plain(&json!({})).send(program.clients, "/up/mcp").await.status, 404);
    let named = Call::new("tools/call", &json!({"name": "work", "arguments": {}}));
    assert_eq!(named.send(program.clients, "/up/mcp").await.status, 404);
    assert_eq!(Call::new("server/discover", &json!({})).send(program.clients, "/up/mcp").await.status, 404);
    assert_eq!(program.status("/up/mcp", &task).await, "working");
    assert!(worker.server.world.all(|seen| seen.method == "DELETE").is_empty(), "its session is in use");
    worker.answer_all();
    program.until("/up/mcp", &task, "completed").await;
    worker.server.world.first(|seen| seen.method == "DELETE").await;
    assert_eq!(program.status("/up/mcp", &task).await, "completed", "and after that too");
}

/// F24, F66: running calls end at their own server, new calls go to the other one.
#[tokio::test]
async fn f24_an_upstream_that_moved_is_called_at_its_new_place_only_by_new_calls() {
    let (old, new, folder) = (Worker::start().await, Worker::start().await, Folder::new());
    folder.write(&block("up", &old.server));
    let program = Program::serve(&folder).await;
    let first = held(&old, &program, "/up/mcp", 1).await;
    let task = program.task("/up/mcp", "k").await;
    old.calls(2).await;
    folder.write(&block("up", &new.server));
    program.says(READ, 1).await;
    let second = held(&new, &program, "/up/mcp", 1).await;
    new.answer_all();
    assert_eq!(in_time(second).await.unwrap(), "\"done\"");
    assert_eq!(program.status("/up/mcp", &task).await, "working");
    old.answer_all();
    assert_eq!(in_time(first).await.unwrap(), "\"done\"");
    program.until("/up/mcp", &task, "completed").await;
    assert_eq!((old.server.world.count("tools/call"), new.server.world.count("tools/call")), (2, 1));
    old.server.world.first(|seen| seen.method == "DELETE").await;
}

/// F24, F66: one task alone keeps an upstream that was replaced, and the session that it runs in.
#[tokio::test]
async fn f24_an_upstream_that_moved_is_not_let_go_of_before_its_last_task_ends() {
    let (old, new, folder) = (Worker::start().await, Worker::start().await, Folder::new());
    folder.write(&block("up", &old.server));
    let program = Program::serve(&folder).await;
    let task = program.task("/up/mcp", "k").await;
    old.calls(1).await;
    folder.write(&block("up", &new.server));
    program.says(READ, 1).await;
    let ended = old.server.world.first(|seen| seen.method == "DELETE");
    assert!(tokio::time::timeout(Duration::from_secs(3), ended).await.is_err(), "it was ended");
    assert!(!program.log().contains("sessions were closed"), "{}", program.log());
    old.answer_all();
    program.until("/up/mcp", &task, "completed").await;
    old.server.world.first(|seen| seen.method == "DELETE").await;
}

fn at_one_path(server: &ScriptedServer) -> String {
    block("up", server) + "path = \"/mcp\"\n"
}

/// A removed server reaches no client any more, and a client that listens learns that it must listen to the new one.
#[tokio::test]
async fn f115_streams_of_a_server_that_moved_or_was_removed_end() {
    for is_moved in [true, false] {
        let (worker, other, folder) = (Worker::start().await, Worker::start().await, Folder::new());
        *worker.server.world.initialize_result.lock() = json!({"capabilities": {"tools": {"listChanged": true}}});
        folder.write(&at_one_path(&worker.server));
        let program = Program::serve(&folder).await;
        let client = client(&program).opened("2025-11-25").await;
        let (own_stream, listening) = (client.get(None).await, listening(&client).await);
        folder.write(&if is_moved { at_one_path(&other.server) } else { block("other", &other.server) });
        program.says(READ, 1).await;
        assert!(in_time(own_stream.try_text()).await.is_some(), "its end is in order");
        let last = in_time(listening.text()).await;
        assert!(last.contains("\"id\":8") && last.contains("\"result\""), "the result of listening: {last}");
        let status = if is_moved { StatusCode::OK } else { StatusCode::NOT_FOUND };
        assert_eq!(client.get(None).await.status, status);
    }
}

/// F115: the server closes the stream of a call on purpose, and the client comes back for the result after the server was removed.
#[tokio::test]
async fn f115_a_call_at_a_removed_server_is_resumed_until_it_ends() {
    let (events, rest) = Once::events();
    let server = ScriptedServer::start(move |seen| match (seen.method == "GET", seen.is_call()) {
        (true, _) => rest.take(),
        (_, true) => {
            let (events, reply) = BodySender::open();
            events.raw("id: e-1\nretry: 10\ndata:\n\n");
            Some(reply)
        }
        (false, false) => None,
    })
    .await;
    let (other, folder) = (Worker::start().await, Folder::new());
    folder.write(&at_one_path(&server));
    let program = Program::serve(&folder).await;
    let client = client(&program).opened("2025-11-25").await;
    assert_eq!(client.post(call(1)).await.text().await, "id: e-1\nretry: 10\ndata:\n\n");
    folder.write(&block("other", &other.server));
    program.says(READ, 1).await;
    let mut resumed = client.get(Some("e-1")).await;
    assert_eq!(resumed.status, StatusCode::OK);
    events.raw("id: e-2\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\":1}}\n\n");
    assert!(resumed.until("\n\n").await.contains("\"n\":1"));
    program.says("it was removed", 1).await;
    assert_eq!(client.get(Some("e-2")).await.status, StatusCode::NOT_FOUND);
}

/// F66: calls at the new path do not count for the old upstream, although both have one name and share its permits.
#[tokio::test]
async fn f66_an_upstream_at_another_path_is_let_go_of_beside_calls_at_the_new_one() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&at_one_path(&worker.server));
    let program = Program::serve(&folder).await;
    let _session = client(&program).opened("2025-11-25").await;
    folder.write(&block("up", &worker.server));
    program.says(READ, 1).await;
    let call = held(&worker, &program, "/up/mcp", 1).await;
    program.says("it was removed", 1).await;
    worker.answer_all();
    assert_eq!(in_time(call).await.unwrap(), "\"done\"");
}

/// SEC-81: else a program would start again. With another status than 202 some clients end.
#[tokio::test]
async fn sec_81_no_message_of_a_client_reaches_a_removed_server_once_it_is_closed() {
    let (worker, other, folder) = (Worker::start().await, Worker::start().await, Folder::new());
    folder.write(&at_one_path(&worker.server));
    let program = Program::serve(&folder).await;
    let client = client(&program).opened("2025-11-25").await;
    let note = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}).to_string();
    let is_note = |seen: &SeenRequest| seen.rpc() == "notifications/roots/list_changed";
    assert_eq!(client.post(note.clone()).await.status, StatusCode::ACCEPTED);
    worker.server.world.first(is_note).await;
    folder.write(&block("other", &other.server));
    program.says("it was removed", 1).await;
    let answer = json!({"jsonrpc": "2.0", "id": "unasked", "result": {}}).to_string();
    for message in [note, answer] {
        assert_eq!(client.post(message).await.status, StatusCode::ACCEPTED);
    }
    let seen = worker.server.world.all(|seen| is_note(seen) || seen.body["id"] == "unasked");
    assert_eq!(seen.len(), 1, "{seen:?}");
}

/// The subscription was acknowledged, and the session goes on.
#[tokio::test]
async fn f117_subscriptions_of_a_session_outlive_a_change_of_its_upstream() {
    let (worker, other, folder) = (Worker::start().await, Worker::start().await, Folder::new());
    for one in [&worker, &other] {
        *one.server.world.initialize_result.lock() =
            json!({"capabilities": {"tools": {}, "resources": {"subscribe": true}}});
    }
    folder.write(&at_one_path(&worker.server));
    let program = Program::serve(&folder).await;
    let client = client(&program).opened("2025-11-25").await;
    let request =
        |method: &str, params| json!({"jsonrpc": "2.0", "id": 5, "method": method, "params": params}).to_string();
    let subscribed = client.post(request("resources/subscribe", json!({"uri": "a:b"}))).await;
    assert_eq!(subscribed.status, StatusCode::OK);
    folder.write(&at_one_path(&other.server));
    program.says(READ, 1).await;
    assert_eq!(client.post(request("tools/list", json!({}))).await.status, StatusCode::OK);
    let again = other.server.world.first(|seen| seen.rpc() == "resources/subscribe").await;
    assert_eq!(again.body["params"]["uri"], "a:b");
}

/// Rules, bounds and names too; a change that needs a start is logged.
#[tokio::test]
async fn rules_and_bounds_hold_from_the_reload_on_and_addresses_from_the_next_start() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    let program = Program::serve(&folder).await;
    let host = |name: &'static str| {
        let mut call = Call::new("tools/call", &json!({"name": "work", "arguments": {}}));
        call.headers.push(("host", name.to_owned()));
        call
    };
    assert_eq!(host("gate.example").send(program.clients, "/up/mcp").await.status, 403);
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:1\"\nallowed_hosts = [\"gate.example\"]\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [limits]\ntasks_max = 1\ntasks_per_principal_max = 1\n[store]\nkind = \"memory\"\npath = \"{}\"\n{}\
         [upstreams.up.tasks]\nmode = \"always\"\n",
        folder.path().join("data").display(),
        block("up", &worker.server)
    );
    folder.write_whole(&text);
    program.says(READ, 1).await;
    assert!(program.log().contains("\"key\":\"listen.address\""), "{}", program.log());
    let first = host("gate.example").send(program.clients, "/up/mcp").await;
    assert_eq!(first.json()["result"]["resultType"], "task", "{first:?}");
    let second = host("gate.example").send(program.clients, "/up/mcp").await;
    assert_eq!((second.status, &second.json()["error"]["data"]["reason"]), (429, &json!("too_many_tasks")));

    assert_eq!(program.counted(APPLIED).await, 1);
}

/// F66: many signals are few readings, and none of them is lost at the end.
#[tokio::test]
async fn f66_many_signals_are_few_readings() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    let program = Program::serve(&folder).await;
    let call = held(&worker, &program, "/up/mcp", 1).await;
    // By hand: with a process for each they would take seconds, and there may be a reading a second.
    let id = i32::try_from(program.id()).ok().and_then(Pid::from_raw).unwrap();
    for _ in 0..100 {
        kill_process(id, Signal::HUP).unwrap();
    }
    program.says(READ, 1).await;
    program.signal("HUP");
    program.says(READ, 2).await;
    let read = program.log().matches(READ).count();
    assert!(read <= 4, "{read} readings");
    worker.answer_all();
    assert_eq!(in_time(call).await.unwrap(), "\"done\"");
}

/// A changed file beside it, and a rewrite with the same content, are no change.
#[tokio::test]
async fn an_unchanged_file_is_not_read_again() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    let program = Program::serve(&folder).await;
    for n in 0..3 {
        fs::write(folder.path().join("notes.txt"), n.to_string()).unwrap();
        folder.write(&block("up", &worker.server));
    }
    folder.write(&(block("up", &worker.server) + "[upstreams.up.tasks]\nttl = \"2h\"\n"));
    program.says(READ, 1).await;
    assert_eq!((program.log().matches(READ).count(), program.counted(APPLIED).await), (1, 1));
}

/// A likely mistake is logged once, not at each reading of the file, and again when it changes.
#[tokio::test]
async fn warnings_are_told_once_and_again_when_they_differ() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    let warning = |ttl: &str| {
        format!("{}deadline = \"2h\"\n[upstreams.up.tasks]\nttl = \"{ttl}\"\n", block("up", &worker.server))
    };
    folder.write(&warning("1h"));
    let program = Program::serve(&folder).await;
    let told = |program: &Program| program.log().lines().filter(|line| line.contains("upstreams.up.tasks.ttl")).count();
    program.says("upstreams.up.tasks.ttl", 1).await;
    assert_eq!(told(&program), 1, "{}", program.log());
    for round in 1..=2 {
        program.signal("HUP");
        program.says(READ, round).await;
    }
    assert_eq!(told(&program), 1, "{}", program.log());
    folder.write(&warning("30m"));
    program.says(READ, 3).await;
    assert_eq!(told(&program), 2, "{}", program.log());
}

/// A listener that stays open to all must not treat each client as the one local user, though the new file names a
/// loopback address: that takes effect at the next start alone.
#[tokio::test]
async fn a_reload_takes_no_credentials_away_from_a_listener_that_is_open() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    let text = |listen: &str| {
        let store = folder.path().join("data");
        let upstream = block("up", &worker.server);
        format!(
            "[admin]\naddress = \"127.0.0.1:0\"\n[store]\nkind = \"memory\"\npath = \"{}\"\n{listen}\n{upstream}",
            store.display()
        )
    };
    folder.write_whole(&text("[listen]\naddress = \"0.0.0.0:0\"\n[auth]\nanonymous = true"));
    let program = Program::serve(&folder).await;
    folder.write_whole(&text("[listen]\naddress = \"127.0.0.1:0\""));
    program.says("the one in force is kept", 1).await;
    assert!(program.log().contains("other machines can reach 0.0.0.0:"), "{}", program.log());
    assert_eq!(program.counted(REJECTED).await, 1);
}

/// However often an upstream's settings change, the calls that run there count.
#[tokio::test]
async fn a_changed_upstream_has_no_more_places_than_its_bound() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    let with = |places: u32, deadline: &str| {
        let block = block("up", &worker.server);
        folder.write(&format!("{block}in_flight_max = {places}\nqueue_max = 0\ndeadline = \"{deadline}\"\n"));
    };
    with(2, "1h");
    let program = Program::serve(&folder).await;
    let mut calls = vec![held(&worker, &program, "/up/mcp", 1).await, held(&worker, &program, "/up/mcp", 2).await];
    let refused = async || {
        let answer = Call::plain(&json!({})).send(program.clients, "/up/mcp").await;
        assert_eq!(answer.json()["error"]["data"]["reason"], "queue_full", "{answer:?}");
    };
    refused().await;
    for (round, minutes) in (1..).zip(["50m", "40m", "30m"]) {
        with(2, minutes);
        program.says(READ, round).await;
        refused().await;
    }
    with(3, "1h");
    program.says(READ, 4).await;
    calls.push(held(&worker, &program, "/up/mcp", 3).await);
    refused().await;
    worker.answer_all();
    for call in calls {
        assert_eq!(in_time(call).await.unwrap(), "\"done\"");
    }
}

/// One line for each reason, at any number of refusals, with the key to write and the refused value, printable and cut.
#[tokio::test]
async fn a_refusal_that_a_key_decides_is_told_once_with_that_key() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    folder.write(&block("up", &worker.server));
    let program = Program::serve(&folder).await;
    let long = "x".repeat(3_000);
    for _ in 0..3 {
        for (path, header, value) in [
            ("/up/mcp", "host", "evil.example"),
            ("/up/mcp", "origin", "http://evil.example/\u{e9}"),
            (&format!("/{long}"), "x-other", "1"),
        ] {
            let status = send(program.clients, "GET", path, &[(header, value)], "").await.status;
            assert!([403, 404].contains(&status), "{path} {status}");
        }
    }
    program.says("upstreams.NAME.path", 1).await;
    let log = program.log();
    for (key, shown) in [
        ("listen.allowed_hosts", "evil.example"),
        ("listen.allowed_origins", "http://evil.example/"),
        ("upstreams.NAME.path", &format!("/{}\u{2026}", "x".repeat(99))),
    ] {
        let lines: Vec<_> = log.lines().filter(|line| line.contains(key)).collect();
        assert_eq!(lines.len(), 1, "{log}");
        assert!(lines[0].contains("WARN") && lines[0].contains(shown), "{log}");
    }
    assert!(!log.contains(&long), "{log}");
}

/// A program that still runs a call of a replaced upstream counts against the new limit; an idle one makes room.
#[tokio::test]
async fn processes_of_a_replaced_upstream_count_until_they_end() {
    let folder = Folder::new();
    let program = env!("CARGO_BIN_EXE_taskgate");
    let write = |processes_max: usize, grace: usize| {
        folder.write(&format!(
            "[upstreams.up]\ncommand = {program:?}\nargs = [\"demo-server\"]\nprocesses_max = {processes_max}\n\
             [upstreams.up.tasks]\ngrace = \"{grace}s\"\nmode = \"always\"\n"
        ));
    };
    write(2, 1);
    let program = Program::serve(&folder).await;
    let clients = program.clients;
    let greeted = || async {
        let greet = json!({"name": "greet", "arguments": {"name": "you"}});
        Call::declaring("tools/call", &greet, &json!({})).send(clients, "/up/mcp").await.json()
    };
    let until_greeted = || async {
        in_time(async {
            while greeted().await.get("result").is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    };
    let open = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "idle", "version": "1"}}});
    let headers = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    assert_eq!(send(clients, "POST", "/up/mcp", &headers, &open.to_string()).await.status, 200);
    let slow = json!({"name": "slow_report", "arguments": {"seconds": 600}});
    let task = in_time(async {
        loop {
            let mut made = Call::new("tools/call", &slow).send(clients, "/up/mcp").await.json();
            let task = made["result"]["taskId"].take();
            if task.is_string() {
                return task;
            }
            // On a busy machine, a process that was only asked for its version has not ended yet.
            assert_eq!(made["error"]["data"]["reason"], "queue_full", "{made}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;

    write(2, 2);
    program.says(READ, 1).await;
    until_greeted().await;
    write(1, 3);
    program.says(READ, 2).await;
    let refused = greeted().await;
    assert_eq!(refused["error"]["data"]["reason"], "queue_full", "{refused}");
    write(2, 3);
    program.says(READ, 3).await;
    until_greeted().await;
    assert_eq!(program.status("/up/mcp", &task).await, "working");
}

/// A team's file of keys, exchanged as its owner does, while the configuration itself stays as it is.
#[tokio::test]
async fn a_changed_file_of_keys_is_put_in_force_and_a_bad_one_changes_nothing() {
    const OLD: &str = "tg_team1_0011223344556677889900aabbccddee";
    const NEW: &str = "tg_team2_ffeeddccbbaa00998877665544332211";
    let (worker, folder) =
        (Worker::start().await, Folder::with("[auth]\nmode = \"api_keys\"\napi_key_files = [\"teams/a.toml\"]"));
    fs::create_dir(folder.path().join("teams")).unwrap();
    let keys = |text: String| {
        let draft = folder.path().join("teams/draft");
        fs::write(&draft, text).unwrap();
        fs::set_permissions(&draft, Permissions::from_mode(0o600)).unwrap();
        fs::rename(draft, folder.path().join("teams/a.toml")).unwrap();
    };
    let block_of = |key: &str, more: &str| format!("[[auth.api_keys]]\nid = \"team-a\"\nkey = \"{key}\"\n{more}\n");
    keys(block_of(OLD, ""));
    folder.write(&block("up", &worker.server));
    let program = Program::serve(&folder).await;
    let asked = async |key: &str| status_for(&program, key).await;
    assert_eq!((asked(OLD).await, asked(NEW).await), (200, 401));
    keys(block_of(OLD, "") + &block_of(NEW, ""));
    program.says(READ, 1).await;
    assert_eq!((asked(OLD).await, asked(NEW).await), (200, 200));
    keys(block_of(NEW, "upstreams = [\"down\"]"));
    program.says("the one in force is kept", 1).await;
    let why = "teams/a.toml:4: key `auth.api_keys[0].upstreams[0]`: there is no upstream";
    assert!(program.log().contains(why), "{}", program.log());
    assert_eq!((asked(OLD).await, asked(NEW).await), (200, 200), "the one in force is kept");
    keys(block_of(NEW, ""));
    program.says(READ, 2).await;
    assert_eq!((asked(OLD).await, asked(NEW).await), (401, 200));
    assert!(!program.log().contains("tg_team"), "no key is logged");
}

/// The status of a request with this key.
async fn status_for(program: &Program, key: &str) -> u16 {
    let mut ask = Call::new("tools/list", &json!({}));
    ask.headers.push(("x-taskgate-key", key.to_owned()));
    ask.send(program.clients, "/up/mcp").await.status
}

#[tokio::test]
async fn a_changed_file_of_variables_is_put_in_force() {
    const OLD: &str = "tg_ada1_0011223344556677889900aabbccddee";
    const NEW: &str = "tg_ada2_ffeeddccbbaa00998877665544332211";
    let key = "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"${ADA_KEY}\"";
    let (worker, folder) = (Worker::start().await, Folder::with(key));
    let variables = |key: &str| {
        let draft = folder.path().join("draft.env");
        fs::write(&draft, format!("ADA_KEY={key}\n")).unwrap();
        fs::set_permissions(&draft, Permissions::from_mode(0o600)).unwrap();
        fs::rename(draft, folder.path().join("taskgate.env")).unwrap();
    };
    variables(OLD);
    folder.write(&block("up", &worker.server));
    let text = fs::read_to_string(folder.path().join("taskgate.toml")).unwrap();
    folder.write_whole(&format!("env_files = [\"taskgate.env\"]\n{text}"));
    let program = Program::serve(&folder).await;
    let asked = async |key: &str| status_for(&program, key).await;
    assert_eq!((asked(OLD).await, asked(NEW).await), (200, 401));
    variables(NEW);
    program.says(READ, 1).await;
    assert_eq!((asked(OLD).await, asked(NEW).await), (401, 200));
    assert!(!program.log().contains("tg_ada"), "no value is logged");
}

/// Configurations that differ in a key.
fn with_grace(folder: &Folder, worker: &Worker, seconds: usize) -> String {
    folder.text(&format!("{}tasks.grace = \"{seconds}s\"\n", block("up", &worker.server)))
}

#[tokio::test]
async fn a_change_of_the_file_that_the_configuration_is_a_link_to_is_put_in_force() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    let target = folder.path().join("kept/real.toml");
    fs::create_dir(folder.path().join("kept")).unwrap();
    fs::write(&target, with_grace(&folder, &worker, 1)).unwrap();
    symlink("kept/real.toml", folder.path().join("taskgate.toml")).unwrap();
    let program = Program::serve(&folder).await;
    for change in 1..=2 {
        fs::write(&target, with_grace(&folder, &worker, 1 + change)).unwrap();
        program.says(READ, change).await;
    }
}

/// As the kubelet does it: a link leads to another folder, and the former one is removed.
#[tokio::test]
async fn an_updated_config_map_is_put_in_force_without_a_warning() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    let at = folder.path();
    let update = |seconds: usize| {
        let next = at.join(format!("..{seconds}"));
        fs::create_dir(&next).unwrap();
        fs::write(next.join("taskgate.toml"), with_grace(&folder, &worker, seconds)).unwrap();
        symlink(&next, at.join("..data_tmp")).unwrap();
        fs::rename(at.join("..data_tmp"), at.join("..data")).unwrap();
    };
    update(1);
    symlink("..data/taskgate.toml", at.join("taskgate.toml")).unwrap();
    let program = Program::serve(&folder).await;
    for change in 1..=3 {
        update(1 + change);
        fs::remove_dir_all(at.join(format!("..{change}"))).unwrap();
        program.says(READ, change).await;
    }
    assert!(!program.log().contains("inotify"), "{}", program.log());
}

#[tokio::test]
async fn a_change_in_a_folder_that_took_the_place_of_the_configurations_is_put_in_force() {
    let (worker, folder) = (Worker::start().await, Folder::new());
    let (own, next) = (folder.path().join("own"), folder.path().join("next"));
    for (at, seconds) in [(&own, 1), (&next, 2)] {
        fs::create_dir(at).unwrap();
        fs::write(at.join("taskgate.toml"), with_grace(&folder, &worker, seconds)).unwrap();
    }
    let mut command = Command::new(support::taskgate());
    command.env_remove("TASKGATE_LOG").args(["serve", "--config"]).arg(own.join("taskgate.toml"));
    let program = Program::launch(command).await;
    fs::rename(&own, folder.path().join("former")).unwrap();
    fs::rename(&next, &own).unwrap();
    program.signal("HUP");
    program.says(READ, 1).await;
    fs::write(own.join("taskgate.toml"), with_grace(&folder, &worker, 3)).unwrap();
    program.says(READ, 2).await;
}
