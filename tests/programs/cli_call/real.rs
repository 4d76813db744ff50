//! Questions of real servers, answered by the program itself.

use tokio::process::Command;

use support::ports::reserved_address;

use super::gateway::Gateway;
use super::install::Peers;
use super::process::Child;
use super::script::bounded;
use super::typing;

/// Starts a server with its port as an argument, and returns its address.
async fn start(name: &str, ready: &str, command: impl Fn(&str) -> Command) -> (Child, String) {
    let address = reserved_address();
    let mut child = Child::start(name, command(&address.port().to_string())).unwrap();
    child.line(ready).await.unwrap();
    (child, format!("http://{address}/mcp"))
}

/// Makes a call, and compares the exit code, the beginning of stdout, and lines of stderr in their order.
async fn check(arguments: &[&str], lines: &str, code: i32, output: &str, notes: &[&str]) {
    let (ended, stdout, stderr) = bounded(typing(&[&["call"], arguments].concat(), lines)).await;
    assert_eq!(ended, Some(code), "{stderr}");
    assert!(stdout.starts_with(output), "{stdout}");
    let mut rest = stderr.lines();
    for note in notes {
        assert!(rest.any(|line| line.contains(note)), "{note} is missing, or not in order: {stderr}");
    }
}

#[tokio::test]
async fn the_demo_server_asks_before_it_deletes() {
    let (_server, url) = start("call-demo", "http://", |port| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
        command.args(["demo-server", "--listen", &format!("127.0.0.1:{port}")]);
        command
    })
    .await;
    let call = [url.as_str(), "confirm_delete", r#"{"path":"/tmp/old"}"#];
    let asks = &["flavour: none", "the tool asks: Delete /tmp/old?", "Delete it (yes/no) [no]: "];
    check(&call, "y\n\n", 0, "Deleted /tmp/old.", asks).await;
    check(&call, "\n\n", 0, "Kept /tmp/old.", asks).await;
    check(&call, "y\nd\n", 4, "Kept /tmp/old.", asks).await;
    check(&call, "", 4, "Kept /tmp/old.", asks).await;
    let plain = [&call[..], &["--flavour", "none"]].concat();
    check(&plain, "y\n\n", 0, "Deleted /tmp/old.", &asks[1..]).await;
    let core = [&call[..], &["--flavour", "core"]].concat();
    check(&core, "y\n\n", 0, "Deleted /tmp/old.", &["a plain call", "the tool asks"]).await;
    // A tool whose sampling this client never offers says so itself.
    check(&[&url, "summarise", r#"{"text":"x"}"#], "", 1, "", &["flavour: none"]).await;
}

#[tokio::test]
async fn server_everything_asks_in_a_task_of_2025_11_25() {
    let Some(peers) = Peers::find("`taskgate call` to server-everything") else { return };
    let (_server, url) = start("call-everything", "MCP Streamable HTTP Server listening", |port| {
        let script = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
        let mut command = peers.command("node", [script, "streamableHttp"]);
        command.env("PORT", port);
        command
    })
    .await;
    let call = [url.as_str(), "simulate-research-query", r#"{"topic":"python","ambiguous":true}"#];
    let asks =
        ["input_required", "the tool asks: The research query", "2. snake (Python snake species)", ": 2", "completed"];
    let notes = [&["flavour: core"], &asks[..]].concat();
    check(&call, "2\n\n", 0, "# Research Report: python (snake)", &notes).await;
    check(
        &[&call[..], &["--flavour", "core"]].concat(),
        "snake\n\n",
        0,
        "# Research Report: python (snake)",
        &asks[..2],
    )
    .await;
    check(&[&url, "echo", r#"{"message":"hi"}"#], "", 0, "Echo: hi", &["flavour: none"]).await;
    let form = [url.as_str(), "trigger-elicitation-request"];
    check(&form, "Ada\n", 4, "", &["flavour: none", "the tool asks: Please provide inputs", "String (text): Ada"])
        .await;
}

#[tokio::test]
async fn fastmcp_4_asks_in_a_task_of_the_extension_and_before_a_plain_answer() {
    let Some(peers) = Peers::find("`taskgate call` to FastMCP 4") else { return };
    let (_server, url) = start("call-fastmcp4", "listening", |port| {
        peers.command("py-modern/bin/python", ["fastmcp4_tasks_server.py", "--port", port])
    })
    .await;
    let call = [url.as_str(), "book", r#"{"train":"ICE 1"}"#];
    let lines = "40\n4\nmiddle\naisle\ny\n\n";
    let asks = [
        "the tool asks: Which seat",
        "expected at most 20",
        "middle is none of the choices",
        "quiet (yes/no, optional) [no]: y",
    ];
    let seat = "ICE 1: row 4, aisle, quiet (asked)";
    check(&call, lines, 0, seat, &[&["flavour: extension", "working", "input_required"], &asks[..]].concat()).await;
    check(&[&call[..], &["--flavour", "none"]].concat(), lines, 0, seat, &asks).await;
    check(
        &[&call[..], &["--no-input"]].concat(),
        "",
        4,
        "ICE 1: decline (asked)",
        &["declined, because of --no-input"],
    )
    .await;
    check(&[&url, "slow", r#"{"seconds":0.1}"#, "--no-wait"], "", 0, "{", &["flavour: extension"]).await;
}

/// The gateway offers the extension in front of any upstream.
#[tokio::test]
async fn the_gateway_is_called_with_the_extension_and_takes_the_other_flavours_too() {
    let (_demo, upstream) = start("call-gateway-demo", "http://", |port| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
        command.args(["demo-server", "--listen", &format!("127.0.0.1:{port}")]);
        command
    })
    .await;
    let config = format!("[upstreams.demo]\nurl = \"{upstream}\"\n\n[upstreams.demo.tasks]\nmode = \"always\"\n");
    let gateway = Gateway::start("call-gateway", &config, 1).await.unwrap();
    let url = gateway.url("demo");
    let call = [url, "slow_report", r#"{"seconds":0.1,"steps":2}"#];
    let ready = "The report is ready: 2 sections";
    check(&call, "", 0, ready, &["flavour: extension", "task "]).await;
    for flavour in ["extension", "core", "none"] {
        check(&[&call[..], &["--flavour", flavour]].concat(), "", 0, ready, &["calling"]).await;
    }
}
