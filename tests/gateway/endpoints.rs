//! Endpoints with upstreams that are unavailable or slow, lie, or come back: the other upstreams, as clients of either era see them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod away;
mod lying;
mod returning;

use support::pair_client as speaker;
use support::scripted as upstream;
use support::session_client as client;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use client::TestGateway;
use serde_json::{Value, json};
use speaker::{Kind, PairClient};
use upstream::{ScriptedReply, ScriptedServer, SeenRequest, answer, in_time};

const SESSION: &str = "mcp-session-id";

/// Clients of both eras.
const KINDS: [Kind; 2] = [Kind::Session, Kind::Stateless];

/// A server with one tool, `hello`, that says the server's name; under the script of a test.
async fn hello(
    name: &str,
    script: impl Fn(&SeenRequest) -> Option<ScriptedReply> + Send + Sync + 'static,
) -> ScriptedServer {
    let name = name.to_owned();
    ScriptedServer::start(move |seen| script(seen).or_else(|| says_hello(&name, seen))).await
}

fn says_hello(name: &str, seen: &SeenRequest) -> Option<ScriptedReply> {
    match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({"tools": [tool("hello")]}))),
        "tools/call" => Some(answer(seen, &json!({"content": [{"type": "text", "text": name}]}))),
        _ => None,
    }
}

fn tool(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}})
}

/// These servers at one path, in this order; `keys` stand in the endpoint's block.
async fn at_one_path(servers: &[(String, SocketAddr)], keys: &str) -> TestGateway {
    let names: Vec<_> = servers.iter().map(|(name, _)| name).collect();
    let mut text = format!("[[endpoints]]\npath = \"/mcp\"\nupstreams = {names:?}\n{keys}\n");
    for (name, address) in servers {
        let _ = writeln!(text, "[upstreams.{name}]\nurl = \"http://{address}/mcp\"");
    }
    TestGateway::serving(&text).await
}

async fn client_of(kind: Kind, gate: &TestGateway) -> PairClient {
    PairClient::new(kind, gate.client_without_session(), |_| 0).await.unwrap()
}

/// The names of all tools that a client is shown, page by page.
async fn tools(client: &mut PairClient) -> Vec<String> {
    let (mut names, mut params) = (Vec::new(), json!({}));
    for _ in 0..9 {
        let page = client.ask("tools/list", params).await.unwrap();
        let Some(listed) = page["result"]["tools"].as_array() else { panic!("no list: {page}") };
        names.extend(listed.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()));
        match page["result"].get("nextCursor") {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => return names,
        }
    }
    panic!("a list without end: {} names", names.len());
}

/// A tool's text, or the code of its error, with its reason and whether it ran.
async fn said(client: &mut PairClient, tool: &str) -> String {
    let answer = client.ask("tools/call", json!({"name": tool, "arguments": {}})).await.unwrap();
    match answer["error"]["code"].as_i64() {
        Some(code) => format!("{code} {}", answer["error"]["data"]["executed"].as_str().unwrap_or_default()),
        None => answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned(),
    }
}

/// B257: one server that does not answer takes no time from the others.
#[tokio::test]
async fn b257_the_sessions_of_an_endpoints_clients_end_with_the_gateway() {
    let hangs_at_the_end = |name: &'static str| {
        ScriptedServer::slow(move |seen, _| async move {
            if seen.method == "DELETE" {
                std::future::pending::<()>().await;
            }
            says_hello(name, &seen)
        })
    };
    let (one, two) = (hangs_at_the_end("one").await, hangs_at_the_end("two").await);
    let gate = at_one_path(&[("one".to_owned(), one.address), ("two".to_owned(), two.address)], "").await;
    let mut client = client_of(Kind::Session, &gate).await;
    for name in ["one", "two"] {
        assert_eq!(said(&mut client, &format!("{name}__hello")).await, name);
    }
    in_time(Box::pin(gate.gateway.drain(Some(Duration::ZERO)))).await;
    for server in [one, two] {
        let call = server.world.first(SeenRequest::is_call).await;
        let is_end = |seen: &SeenRequest| seen.method == "DELETE" && seen.header(SESSION) == call.header(SESSION);
        server.world.first(is_end).await;
    }
}

#[tokio::test]
async fn methods_of_sessions_are_unknown_to_stateless_clients() {
    let server = hello("one", |_| None).await;
    *server.world.initialize_result.lock() = json!({"capabilities": {"resources": {"subscribe": true}}});
    let gate = at_one_path(&[("one".to_owned(), server.address)], "").await;
    let mut client = client_of(Kind::Stateless, &gate).await;
    for method in ["resources/subscribe", "resources/unsubscribe", "logging/setLevel", "ping", "tasks/list"] {
        let answer = client.ask(method, json!({"uri": "test://x", "level": "info"})).await.unwrap();
        assert_eq!(answer["error"]["code"], -32601, "{method}: {answer}");
    }
}
