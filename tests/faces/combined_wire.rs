//! Endpoints of several upstreams, over real sockets: two scripted servers at one path, and their clients of either
//! era.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod access;
mod alone;
mod forged;
mod forgotten;
mod lists;
mod sessions;
mod streams;
mod upgraded;

use support::scripted as upstream;
use support::session_client as client;

use client::TestGateway;
use serde_json::{Value, json};
use upstream::{ScriptedReply, ScriptedServer, SeenRequest, answer, json_text};

/// A server's items: a tool, a prompt and a resource with names that the other server uses, too, and one of each of its own.
fn offered(name: &str, seen: &SeenRequest) -> Option<ScriptedReply> {
    let own = format!("{name}_only");
    let result = match seen.rpc() {
        "tools/list" => json!({"tools": [
            {"name": "shared", "inputSchema": {"type": "object"}},
            {"name": own, "inputSchema": {"type": "object"}, "n": 1},
        ]}),
        "prompts/list" => json!({"prompts": [{"name": "shared"}, {"name": own}]}),
        "prompts/get" => {
            json!({"description": format!("{name} has {}", text(&seen.body["params"]["name"])), "messages": []})
        }
        "resources/list" => json!({"resources": [
            {"uri": "test://shared", "name": "r"}, {"uri": format!("test://{own}"), "name": "r"},
        ]}),
        "resources/templates/list" => {
            json!({"resourceTemplates": [{"uriTemplate": format!("{name}://{{id}}"), "name": "t"}]})
        }
        "resources/read" if reads(name, text(&seen.body["params"]["uri"])) => {
            json!({"contents": [{"uri": seen.body["params"]["uri"], "text": name}]})
        }
        "resources/read" => {
            let error = json!({"code": -32002, "message": "Resource not found"});
            return Some(json_text(json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}).to_string()));
        }
        "completion/complete" => json!({"completion": {"values": [name, text(&seen.body["params"]["ref"]["name"])]}}),
        _ => return None,
    };
    Some(answer(seen, &result))
}

fn reads(name: &str, uri: &str) -> bool {
    ["test://shared", &format!("test://{name}_only"), &format!("hidden://{name}")].contains(&uri)
        || uri.starts_with(&format!("{name}://"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A server with the items of `offered`, under the script of a test.
async fn server(
    name: &'static str,
    script: impl Fn(&SeenRequest) -> Option<ScriptedReply> + Send + Sync + 'static,
) -> ScriptedServer {
    let server = ScriptedServer::start(move |seen| script(seen).or_else(|| offered(name, seen))).await;
    *server.world.initialize_result.lock() = json!({
        "capabilities": {"tools": {"listChanged": true}, "prompts": {}, "resources": {"subscribe": true}, "logging": {}},
        "instructions": format!("ask {name}"),
    });
    server
}

async fn servers() -> (ScriptedServer, ScriptedServer) {
    (server("one", |_| None).await, server("two", |_| None).await)
}

/// Two servers at one path; `keys` stand in the endpoint's block.
async fn combined(one: &ScriptedServer, two: &ScriptedServer, keys: &str) -> TestGateway {
    TestGateway::serving(&text_of(one, two, keys)).await
}

fn text_of(one: &ScriptedServer, two: &ScriptedServer, keys: &str) -> String {
    format!(
        "[upstreams.one]\nurl = \"http://{}/mcp\"\n[upstreams.two]\nurl = \"http://{}/mcp\"\n\
         [[endpoints]]\npath = \"/mcp\"\nupstreams = [\"one\", \"two\"]\n{keys}\n",
        one.address, two.address
    )
}

fn request(id: u32, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

fn names(list: &Value, key: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|item| text(&item[key]).to_owned()).collect()
}
