//! Questions that a client must not get, of any kind and by any path: each is withheld, and the server gets the same
//! refusal (SEC-14, U31, U32).

use std::fmt::Write as _;
use std::sync::Arc;

use ::bytes::Bytes;
use http::Request;
use http_body_util::Full;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::client::{Client, Reply, TestGateway, call, initialize};
use super::peers::STATELESS;
use super::upstream::{self, BodySender, ScriptedServer, SeenRequest, in_time, json_text};

const ELICIT: &str = "elicitation/create";
/// Stands in every question, and in nothing that may be shown.
const MARK: &str = "must-not-be-shown";

/// A question, the client's capabilities, and the server's answer.
struct Bad {
    declared: Value,
    method: &'static str,
    params: Value,
    refusal: Refusal,
}

#[derive(Clone, Copy)]
enum Refusal {
    Declined,
    Code(i64),
}

fn form() -> Value {
    json!({"message": MARK, "requestedSchema": {"type": "object", "properties": {}}})
}

fn page(url: &str) -> Value {
    json!({"mode": "url", "message": MARK, "url": url, "elicitationId": "e"})
}

/// Of undeclared kinds first, then addresses that no user is sent to. `version` is the client's.
fn bad(version: &str) -> Vec<Bad> {
    let (asked, code) = (|declared, method, params, refusal| Bad { declared, method, params, refusal }, Refusal::Code);
    let modes = json!({"elicitation": {"form": {}, "url": {}}});
    let mut all = vec![
        asked(json!({}), ELICIT, form(), code(-32602)),
        asked(json!({}), "sampling/createMessage", json!({"messages": [], "systemPrompt": MARK}), code(-32601)),
        asked(json!({}), "roots/list", json!({"_meta": {"m": MARK}}), code(-32601)),
        asked(json!({"elicitation": {}}), ELICIT, page("https://a.example/"), code(-32602)),
        asked(json!({"elicitation": {"url": {}}}), ELICIT, form(), code(-32602)),
    ];
    if version < "2025-06-18" {
        // These versions have no such request, with any capability.
        all.push(asked(json!({"elicitation": {}}), ELICIT, form(), code(-32602)));
    }
    for url in [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://bank@evil.example/",
        "https://a:b@evil.example/",
        "data:text/html,x",
        "https://a.example/\n",
        "https://a\t.example/",
        "no address",
    ] {
        all.push(asked(modes.clone(), ELICIT, page(url), Refusal::Declined));
    }
    all
}

impl Bad {
    fn text(&self, id: &str) -> String {
        json!({"jsonrpc": "2.0", "id": id, "method": self.method, "params": self.params}).to_string()
    }

    #[track_caller]
    fn check(&self, said: &Value, case: &str) {
        match self.refusal {
            Refusal::Declined => assert_eq!(said["result"]["action"], "decline", "{case}: {said}"),
            Refusal::Code(code) => assert_eq!(said["error"]["code"], code, "{case}: {said}"),
        }
    }
}

/// A gateway, and a server that asks the test's `question`.
struct Setup {
    server: ScriptedServer,
    question: Arc<Mutex<String>>,
    gate: TestGateway,
}

impl Setup {
    /// The server asks on the stream of each call and answers it, or in the answer's body as an `array`, or on each session's `own`
    /// stream.
    async fn of(way: &'static str) -> Self {
        let question = Arc::new(Mutex::new(String::new()));
        let now = Arc::clone(&question);
        let server = ScriptedServer::start(move |seen| {
            let question = now.lock().clone();
            let answer = json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": {"content": []}});
            match (seen.method.as_str(), seen.rpc()) {
                ("POST", "tools/call") if way == "array" => Some(json_text(format!("[{question},{answer}]"))),
                ("POST", "tools/call") => {
                    let (events, reply) = BodySender::open();
                    events.raw(format!("id: 7\ndata: {question}\n\ndata: {answer}\n\n"));
                    Some(reply)
                }
                ("GET", _) if matches!(way, "own" | "both") => {
                    let (events, reply) = BodySender::open();
                    let news = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
                    events.raw(format!("event: message\r\ndata: {question}\r\n\r\ndata: {news}\n\n"));
                    Some(reply)
                }
                ("POST", "tools/list") => {
                    Some(upstream::answer(seen, &json!({"tools": [{"name": "t", "inputSchema": {}}]})))
                }
                _ => None,
            }
        })
        .await;
        let gate = TestGateway::before(&server).await;
        Self { server, question, gate }
    }

    fn asks(&self, question: String) {
        *self.question.lock() = question;
    }

    /// How the question of this id was answered.
    async fn refused(&self, id: &str) -> Value {
        let is_answer =
            |seen: &SeenRequest| seen.method == "POST" && seen.body.get("method").is_none() && seen.id() == id;
        self.server.world.first(is_answer).await.body
    }
}

async fn session(gate: &TestGateway, version: &str, declared: &Value) -> Client {
    let mut client = gate.client_without_session();
    let reply = client.post(initialize(version, declared)).await;
    client.session = Some(reply.header("mcp-session-id").unwrap().to_owned());
    client.version = Some(version.to_owned());
    client
}

/// Reads until `end` was said.
async fn until(reply: &mut Reply, end: &str) -> String {
    let mut read = String::new();
    while !read.contains(end) {
        read.push_str(&reply.piece().await.unwrap_or_else(|| panic!("it ends: {read}")));
    }
    read
}

#[track_caller]
fn check_kept_out(read: &str, id: &str, case: &str) {
    assert!(!read.contains(MARK) && !read.contains(&format!("\"{id}\"")), "{case}: {read}");
}

const SESSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

/// SEC-14.
#[tokio::test]
async fn u31_u32_no_session_is_shown_them_on_the_stream_of_a_call_or_its_own_or_in_an_array() {
    for version in SESSIONS {
        for way in ["call", "own", "array"] {
            if way == "array" && version != "2025-03-26" {
                continue;
            }
            let mut setup = Setup::of(way).await;
            for (n, bad) in bad(version).into_iter().enumerate() {
                // The own stream of an earlier session may be opened again, and asked.
                if way == "own" && n > 0 {
                    setup = Setup::of(way).await;
                }
                let (case, id) = (format!("{version} {way} {n}"), format!("q-{n}"));
                setup.asks(bad.text(&id));
                let client = session(&setup.gate, version, &bad.declared).await;
                let read = match way {
                    "own" => until(&mut client.get(None).await, "list_changed").await,
                    _ => client.post(call(1)).await.text().await,
                };
                check_kept_out(&read, &id, &case);
                assert!(way == "own" || read.contains("\"result\""), "{case}: {read}");
                bad.check(&setup.refused(&id).await, &case);
            }
        }
    }
}

#[tokio::test]
async fn u31_u32_no_client_over_one_ordered_stream_is_shown_them() {
    for version in ["2024-11-05", "2025-11-25"] {
        for (n, bad) in bad(version).into_iter().enumerate() {
            let case = format!("{version} {n}");
            let setup = Setup::of("both").await;
            setup.asks(bad.text("q"));
            let client = setup.gate.client_without_session();
            let get = Request::get("/sse").header("host", "localhost").header("accept", "text/event-stream");
            let mut stream = client.send(get.body(Full::default()).unwrap()).await;
            let opened = stream.until("\n\n").await;
            let endpoint = opened.split("data: ").nth(1).unwrap().trim().to_owned();
            let post = async |text: String| {
                let request = Request::post(&endpoint).header("host", "localhost");
                let request = request.header("content-type", "application/json");
                assert_eq!(client.send(request.body(Full::new(Bytes::from(text))).unwrap()).await.status, 202);
            };
            post(initialize(version, &bad.declared)).await;
            until(&mut stream, "protocolVersion").await;
            post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned()).await;
            let mut read = until(&mut stream, "list_changed").await;
            post(call(1)).await;
            read.push_str(&until(&mut stream, "\"result\"").await);
            check_kept_out(&read, "q", &case);
            bad.check(&setup.refused("q").await, &case);
        }
    }
}

/// Through the engine: for tasks of 2025-11-25 and of the extension, and for a plain call without a session. For lack
/// of a capability the last two, which wait, end with an error that names it.
#[tokio::test]
async fn u31_u32_no_task_and_no_client_without_a_session_is_shown_them() {
    for kind in ["task", "extension", "plain"] {
        let setup = Setup::of("call").await;
        for (n, bad) in bad("2025-11-25").into_iter().enumerate() {
            let (case, id) = (format!("{kind} {n}"), format!("q-{n}"));
            setup.asks(bad.text(&id));
            let read = match kind {
                "task" => of_task(&setup.gate, &bad.declared).await,
                _ => without_session(&setup.gate, &bad.declared, kind == "extension").await,
            };
            check_kept_out(&read, &id, &case);
            match bad.refusal {
                // The call is over then, and its question with it.
                Refusal::Code(_) if kind != "task" => {
                    assert!(read.contains("-32021") || bad.method == "roots/list", "{case}: {read}");
                }
                Refusal::Code(_) | Refusal::Declined => bad.check(&setup.refused(&id).await, &case),
            }
        }
    }
}

async fn of_task(gate: &TestGateway, declared: &Value) -> String {
    let client = session(gate, "2025-11-25", declared).await;
    let ask = async |id: u32, method: &str, params: Value| {
        client
            .post(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string())
            .await
            .text()
            .await
    };
    let handle = ask(1, "tools/call", json!({"name": "t", "arguments": {}, "task": {}})).await;
    let json: Value = serde_json::from_str(&handle).unwrap();
    handle + &ask(2, "tasks/result", json!({"taskId": json["result"]["task"]["taskId"]})).await
}

async fn without_session(gate: &TestGateway, declared: &Value, takes_tasks: bool) -> String {
    let client = Client { version: Some(STATELESS.to_owned()), ..gate.client_without_session() };
    let mut declared = declared.clone();
    if takes_tasks {
        declared["extensions"] = json!({"io.modelcontextprotocol/tasks": {}});
    }
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": declared,
    });
    let params = json!({"name": "t", "arguments": {}, "_meta": meta});
    let text = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
    let request = client.request("POST").header("content-type", "application/json");
    let request = request.header("mcp-method", "tools/call").header("mcp-name", "t");
    client.send(request.body(Full::from(text)).unwrap()).await.text().await
}

/// A server that disguises its question from a gateway that only searches the text. A client may read it as a question,
/// so no client gets it; the call's answer is forwarded.
#[tokio::test]
async fn a_question_that_is_disguised_reaches_no_client() {
    let padding = "x".repeat(300_000);
    let params = form();
    let texts = [
        format!(r#"{{"jsonrpc":"2.0","id":"q","m\u0065thod":"{ELICIT}","params":{params}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":"q","method":"elicitation\/create","params":{params}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":"q","Method":"{ELICIT}","params":{params}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":"q","method":"ping","method":"{ELICIT}","params":{params}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":"q","result":{{}},"method":"{ELICIT}","params":{params}}}"#),
        format!(r#"{{"params":{{"message":"{padding} {MARK}"}},"jsonrpc":"2.0","method":"{ELICIT}","id":"q"}}"#),
        format!(r#"[{{"jsonrpc":"2.0","id":"q","method":"{ELICIT}","params":{params}}}]"#),
        format!(r#"{{"jsonrpc":"2.0","method":"{ELICIT}","params":{params}}}"#),
        json!({"jsonrpc": "2.0", "id": 9, "error": {"code": -32042, "message": "m",
            "data": {"elicitations": [page("javascript:1")]}}})
        .to_string(),
    ];
    for (n, text) in texts.into_iter().enumerate() {
        let setup = Setup::of("call").await;
        setup.asks(text);
        let client = session(&setup.gate, "2025-11-25", &json!({})).await;
        let read = client.post(call(1)).await.text().await;
        check_kept_out(&read, "q", &n.to_string());
        assert!(read.ends_with("\"result\":{\"content\":[]}}\n\n"), "{n}: {read}");
    }
}

/// Allowed questions are forwarded byte for byte, and so are texts that only resemble a question.
#[tokio::test]
async fn allowed_questions_pass_byte_for_byte() {
    let mut sent = String::new();
    for text in [
        r#"{"jsonrpc": "2.0", "id": 5, "method": "elicitation/create", "params": {"message": "ok", "n": 1.10}}"#,
        r#"{"jsonrpc":"2.0","id":6,"method":"elicitation/create","params":{"mode":"url","url":"https://a.example/"}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"roots/list"}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"elicitation/create"}}"#,
        r#"{"jsonrpc":"2.0","id":8,"error":{"code":-32603,"message":"elicitation/create"}}"#,
        r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#,
        "no message at all",
    ] {
        write!(sent, "id: 1\r\ndata: {text}\r\n\r\n").unwrap();
    }
    let answer = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"method":"sampling/createMessage"}}"#;
    write!(sent, "data: {answer}\n\n").unwrap();
    let shown = sent.clone();
    let server = ScriptedServer::start(move |seen| {
        let (events, reply) = BodySender::open();
        events.raw(sent.clone());
        seen.is_call().then_some(reply)
    })
    .await;
    let gate = TestGateway::before(&server).await;
    let client = session(&gate, "2025-11-25", &json!({"elicitation": {"form": {}, "url": {}}, "roots": {}})).await;
    assert_eq!(in_time(client.post(call(1))).await.text().await, shown);
}
