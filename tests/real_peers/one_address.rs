//! Five real servers behind one address, as they come, and six real clients each of which uses all of them: the tools that are
//! listed, a call of each server, a resource, a prompt, a slow call (a task where the client knows tasks, held where it does
//! not), and an answer to what a server asks.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here, and the
//! output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[allow(deprecated, reason = "sessions need what 2026-07-28 goes without")]
mod rust_client;

use support::peers::bridge;
use support::peers::gateway::Gateway;
use support::peers::install::Peers;
use support::scripted::{ScriptedServer, whole};
use support::wire_client::{Flavour, WireClient};

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

const CLIENT_MAX: Duration = Duration::from_secs(150);

/// How often tools are listed until all servers have some.
const LISTS_MAX: usize = 20;

/// The servers, by their names at the endpoint, each with a tool, and what that says.
const SERVERS: [(&str, &str, &str); 5] = [
    ("everything", "echo", "Echo: hi"),
    ("filesystem", "read_text_file", "hello from a file"),
    ("memory", "search_nodes", "entities"),
    ("git", "git_log", "first commit"),
    ("fetch", "fetch", "hello from a page"),
];

/// The servers behind one address, and what they are about.
struct Table {
    peers: Peers,
    gateway: Gateway,
    page: ScriptedServer,
    files: TempDir,
    repository: TempDir,
}

impl Table {
    /// `None`, with a word about it, where nobody installed the peers. `name` is one that no other test has.
    async fn set(name: &str) -> Option<Self> {
        let peers = Peers::find("five real servers behind one address")?;
        let (files, repository) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(files.path().join("file.txt"), "hello from a file").unwrap();
        let who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"];
        let commit = [&who[..], &["commit", "-q", "--allow-empty", "-m", "first commit"]].concat();
        for arguments in [vec!["init", "-q"], commit] {
            let done = std::process::Command::new("git").args(arguments).current_dir(repository.path()).status();
            assert!(done.unwrap().success());
        }
        let page = ScriptedServer::start(|seen| (seen.method == "GET").then(|| whole("hello from a page"))).await;
        let config = configuration(&peers, files.path());
        let gateway = Gateway::start(&format!("one-address-{name}"), &config, SERVERS.len() + 1).await.unwrap();
        warm(gateway.url("all")).await;
        Some(Self { peers, gateway, page, files, repository })
    }

    fn arguments(&self, server: &str) -> Value {
        match server {
            "everything" => json!({ "message": "hi" }),
            "filesystem" => json!({ "path": self.files.path().canonicalize().unwrap().join("file.txt") }),
            "memory" => json!({ "query": "Ada" }),
            "git" => json!({ "repo_path": self.repository.path() }),
            _ => json!({ "url": format!("http://{}/page", self.page.address), "raw": true }),
        }
    }

    /// What a client is to do.
    fn plan(&self) -> Value {
        let call = |(server, tool, _): &(&str, &str, &str)| json!({ "tool": format!("{server}__{tool}"), "arguments": self.arguments(server) });
        json!({
            "servers": SERVERS.map(|(server, ..)| server),
            "calls": SERVERS.iter().map(call).collect::<Vec<_>>(),
            "resource": "demo://resource/dynamic/text/1",
            "prompt": { "name": "everything__args-prompt", "arguments": { "city": "Paris" } },
            "slow": {
                "tool": "everything__trigger-long-running-operation",
                "arguments": { "duration": 3, "steps": 3 },
            },
            "ask": { "tool": "everything__trigger-elicitation-request", "arguments": {} },
        })
    }

    /// Has a client of the peers do it; its facts.
    async fn driven(&self, program: &str, script: &str, kind: &str) -> Value {
        let plan = self.plan().to_string();
        let mut command = self.peers.command(program, [script, kind, self.gateway.url("all"), &plan]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let output = timeout(CLIENT_MAX, command.output()).await.expect("the client takes too long").unwrap();
        let (said, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{script} {kind}: {said}\n{log}");
        serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap_or_else(|_| panic!("{said}\n{log}"))
    }
}

/// Lists tools until all servers have some. A client whose first list is empty takes the endpoint for an
/// older one, and interpreters take their time to start. Clients with sessions have programs of their own all the same.
async fn warm(url: &str) {
    let address = url.split('/').nth(2).and_then(|authority| authority.parse().ok()).unwrap();
    let client = WireClient { path: "/all/mcp", ..WireClient::new(Flavour::Extension) };
    for _ in 0..LISTS_MAX {
        let listed = client.ask(address, "tools/list", json!({})).await.text;
        if SERVERS.iter().all(|(server, ..)| listed.contains(&format!("\"{server}__"))) {
            return;
        }
    }
    panic!("not all servers have started");
}

fn configuration(peers: &Peers, files: &Path) -> String {
    let path = |inside: &str| peers.join(inside).display().to_string();
    let node = |package: &str, more: &str| {
        let script = path(&format!("node_modules/@modelcontextprotocol/server-{package}/dist/index.js"));
        vec![path("node"), script, more.to_owned()]
    };
    let python =
        |module: &str, more: &[&str]| peers.words("py-modern/bin/python", [&["-m", module][..], more].concat());
    let commands: [Vec<String>; 5] = [
        node("everything", "stdio"),
        node("filesystem", &files.display().to_string()),
        node("memory", ""),
        python("mcp_server_git", &[]),
        python("mcp_server_fetch", &["--ignore-robots-txt", "--allow-private-ips"]),
    ];
    let names = SERVERS.map(|(name, ..)| name);
    let memory = files.join("memory.json");
    let sections = names.iter().zip(commands).map(|(name, command)| {
        let command: Vec<_> = command.into_iter().filter(|word| !word.is_empty()).collect();
        format!(
            "[upstreams.{name}]\ncommand = {command:?}\nenv = {{ MEMORY_FILE_PATH = {memory:?} }}\n\
             [upstreams.{name}.tasks]\ngrace = \"1s\"\npoll_interval = \"200ms\"\n"
        )
    });
    let sections: String = sections.collect();
    format!("{sections}[[endpoints]]\npath = \"/all/mcp\"\nupstreams = {names:?}\n")
}

/// What every client must have seen, and whether its slow call was a task.
fn check(facts: &Value, is_task: bool) {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{value} in {facts}")).to_owned();
    for (at, (server, tool, says)) in SERVERS.iter().enumerate() {
        let name = format!("{server}__{tool}");
        assert!(facts["tools"].as_array().unwrap().contains(&json!(name)), "{name}: {facts}");
        assert!(text(&facts["said"][at]).contains(says), "{name}: {facts}");
    }
    let is_prefixed = |name: &Value| SERVERS.iter().any(|(server, ..)| text(name).starts_with(&format!("{server}__")));
    assert!(facts["tools"].as_array().unwrap().iter().all(is_prefixed), "{facts}");
    for prompt in ["everything__args-prompt", "fetch__fetch"] {
        assert!(facts["prompts"].as_array().unwrap().contains(&json!(prompt)), "{prompt}: {facts}");
    }
    for (key, says) in
        [("resource", "Resource 1"), ("prompt", "Paris"), ("slow", "Steps: 3."), ("answered", "- Name: Ada")]
    {
        assert!(text(&facts[key]).contains(says), "{key}: {facts}");
    }
    assert_eq!((&facts["asked"], facts["task"].is_string()), (&json!(1), is_task), "{facts}");
}

async fn drive(name: &str, (program, script, kind): (&str, &str, &str), is_task: bool) {
    let Some(table) = Table::set(name).await else { return };
    check(&table.driven(program, script, kind).await, is_task);
}

support::async_rows! {
    the_typescript_sdk_1_uses_five_servers_and_has_its_tasks: drive("ts1", ("node", "endpoint_ts.mjs", "ts1"), true);
    the_typescript_client_2_uses_five_servers_and_is_held: drive("ts2", ("node", "endpoint_ts.mjs", "ts2"), false);
    the_python_sdk_1_uses_five_servers_and_has_its_tasks:
        drive("py1", ("py-legacy/bin/python", "endpoint_py.py", "sdk"), true);
    the_python_sdk_2_uses_five_servers_and_is_held:
        drive("py2", ("py-modern/bin/python", "endpoint_py.py", "sdk"), false);
    fastmcp_4_uses_five_servers_and_has_the_extension:
        drive("fastmcp4", ("py-modern/bin/python", "endpoint_py.py", "fastmcp"), true);
}

#[tokio::test]
async fn rmcp_uses_five_servers_and_is_held() {
    let Some(table) = Table::set("rmcp").await else { return };
    let facts = timeout(CLIENT_MAX, rust_client::drive(table.gateway.url("all"), &table.plan())).await;
    check(&facts.expect("rmcp takes too long").unwrap(), false);
}
