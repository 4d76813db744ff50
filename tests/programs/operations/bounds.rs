//! The bounds of one principal: a refusal names its bound, and the log names the principal once a minute.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::program::{Call, Folder, Program, Worker, block};
use super::upstream::{ScriptedServer, answer, in_time};

/// A bound: the id of its key, its setting, and the reason and keys that a refusal names.
const BOUNDS: [(&str, &str, &str, &str); 6] = [
    ("asks", "requests_per_second = 1, requests_burst = 1", "rate_limited", "requests_per_second"),
    ("polls", "polls_per_task = 1", "rate_limited", "polls_per_task"),
    ("tasks", "tasks_per_principal_max = 1", "too_many_tasks", "tasks_per_principal_max"),
    ("bytes", "stored_bytes_per_principal_max = \"1B\"", "too_much_stored", "stored_bytes_per_principal_max"),
    ("streams", "streams_per_principal_max = 1", "too_many_listeners", "streams_per_principal_max"),
    ("places", "permits_percent_max = 1", "queue_full", "permits_percent_max"),
];

fn key(id: &str) -> String {
    format!("tg_{id}_0011223344556677889900aabbccddee")
}

fn with_key(mut ask: Call, id: &str) -> Call {
    ask.headers.push(("x-taskgate-key", key(id)));
    ask
}

fn call(id: &str) -> Call {
    with_key(Call::new("tools/call", &json!({"name": "work", "arguments": {}})), id)
}

/// Sends a request whose answer does not end; dropping the connection ends it.
async fn open(program: &Program, ask: &Call) -> TcpStream {
    let mut socket = TcpStream::connect(program.clients).await.unwrap();
    socket.write_all(&ask.bytes("/up/mcp")).await.unwrap();
    let (mut read, mut text) = ([0; 4096], String::new());
    while !text.contains("data:") {
        let count = in_time(socket.read(&mut read)).await.unwrap();
        assert!(count > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&read[..count]));
    }
    socket
}

#[tokio::test]
async fn every_refusal_names_its_bound_and_the_log_names_the_principal() {
    let mut head = "[auth]\nmode = \"api_keys\"\n".to_owned();
    for (id, limits, ..) in BOUNDS {
        head += &format!("[[auth.api_keys]]\nid = \"{id}\"\nkey = \"{}\"\nlimits = {{ {limits} }}\n", key(id));
    }
    let (worker, folder) = (Worker::start().await, Folder::with(&head));
    let tasks = "[upstreams.up.tasks]\nmode = \"always\"\n";
    let narrow = block("narrow", &worker.server) + "in_flight_max = 1\nqueue_max = 4\n";
    folder.write(&(block("up", &worker.server) + tasks + &narrow));
    let program = Program::serve(&folder).await;
    let ask = async |ask: &Call| ask.send(program.clients, "/up/mcp").await.json();
    let mut listen = with_key(Call::new("subscriptions/listen", &json!({"notifications": {}})), "streams");
    let accept = listen.headers.iter_mut().find(|(name, _)| *name == "accept").unwrap();
    accept.1 = "application/json, text/event-stream".to_owned();
    let _stream = open(&program, &listen).await;
    let made = ask(&call("polls")).await["result"]["taskId"].clone();
    let poll = with_key(Call::new("tasks/get", &json!({"taskId": made})), "polls");
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let mut socket = TcpStream::connect(program.clients).await.unwrap();
        let plain = with_key(Call::plain(&json!({})), "places");
        socket.write_all(&plain.bytes("/narrow/mcp")).await.unwrap();
        waiting.push(socket);
    }
    // One is at the server, and one in the queue.
    in_time(async {
        while program.counted("taskgate_upstream_queued{upstream=\"narrow\"}").await < 1 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
    'bounds: for (id, limits, reason, named) in BOUNDS {
        let (mut refused, mut tried, begun) = (Vec::<Value>::new(), 0, Instant::now());
        // The third refusal of a kind shows that the log has only the first.
        while refused.len() < 3 {
            let answer = match id {
                "asks" => ask(&with_key(Call::new("tools/list", &json!({})), id)).await,
                "polls" => ask(&poll).await,
                "streams" => ask(&listen).await,
                "places" => {
                    let plain = with_key(Call::plain(&json!({})), id);
                    plain.send(program.clients, "/narrow/mcp").await.json()
                }
                _ => ask(&call(id)).await,
            };
            if answer["error"].is_object() {
                refused.push(answer["error"].clone());
            }
            tried += 1;
            // 51 polls a second are served: a machine that sends hardly more reaches no bound.
            if id == "polls" && tried > 400 && f64::from(tried) < 60.0 * begun.elapsed().as_secs_f64() {
                continue 'bounds;
            }
            assert!(tried < 2_000, "{limits} is never met");
        }
        for error in &refused {
            assert_eq!(
                (&error["data"]["reason"], &error["data"]["executed"]),
                (&json!(reason), &json!("no")),
                "{limits}"
            );
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(&format!("`{named}`")), "{limits}: {message}");
        }
        let is_told = |line: &&str| {
            line.contains(&format!("\"key\":\"{named}\"")) && line.contains(&format!("\"principal\":\"{id}\""))
        };
        // Another thread of the program writes the log: the line may come after the refusal.
        program.says(&format!("\"principal\":\"{id}\""), 1).await;
        let log = program.log();
        let told: Vec<_> = log.lines().filter(is_told).collect();
        assert_eq!(told.len(), 1, "{limits}: {told:?}\n{log}");
    }
    assert!(!program.log().contains("0011223344556677"), "no key is logged");
}

/// A call that only stays plain is no refusal; one that finds a full queue is refused by the bound of the queue, and not by another.
#[tokio::test]
async fn a_refusal_is_told_with_the_bound_that_decides_and_a_plain_call_is_none() {
    let head = format!(
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{}\"\n\
         limits = {{ tasks_per_principal_max = 1, permits_percent_max = 100 }}\n",
        key("ada")
    );
    let (worker, folder) = (Worker::start().await, Folder::with(&head));
    let tasks = "[upstreams.up.tasks]\ngrace = \"100ms\"\n";
    folder.write(
        &(block("up", &worker.server) + "in_flight_max = 2\nqueue_max = 0\narguments_bytes_max = \"100B\"\n" + tasks),
    );
    let program = Program::serve(&folder).await;
    let made = call("ada").send(program.clients, "/up/mcp").await.json();
    assert!(made["result"]["taskId"].is_string(), "{made}");
    let mut plain = TcpStream::connect(program.clients).await.unwrap();
    plain.write_all(&call("ada").bytes("/up/mcp")).await.unwrap();
    worker.calls(2).await;
    for _ in 0..3 {
        let refused = call("ada").send(program.clients, "/up/mcp").await.json();
        assert_eq!(refused["error"]["data"]["reason"], "queue_full", "{refused}");
    }
    let long = json!({"name": "work", "arguments": {"text": "x".repeat(200)}});
    for _ in 0..2 {
        let refused = with_key(Call::new("tools/call", &long), "ada").send(program.clients, "/up/mcp").await.json();
        assert_eq!(refused["error"]["code"], -32602, "{refused}");
    }
    worker.answer_all();
    program.says("arguments_bytes_max", 1).await;
    let log = program.log();
    let told = |key: &str| log.lines().filter(|line| line.contains(&format!("\"key\":\"{key}\""))).count();
    assert_eq!((told("queue_max"), told("arguments_bytes_max"), told("tasks_per_principal_max")), (1, 1, 0), "{log}");
    assert!(!log.contains("xxxx"), "{log}");
    assert_eq!(program.counted("taskgate_quota_refused_total{limit=\"principal\"}").await, 0);
    assert_eq!(program.counted("taskgate_upstream_shed_total{upstream=\"up\"}").await, 3);
}

/// B255: every principal's new tasks are refused, so the refusals are counted, and the log names the bound.
#[tokio::test]
async fn b255_a_full_store_is_counted_and_logged_with_its_bound() {
    let (worker, folder) = (Worker::start().await, Folder::with("[limits]\nstored_bytes_max = \"1B\"\n"));
    folder.write(&(block("up", &worker.server) + "[upstreams.up.tasks]\nmode = \"always\"\n"));
    let program = Program::serve(&folder).await;
    let call = Call::new("tools/call", &json!({"name": "work", "arguments": {}}));
    for _ in 0..2 {
        let refused = call.send(program.clients, "/up/mcp").await.json();
        assert_eq!(refused["error"]["data"]["reason"], "store_full", "{refused}");
    }
    assert_eq!(program.counted("taskgate_quota_refused_total{limit=\"all_bytes\"}").await, 2);
    program.says("the stored tasks fill `limits.stored_bytes_max`", 1).await;
}

/// B256: clients see a connection that ends, so only the gateway can say why.
#[tokio::test]
async fn b256_connections_above_the_bound_are_logged_once_with_its_key() {
    let (worker, folder) = (Worker::start().await, Folder::with("[limits]\nconnections_max = 2\n"));
    folder.write(&block("up", &worker.server));
    let program = Program::serve(&folder).await;
    let mut open = Vec::new();
    for _ in 0..6 {
        open.push(TcpStream::connect(program.clients).await.unwrap());
    }
    program.until_counted("taskgate_http_refused_total{reason=\"connections_max\"}", 4).await;
    program.says("limits.connections_max", 1).await;
    let log = program.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("limits.connections_max")).collect();
    assert!(told.len() == 1 && told[0].contains("\"client\":\"127.0.0.1\""), "{told:?}");
}

#[tokio::test]
async fn a_result_above_its_bound_is_told_once_with_the_upstream() {
    let server = ScriptedServer::start(|seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({"tools": [{"name": "work", "inputSchema": {}}]}))),
        "tools/call" => Some(answer(seen, &json!({"content": [{"type": "text", "text": "x".repeat(20_000)}]}))),
        _ => None,
    });
    let (server, folder) = (server.await, Folder::new());
    folder.write(&format!("[limits]\nresult_bytes_max = \"10KiB\"\n{}", block("up", &server)));
    let program = Program::serve(&folder).await;
    for _ in 0..2 {
        let refused = Call::plain(&json!({})).send(program.clients, "/up/mcp").await.json();
        assert_eq!(refused["error"]["data"]["reason"], "result_too_large", "{refused}");
    }
    program.says("result_bytes_max", 1).await;
    let log = program.log();
    let told: Vec<_> = log.lines().filter(|line| line.contains("result_bytes_max")).collect();
    assert!(told.len() == 1 && told[0].contains("\"upstream\":\"up\""), "{told:?}");
    assert!(!log.contains("xxxx"), "{log}");
}
