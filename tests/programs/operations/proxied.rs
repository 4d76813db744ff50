//! UPC-31: `serve`, `probe` and `wrap --url` reach a server through the proxy that the environment names.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

use super::program::{Call, Folder, Program};
use super::upstream::{ScriptedServer, SeenRequest, answer, in_time};

/// Only the proxy knows this name.
const URL: &str = "http://up.invalid/mcp";

/// Serves every name, as a proxy in front of one server.
async fn proxy() -> ScriptedServer {
    ScriptedServer::start(|seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]}))),
        "tools/call" => Some(answer(seen, &json!({"content": []}))),
        _ => None,
    })
    .await
}

fn through(command: &mut Command, proxy: &ScriptedServer, exceptions: &str) {
    command.env("HTTP_PROXY", format!("http://{}", proxy.address)).env("NO_PROXY", exceptions);
}

#[tokio::test]
async fn upc_31_a_gateway_calls_its_server_through_the_environments_proxy() {
    for (exceptions, is_reached) in [("", true), ("up.invalid", false)] {
        let proxy = proxy().await;
        let folder = Folder::new();
        folder.write(&format!("[upstreams.up]\nurl = \"{URL}\"\n"));
        let mut command = folder.command();
        through(&mut command, &proxy, exceptions);
        let program = Program::launch(command).await;
        let called = Call::plain(&json!({})).send(program.clients, "/up/mcp").await;
        assert_eq!(called.json()["result"].is_object(), is_reached, "{exceptions:?}: {called:?}");
        assert_eq!(proxy.world.count("tools/call"), usize::from(is_reached), "{exceptions:?}");
    }
}

/// The configuration stays as it is.
#[tokio::test]
async fn upc_31_a_reload_notices_that_the_proxys_credentials_were_replaced() {
    let proxy = proxy().await;
    let folder = Folder::new();
    let credentials = folder.path().join("proxy");
    let replace = |text: &str| {
        let draft = folder.path().join("draft-of-credentials");
        fs::write(&draft, text).unwrap();
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(draft, &credentials).unwrap();
    };
    replace("ada:old");
    let keys = format!("proxy = \"http://{}\"\nproxy_credentials_file = {credentials:?}\n", proxy.address);
    folder.write(&format!("[upstreams.up]\nurl = \"{URL}\"\n{keys}"));
    let program = Program::serve(&folder).await;
    for (text, calls) in [("ada:old", 1), ("ada:new", 2)] {
        if calls > 1 {
            replace(text);
            program.signal("HUP");
            program.says("the configuration was read again", 1).await;
        }
        let called = Call::plain(&json!({})).send(program.clients, "/up/mcp").await;
        assert!(called.json()["result"].is_object(), "{called:?}");
        let seen = proxy.world.nth(calls - 1, SeenRequest::is_call).await;
        let expected = format!("Basic {}", BASE64_STANDARD.encode(text));
        assert_eq!(seen.header("proxy-authorization"), Some(expected.as_str()));
    }
}

#[tokio::test]
async fn upc_31_a_probe_reaches_a_server_through_the_environments_proxy() {
    let proxy = proxy().await;
    let mut command = Command::new(support::taskgate());
    command.args(["probe", "--json", URL]).stdin(Stdio::null()).kill_on_drop(true);
    through(&mut command, &proxy, "");
    let output = in_time(command.output()).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["tools"][0]["name"], "work", "{report}");
}

#[tokio::test]
async fn upc_31_a_wrapped_address_is_reached_through_the_environments_proxy() {
    let proxy = proxy().await;
    let mut command = Command::new(support::taskgate());
    command.args(["wrap", "--url", URL]).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    through(&mut command, &proxy, "");
    let mut host = command.spawn().unwrap();
    let params =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "h", "version": "1"}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let mut input = host.stdin.take().unwrap();
    input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    let mut lines = BufReader::new(host.stdout.take().unwrap()).lines();
    let line = in_time(lines.next_line()).await.unwrap().unwrap();
    let opened: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(opened["result"]["protocolVersion"], "2025-06-18", "{opened}");
    assert_eq!(proxy.world.count("initialize"), 1);
    drop(input);
    in_time(host.wait()).await.unwrap();
}
