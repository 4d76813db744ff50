//! Five unmodified servers behind one address, and six real clients each of which uses all of them: the tool list, a
//! call of each server, a resource, a prompt, a slow call (a task where the client knows tasks, held where it does
//! not), and an answer to a server's question.
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

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join;
use futures_util::stream;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::time::timeout;

const CLIENT_MAX: Duration = Duration::from_secs(150);

/// How often tools are listed until all servers have some.
const LISTS_MAX: usize = 20;

/// The servers, by their names at the endpoint, each with a tool, and the tool's text.
const SERVERS: [(&str, &str, &str); 5] = [
    ("everything", "echo", "Echo: hi"),
    ("filesystem", "read_text_file", "hello from a file"),
    ("memory", "search_nodes", "entities"),
    ("git", "git_log", "first commit"),
    ("fetch", "fetch", "hello from a page"),
];

/// The servers behind one address, and their subjects.
struct Table {
    peers: Peers,
    gateway: Gateway,
    page: ScriptedServer,
    files: TempDir,
    repository: TempDir,
}

impl Table {
    /// `None`, with a line about it, if the peers are not installed.
    async fn set() -> Option<Self> {
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
        let gateway = Gateway::start("one-address", &config, SERVERS.len() + 1).await.unwrap();
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

    /// The steps of a client.
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
    async fn driven(&self, [program, script, kind]: [&str; 3]) -> Result<Value, String> {
        let plan = self.plan().to_string();
        let mut command = self.peers.command(program, [script, kind, self.gateway.url("all"), &plan]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let output = timeout(CLIENT_MAX, command.output()).await.map_err(|_| "it takes too long")?;
        let output = output.map_err(|error| error.to_string())?;
        let (said, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let facts = serde_json::from_str(said.lines().last().unwrap_or_default());
        let wrong = || format!("{}: {said}\n{log}", output.status);
        facts.ok().filter(|_| output.status.success()).ok_or_else(wrong)
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

/// Checks a client's report, and whether its slow call was a task.
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

/// The clients but rmcp, each with its program, script and kind.
const DRIVERS: [(&str, [&str; 3]); 5] = [
    ("ts1", ["node", "endpoint_ts.mjs", "ts1"]),
    ("ts2", ["node", "endpoint_ts.mjs", "ts2"]),
    ("py1", ["py-legacy/bin/python", "endpoint_py.py", "sdk"]),
    ("py2", ["py-modern/bin/python", "endpoint_py.py", "sdk"]),
    ("fastmcp4", ["py-modern/bin/python", "endpoint_py.py", "fastmcp"]),
];

/// The number of clients that run at the same time besides rmcp; the gateway starts separate programs for each.
const DRIVERS_AT_ONCE: usize = 2;

/// The facts of each client.
type AllFacts = BTreeMap<&'static str, Result<Value, String>>;

/// The facts of all clients, which share one gateway.
async fn run() -> Option<AllFacts> {
    let table = Table::set().await?;
    let drivers = DRIVERS.map(|(client, words)| {
        let driven = Box::pin(table.driven(words));
        async move { (client, driven.await) }
    });
    let plan = table.plan();
    let rmcp = timeout(CLIENT_MAX, Box::pin(rust_client::drive(table.gateway.url("all"), &plan)));
    let drivers = stream::iter(drivers).buffer_unordered(DRIVERS_AT_ONCE).collect::<Vec<_>>();
    let (rmcp, driven) = join(rmcp, drivers).await;
    let rmcp = rmcp.unwrap_or_else(|_| Err("it takes too long".to_owned()));
    Some(driven.into_iter().chain([("rmcp", rmcp)]).collect())
}

#[track_caller]
fn check_client(client: &str, is_task: bool) {
    static FACTS: OnceLock<Option<AllFacts>> = OnceLock::new();
    let Some(facts) = FACTS.get_or_init(|| Runtime::new().unwrap().block_on(Box::pin(run()))) else { return };
    check(facts[client].as_ref().unwrap_or_else(|why| panic!("{client}: {why}")), is_task);
}

support::rows! {
    the_typescript_sdk_1_uses_five_servers_and_has_its_tasks: check_client("ts1", true);
    the_typescript_client_2_uses_five_servers_and_is_held: check_client("ts2", false);
    the_python_sdk_1_uses_five_servers_and_has_its_tasks: check_client("py1", true);
    the_python_sdk_2_uses_five_servers_and_is_held: check_client("py2", false);
    fastmcp_4_uses_five_servers_and_has_the_extension: check_client("fastmcp4", true);
    rmcp_uses_five_servers_and_is_held: check_client("rmcp", false);
}
