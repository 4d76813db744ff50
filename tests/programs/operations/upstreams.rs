//! The operator's view of failing upstreams: a log line, a counter, their state on the pages.

use std::time::Duration;

use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use support::ports::reserved_address;

use super::program::{Call, Folder, Program, block, send};
use super::upstream::{ScriptedServer, in_time, status, whole};

const FAILED: &str = "the upstream failed";

/// The lines of the log that say so.
fn told(program: &Program) -> Vec<Value> {
    let log = program.log();
    log.lines().filter(|line| line.contains(FAILED)).map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn state(program: &Program) -> Value {
    let page = program.get("/readyz?verbose").await;
    assert_eq!(page.status, 200, "the others are served");
    page.json()["upstreams"][0].take()
}

async fn failures(program: &Program, reason: &str) -> u64 {
    program.counted(&format!("taskgate_upstream_failures_total{{upstream=\"up\",reason=\"{reason}\"}}")).await
}

#[tokio::test]
async fn an_upstream_that_is_down_is_told_once_counted_always_and_seen_on_the_pages() {
    let address = reserved_address();
    let folder = Folder::new();
    folder.write(&format!("[upstreams.up]\nurl = \"http://{address}/s3cret?key=s3cret\"\n"));
    let program = Program::serve(&folder).await;
    let before = program.get("/metrics").await.body;
    assert!(before.contains("taskgate_upstream_failures_total{upstream=\"up\",reason=\"upstream_tls\"} 0"), "{before}");
    assert_eq!(state(&program).await["state"], "untried");
    for _ in 0..2 {
        let answer = Call::plain(&json!({})).send(program.clients, "/up/mcp").await;
        assert_eq!(answer.json()["error"]["data"]["reason"], "upstream_unreachable", "{answer:?}");
    }
    program.says(FAILED, 1).await;
    let told = told(&program);
    assert_eq!(told.len(), 1, "{}", program.log());
    let fields = &told[0]["fields"];
    assert_eq!(
        (&told[0]["level"], &fields["upstream"], &fields["reason"], &fields["cause"], &fields["address"]),
        (
            &json!("WARN"),
            &json!("up"),
            &json!("upstream_unreachable"),
            &json!("connection refused"),
            &json!(format!("http://{address}"))
        )
    );
    assert!(failures(&program, "upstream_unreachable").await >= 2);
    let state = state(&program).await;
    assert_eq!((&state["state"], &state["last_failure"]["cause"]), (&json!("failing"), &json!("connection refused")));
    let page = program.get("/").await.body;
    assert!(page.contains("up  failing  http://") && page.contains("connection refused"), "{page}");
    let page = send(program.admin, "GET", "/", &[("accept", "application/json")], "").await.json();
    assert_eq!((&page["ready"], &page["upstreams"][0]["state"]), (&json!(true), &json!("failing")));
    assert!(!program.log().contains("s3cret"), "{}", program.log());
}

/// Each with its cause, and with nothing that may be a secret.
#[tokio::test]
async fn an_unusable_answer_of_an_upstream_is_reported_with_its_cause() {
    let html = || {
        let mut reply = whole("<html>s3cret</html>");
        reply.headers_mut().insert("content-type", HeaderValue::from_static("text/html"));
        reply
    };
    let moved = || {
        let mut reply = status(307);
        let location = HeaderValue::from_static("https://s3cret:s3cret@other.example/s3cret?key=s3cret");
        reply.headers_mut().insert("location", location);
        reply
    };
    let ill = move || {
        let mut reply = html();
        *reply.status_mut() = StatusCode::BAD_GATEWAY;
        reply
    };
    let mut servers = vec![
        ("upstream_auth", ScriptedServer::start(|_| Some(status(401))).await, "HTTP 401"),
        ("upstream_http_status", ScriptedServer::start(|_| Some(status(404))).await, "HTTP 404"),
    ];
    servers.push(("upstream_malformed", ScriptedServer::start(move |_| Some(html())).await, "content-type text/html"));
    servers.push((
        "upstream_redirect",
        ScriptedServer::start(move |_| Some(moved())).await,
        "Location: https://other.example",
    ));
    servers.push((
        "upstream_http_status",
        ScriptedServer::start(move |_| Some(ill())).await,
        "HTTP 502, content-type text/html",
    ));
    for (reason, server, cause) in servers {
        let folder = Folder::new();
        folder.write(&format!("[upstreams.up]\nurl = \"http://{}/mcp\"\nprotocol = \"2025-06-18\"\n", server.address));
        let program = Program::serve(&folder).await;
        Call::plain(&json!({})).send(program.clients, "/up/mcp").await;
        program.says(FAILED, 1).await;
        let told = told(&program);
        let found = &told[0]["fields"];
        assert_eq!(found["reason"], reason, "{cause}: {found}");
        assert!(found["cause"].as_str().unwrap().contains(cause), "{cause}: {found}");
        assert!(failures(&program, reason).await >= 1, "{reason}");
        assert!(!program.log().contains("s3cret"), "{}", program.log());
    }
}

/// The same for a program; its supervisor reports its exit.
#[tokio::test]
async fn a_program_that_ends_is_told_with_how_it_ended() {
    let folder = Folder::new();
    folder.write("[upstreams.up]\ncommand = [\"sh\", \"-c\", \"exit 7\", \"s3cret\"]\n");
    let program = Program::serve(&folder).await;
    Call::plain(&json!({})).send(program.clients, "/up/mcp").await;
    program.says(FAILED, 1).await;
    let told = told(&program);
    let fields = &told[0]["fields"];
    assert_eq!((&fields["reason"], &fields["address"]), (&json!("upstream_closed"), &json!("sh")), "{fields}");
    assert!(fields["cause"].as_str().unwrap().contains("exit status 7"), "{fields}");
    assert!(!program.log().contains("s3cret"), "{}", program.log());
}

/// B254: clients leave before the gateway's own limits end: in a handshake, in a list before a call, and in the pipe.
#[tokio::test]
async fn b254_a_server_that_hangs_is_failing_once_its_clients_have_left() {
    let hanging_at = |method: &'static str| {
        ScriptedServer::slow(move |seen, _| async move {
            if seen.rpc() == method {
                std::future::pending::<()>().await;
            }
            None
        })
    };
    let names = [("greets", "initialize"), ("lists", "tools/list"), ("pipes", "prompts/list")];
    let (mut servers, mut blocks) = (Vec::new(), String::new());
    for (name, method) in names {
        servers.push(hanging_at(method).await);
        blocks += &(block(name, &servers[servers.len() - 1]) + "protocol = \"2025-06-18\"\n");
    }
    let folder = Folder::new();
    folder.write(&blocks);
    let program = Program::serve(&folder).await;
    let in_session = |session: Option<&str>, method: &str, params: Value| {
        let mut headers = vec![
            ("content-type", "application/json".to_owned()),
            ("accept", "application/json, text/event-stream".to_owned()),
        ];
        headers.extend(session.map(|id| ("mcp-session-id", id.to_owned())));
        Call { headers, body: json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string() }
    };
    let initialize =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}});
    let opened = in_session(None, "initialize", initialize.clone()).send(program.clients, "/pipes/mcp").await;
    let session = opened.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).expect("a session");
    let mut clients = Vec::new();
    for (path, request) in [
        ("/greets/mcp", in_session(None, "initialize", initialize)),
        ("/lists/mcp", Call::plain(&json!({}))),
        ("/pipes/mcp", in_session(Some(session), "prompts/list", json!({}))),
    ] {
        let mut client = TcpStream::connect(program.clients).await.unwrap();
        client.write_all(&request.bytes(path)).await.unwrap();
        clients.push(client);
    }
    for ((_, method), server) in names.iter().zip(&servers) {
        server.world.first(|seen| seen.rpc() == *method).await;
    }
    tokio::time::sleep(Duration::from_millis(10_100)).await;
    assert_eq!(told(&program), Vec::<Value>::new(), "nothing is known while clients wait");
    drop(clients);
    program.says("which was given up", names.len()).await;
    for (name, _) in names {
        let counter = format!("taskgate_upstream_failures_total{{upstream=\"{name}\",reason=\"upstream_timeout\"}}");
        assert!(program.counted(&counter).await >= 1, "{name}");
    }
    let page = program.get("/").await.body;
    assert!(names.iter().all(|(name, _)| page.contains(&format!("{name}  failing"))), "{page}");
}

/// An operator must see the state of the current server: an alert about a replaced one would never end.
#[tokio::test]
async fn an_ill_upstream_is_ill_no_more_once_a_reload_has_put_another_in_its_place() {
    const OPEN: &str = "taskgate_upstream_breaker_open{upstream=\"up\"}";
    let [former, next] = [ScriptedServer::start(|_| Some(status(502))).await, ScriptedServer::start(|_| None).await];
    let (folder, protocol) = (Folder::new(), "protocol = \"2025-06-18\"\n");
    folder.write(&(block("up", &former) + protocol));
    let program = Program::serve(&folder).await;
    in_time(async {
        while program.counted(OPEN).await == 0 {
            Call::plain(&json!({})).send(program.clients, "/up/mcp").await;
        }
    })
    .await;
    folder.write(&(block("up", &next) + protocol));
    program.says("the configuration was read again", 1).await;
    assert_eq!((program.counted(OPEN).await, state(&program).await["state"].as_str()), (0, Some("untried")));
}

/// UPC-30: only an answer of MCP ends a failure.
#[tokio::test]
async fn an_upstream_that_answers_nothing_of_mcp_stays_failing() {
    let no_message = || {
        let mut reply = whole("{\"ok\":true}");
        reply.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
        reply
    };
    let initialize = json!({
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": { "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "x", "version": "1" } },
    });
    let json = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    for (server, what) in [
        (ScriptedServer::start(|_| Some(status(404))).await, "404"),
        (ScriptedServer::start(move |_| Some(no_message())).await, "JSON that is not a message"),
    ] {
        for client in ["without sessions", "with sessions"] {
            let folder = Folder::new();
            folder.write(&format!("[upstreams.up]\nurl = \"http://{}/mcp\"\n", server.address));
            let program = Program::serve(&folder).await;
            for _ in 0..3 {
                match client {
                    "with sessions" => {
                        send(program.clients, "POST", "/up/mcp", &json, &initialize.to_string()).await;
                    }
                    _ => {
                        Call::plain(&json!({})).send(program.clients, "/up/mcp").await;
                    }
                }
            }
            assert_eq!(state(&program).await["state"], "failing", "{what}, {client}");
            assert!(!program.log().contains("answers again"), "{what}, {client}: {}", program.log());
        }
    }
}

/// The line names the principal, and the configuration key that decides: the list beside the API key, or the rules.
#[tokio::test]
async fn a_refused_caller_at_an_upstream_of_others_is_named_in_the_log() {
    for (rest, deciding) in [
        ("upstreams = [\"one\"]\n", "auth.api_keys.upstreams"),
        ("[[auth.rules]]\nupstreams = [\"one\"]\nallow = true\n", "auth.rules"),
    ] {
        let (key, folder) = ("tg_ada1_0011223344556677889900aabbccddee", Folder::new());
        let auth = format!("[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{key}\"\n{rest}");
        let up = |name: &str| format!("[upstreams.{name}]\nurl = \"http://127.0.0.1:1/mcp\"\n");
        folder.write(&format!("{auth}{}{}", up("one"), up("two")));
        let program = Program::serve(&folder).await;
        let bearer = format!("Bearer {key}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        assert_eq!(send(program.clients, "POST", "/two/mcp", &headers, "{}").await.status, 404);
        program.says("path_withheld", 1).await;
        let log = program.log();
        let line = log.lines().find(|line| line.contains("path_withheld")).unwrap();
        let fields = &serde_json::from_str::<Value>(line).unwrap()["fields"];
        let expected = json!(["ada", "/two/mcp", deciding]);
        assert_eq!(json!([fields["principal"], fields["value"], fields["key"]]), expected, "{line}");
    }
}
