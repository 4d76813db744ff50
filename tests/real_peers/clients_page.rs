//! The client code of `docs/clients.md`: each file of `tests/clients` against the gateway in front of the demo server.
//!
//! `TASKGATE_PEERS` names the folder that `tests/peers/setup.sh` filled; without it nothing runs here but the check of
//! the configuration, and the output says so.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

#[path = "../clients/rmcp/connect.rs"]
mod connect;
#[path = "../clients/rmcp/task.rs"]
mod task;

use support::peers::bridge;
use support::peers::gateway;
use support::peers::install;
use support::peers::process;
use support::peers::upstream;
use support::peers::{WAIT_MAX, in_time};

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use bridge::UnixSocketProxy;
use gateway::Gateway;
use http::{HeaderName, HeaderValue};
use install::Peers;
use process::Child;
use rmcp::model::{CallToolRequestParams, CallToolResponse, ClientConfig, TaskPayload, TaskStatus};
use rmcp::service::{RoleClient, RunningService, ServiceError};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::sleep;
use upstream::{PeerServer, Program};

const CODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");
const FOLDERS: [&str; 6] = ["ai_sdk", "curl", "fastmcp", "python", "typescript", "typescript1"];
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// A key, and the digest of it that `taskgate keys new` printed.
const KEY: &str = "tg_ada2d72fae0_1a0031f961553380c2619973168b138fe19230a762cdcd5810773767631f3c0e";
const KEY_SHA256: &str = "ada2d72fae0:1441279a84b7ff47fb1019286a3057922caee20a17ce1749e993cc1ef16ab278";

const REPORT: &str = "The report is ready: 4 sections in 4 s.";
const DELETED: &str = "Deleted /tmp/old.";
const QUESTION: &str = "question: Delete /tmp/old?";
const PROGRESS: &str = "progress: section";
/// The upstream whose slow calls name their task in a text.
const POLLED: &str = "polled";
const DEMO: &str = "demo";
/// How long a killed gateway refuses connections: longer than clients wait between two polls.
const DOWN: Duration = Duration::from_secs(3);

/// A folder with the page's files and the packages that they import, and a gateway for them.
#[derive(Debug)]
struct Project {
    what: &'static str,
    program: &'static str,
    peers: Peers,
    dir: TempDir,
    gateway: Gateway,
    _server: PeerServer,
}

impl Project {
    async fn open(what: &'static str, program: &'static str) -> Option<Self> {
        let peers = Peers::find(what)?;
        let server = PeerServer::start(Program::Demo, &peers, what).await.unwrap();
        let upstream = |name: &str, keys: &str| {
            let tasks = format!(
                "[upstreams.{name}.tasks]\ngrace = \"1s\"\npoll_interval = \"500ms\"\nafter_crash = \"rerun\"\n{keys}"
            );
            format!("[upstreams.{name}]\nurl = \"{}\"\n{tasks}", server.url())
        };
        let auth =
            format!("[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey_sha256 = \"{KEY_SHA256}\"\n");
        let upstreams = [upstream(DEMO, ""), upstream(POLLED, "fallback = \"tools\"\n"), auth].concat();
        let gateway = Gateway::start(&format!("{what}-gateway"), &upstreams, 2).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        symlink(peers.join("node_modules"), dir.path().join("node_modules")).unwrap();
        let mut count = 0;
        for folder in FOLDERS {
            fs::create_dir(dir.path().join(folder)).unwrap();
            for entry in fs::read_dir(Path::new(CODE).join(folder)).unwrap() {
                let file = entry.unwrap();
                // Programs leave folders of their own there.
                if file.path().is_file() {
                    fs::copy(file.path(), dir.path().join(folder).join(file.file_name())).unwrap();
                    count += 1;
                }
            }
        }
        assert!(count >= 30, "only {count} files were copied");
        Some(Self { what, program, peers, dir, gateway, _server: server })
    }

    /// Starts a file, such as `curl/call.sh`, in its folder.
    fn start(&self, upstream: &str, file: &str, argument: Option<&str>) -> Child {
        let (folder, name) = file.split_once('/').unwrap();
        let path = self.dir.path().join(file).display().to_string();
        let words = match self.program {
            "sh" => vec!["sh".to_owned(), path],
            program => self.peers.words(program, [path]),
        };
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(argument).current_dir(self.dir.path().join(folder));
        command.env("TASKGATE_URL", self.gateway.url(upstream)).env("TASKGATE_KEY", KEY).env("PYTHONUNBUFFERED", "1");
        Child::start(&format!("{}-{}", self.what, name), command).unwrap()
    }

    /// Runs a file to its end: its lines.
    async fn lines(&self, upstream: &str, file: &str, argument: Option<&str>) -> Vec<String> {
        let mut child = self.start(upstream, file, argument);
        let mut lines = Vec::new();
        while let Some(line) = child.next_line(WAIT_MAX).await.unwrap() {
            lines.push(line);
        }
        lines
    }

    /// Runs a file, and looks in its lines for `expected`, in this order. On a busy machine, its polls may miss all progress of a task.
    async fn run(&self, file: &str, expected: &[&str]) -> Vec<String> {
        for attempt in 1.. {
            let lines = self.lines(DEMO, file, None).await;
            let mut rest = lines.iter();
            let Some(text) = expected.iter().find(|text| !rest.any(|line| line.contains(**text))) else { return lines };
            let may_be_missed = text.starts_with("progress") && attempt < 5;
            assert!(may_be_missed, "{file} printed no {text:?} in its place: {lines:#?}");
        }
        unreachable!()
    }

    /// Kills the client once it has the handle; `take_up` gets the result by the task's id.
    async fn take_up(&self, file: &str, take_up: &str) -> String {
        let mut child = self.start(DEMO, file, None);
        let id = child.line("task ").await.unwrap();
        child.kill().await.unwrap();
        let lines = self.lines(DEMO, take_up, Some(&id)).await;
        assert!(lines.last().is_some_and(|line| line.contains(REPORT)), "{take_up}: {lines:#?}");
        id
    }

    /// Kills the client once its call is stored under its key; the same file again gets the result of that call.
    async fn repeat(&self, file: &str) {
        let before = self.created().await;
        let mut child = self.start(DEMO, file, None);
        while self.created().await == before {
            sleep(LOOK_PERIOD).await;
        }
        child.kill().await.unwrap();
        self.run(file, &["calling", REPORT]).await;
        assert_eq!(self.created().await, before + 1, "the tool ran once");
    }

    /// Kills the gateway while a file polls a task. Refused polls are repeated, so the file prints the result. With `take_up`,
    /// the file's SDK gives up if a poll is under way at that moment, as the page says; then `take_up` gets the result.
    async fn outlive(&mut self, upstream: &str, file: &str, take_up: Option<&str>) {
        let mut child = self.start(upstream, file, None);
        let id = child.line("task ").await.unwrap();
        if upstream == DEMO {
            child.line(PROGRESS).await.unwrap();
        }
        self.gateway.restart_after(DOWN).await.unwrap();
        let mut lines = Vec::new();
        while let Some(line) = child.next_line(WAIT_MAX).await.unwrap() {
            lines.push(line);
        }
        let is_shown = |lines: &[String]| lines.iter().any(|line| line.contains(REPORT));
        if let Some(take_up) = take_up.filter(|_| !is_shown(&lines)) {
            lines.extend(self.lines(upstream, take_up, Some(&id)).await);
        }
        assert!(is_shown(&lines), "{file}: {lines:#?}");
    }

    async fn created(&self) -> u64 {
        self.metric("taskgate_tasks_created_total{upstream=\"demo\"} ").await
    }

    async fn metric(&self, start: &str) -> u64 {
        let page = self.gateway.metrics().await.unwrap();
        page.lines().find_map(|line| line.strip_prefix(start)).unwrap().parse().unwrap()
    }

    /// Waits until the server has no call: each cancel reached it.
    async fn idle(&self) {
        let idle = async {
            while self.metric("taskgate_upstream_in_flight{upstream=\"demo\"} ").await > 0 {
                sleep(LOOK_PERIOD).await;
            }
        };
        in_time(idle).await;
    }
}

/// The words behind `start` in the one line that begins so.
#[track_caller]
fn behind<'a>(lines: &'a [String], start: &str) -> &'a str {
    let found = lines.iter().find_map(|line| line.strip_prefix(start));
    found.unwrap_or_else(|| panic!("no line begins with {start:?}: {lines:#?}"))
}

#[track_caller]
fn assert_listed(lines: &[String], id: &str) {
    assert!(lines.iter().any(|line| line.contains(id)), "{id} is not in {lines:#?}");
}

#[tokio::test]
async fn curl_does_all_of_it() {
    assert!(install::program("curl").is_some(), "curl is not installed: run `make setup`");
    let Some(mut project) = Project::open("clients-curl", "sh").await else { return };
    project.run("curl/call.sh", &["task ", PROGRESS, REPORT]).await;
    project.run("curl/ask.sh", &[QUESTION, DELETED]).await;
    project.run("curl/cancel.sh", &["status: cancelled"]).await;
    let id = project.take_up("curl/call.sh", "curl/take_up.sh").await;
    assert_listed(&project.run("curl/list.sh", &["\"tasks\":["]).await, &id);
    let lines = project.run("curl/once.sh", &[]).await;
    let once = behind(&lines, "by header: ");
    assert_eq!(once.len(), 32, "{lines:#?}");
    assert_eq!((once, once), (behind(&lines, "again: "), behind(&lines, "by _meta: ")));
    project.run("curl/listen.sh", &["working: section", "completed: section 4/4 written"]).await;
    project.outlive(DEMO, "curl/call.sh", None).await;
    project.idle().await;
}

#[tokio::test]
async fn the_typescript_client_with_ext_tasks_does_all_of_it() {
    let Some(mut project) = Project::open("clients-ts-tasks", "node").await else { return };
    project.run("typescript/tasks_call.mjs", &["task ", PROGRESS, REPORT]).await;
    project.run("typescript/tasks_ask.mjs", &[QUESTION, DELETED]).await;
    project.run("typescript/tasks_cancel.mjs", &["status: cancelled"]).await;
    let id = project.take_up("typescript/tasks_call.mjs", "typescript/tasks_take_up.mjs").await;
    assert_listed(&project.run("typescript/tasks_list.mjs", &[]).await, &id);
    let lines = project.run("typescript/tasks_once.mjs", &[]).await;
    assert_eq!(behind(&lines, "by header: "), behind(&lines, "by _meta: "));
    project.run("typescript/tasks_listen.mjs", &["working section", "completed section 4/4 written"]).await;
    project.outlive(DEMO, "typescript/tasks_call.mjs", None).await;
    project.idle().await;
}

#[tokio::test]
async fn the_typescript_client_alone_waits_or_sends_raw_requests() {
    let Some(project) = Project::open("clients-ts-plain", "node").await else { return };
    project.run("typescript/plain_call.mjs", &[PROGRESS, REPORT, QUESTION, DELETED]).await;
    project.repeat("typescript/plain_once.mjs").await;
    project.run("typescript/plain_cancel.mjs", &["cancelled: "]).await;
    project.run("typescript/plain_listen.mjs", &["granted: {"]).await;
    project.run("typescript/raw_task.mjs", &[QUESTION, "completed Deleted /tmp/old."]).await;
    project.idle().await;
}

#[tokio::test]
async fn the_typescript_sdk_1_has_tasks_of_2025_11_25() {
    let Some(mut project) = Project::open("clients-ts1", "node").await else { return };
    project.run("typescript1/call.mjs", &["task ", PROGRESS, REPORT]).await;
    project.run("typescript1/ask.mjs", &[QUESTION, DELETED]).await;
    let id = project.take_up("typescript1/call.mjs", "typescript1/take_up.mjs").await;
    assert_listed(&project.run("typescript1/cancel.mjs", &["status: cancelled", "listed: "]).await, &id);
    let lines = project.run("typescript1/once.mjs", &[]).await;
    assert_eq!(behind(&lines, "by _meta: "), behind(&lines, "again: "));
    project.outlive(DEMO, "typescript1/call.mjs", Some("typescript1/take_up.mjs")).await;
    project.idle().await;
}

#[tokio::test]
async fn the_python_sdk_waits_or_follows_tasks_by_an_extension() {
    let Some(mut project) = Project::open("clients-py", "py-modern/bin/python").await else { return };
    project.run("python/call.py", &[PROGRESS, REPORT, QUESTION, DELETED]).await;
    project.repeat("python/once.py").await;
    project.run("python/cancel.py", &["cancelled"]).await;
    project.run("python/listen.py", &["granted: {"]).await;
    project.run("python/tasks_call.py", &["task ", PROGRESS, REPORT, QUESTION, DELETED]).await;
    project.run("python/tasks_cancel.py", &["status: cancelled"]).await;
    let id = project.take_up("python/tasks_call.py", "python/tasks_take_up.py").await;
    assert_listed(&project.run("python/tasks_list.py", &[]).await, &id);
    project.run("python/tasks_listen.py", &["working section", "completed section 4/4 written"]).await;
    project.outlive(DEMO, "python/tasks_call.py", Some("python/tasks_take_up.py")).await;
    project.idle().await;
}

#[tokio::test]
async fn fastmcp_follows_tasks_by_itself() {
    let Some(mut project) = Project::open("clients-fastmcp", "py-modern/bin/python").await else { return };
    project.run("fastmcp/call.py", &[REPORT, QUESTION, DELETED]).await;
    project.run("fastmcp/handle.py", &["task ", PROGRESS, REPORT]).await;
    project.run("fastmcp/cancel.py", &["status: cancelled"]).await;
    project.take_up("fastmcp/handle.py", "fastmcp/take_up.py").await;
    let lines = project.run("fastmcp/once.py", &[]).await;
    assert_eq!(behind(&lines, "by header: "), behind(&lines, "by _meta: "));
    project.outlive(DEMO, "fastmcp/handle.py", Some("fastmcp/take_up.py")).await;
    project.idle().await;
}

#[tokio::test]
async fn the_ai_sdk_waits_or_goes_on_by_tools() {
    let Some(mut project) = Project::open("clients-ai-sdk", "node").await else { return };
    project.run("ai_sdk/call.mjs", &[REPORT, QUESTION, DELETED]).await;
    project.repeat("ai_sdk/once.mjs").await;
    project.run("ai_sdk/cancel.mjs", &["cancelled: "]).await;
    let lines = project.lines(POLLED, "ai_sdk/polled.mjs", None).await;
    assert_eq!(behind(&lines, "task ").len(), 32, "{lines:#?}");
    assert_eq!(lines.last().map(String::as_str), Some(REPORT));
    project.outlive(POLLED, "ai_sdk/polled.mjs", None).await;
    project.idle().await;
}

/// A new client, as after a crash of the one before.
async fn rmcp_client(project: &Project, bridge: &UnixSocketProxy) -> RunningService<RoleClient, ClientConfig> {
    let config = StreamableHttpClientTransportConfig::with_uri(project.gateway.url(DEMO)).auth_header(KEY);
    let socket = bridge.socket();
    let transport = StreamableHttpClientTransport::from_unix_socket_with_config(&socket.to_string_lossy(), config);
    in_time(connect::connect(transport)).await.unwrap()
}

fn id_of(response: CallToolResponse) -> String {
    let CallToolResponse::Task(created) = response else { panic!("{response:?} is no handle") };
    created.task.task_id
}

#[tokio::test]
async fn rmcp_follows_tasks_by_hand() {
    let Some(mut project) = Project::open("clients-rmcp", "sh").await else { return };
    let bridge = UnixSocketProxy::to(project.gateway.url(DEMO)).unwrap();
    let report = json!({ "seconds": 4, "steps": 4 });
    let client = rmcp_client(&project, &bridge).await;
    let id = id_of(task::begin(client.peer(), "slow_report", report.clone(), "report-7").await.unwrap());
    drop(client);

    let client = rmcp_client(&project, &bridge).await;
    let mut shown = Vec::new();
    let ended = in_time(task::follow(client.peer(), &id, |text| shown.push(text))).await.unwrap();
    assert!(shown.iter().any(|text| text.starts_with("section ")), "{shown:?}");
    let TaskPayload::Completed { result } = ended.payload else { panic!("{ended:?} has no result") };
    assert_eq!(result["content"][0]["text"], REPORT);
    let again = id_of(task::begin(client.peer(), "slow_report", report, "report-7").await.unwrap());
    assert_eq!(again, id);

    let asked = json!({ "path": "/tmp/old" });
    let asked = id_of(task::begin(client.peer(), "confirm_delete", asked, "delete-7").await.unwrap());
    let ended = in_time(task::follow(client.peer(), &asked, drop)).await.unwrap();
    let TaskPayload::Completed { result } = ended.payload else { panic!("{ended:?} has no result") };
    assert_eq!(result["content"][0]["text"], DELETED);

    let long = id_of(task::begin(client.peer(), "slow_report", json!({ "seconds": 60 }), "long-7").await.unwrap());
    task::cancel(client.peer(), &long).await.unwrap();
    let ended = in_time(task::follow(client.peer(), &long, drop)).await.unwrap();
    assert_eq!(ended.status(), TaskStatus::Cancelled);

    let report = json!({ "seconds": 4, "steps": 4 });
    let id = id_of(task::begin(client.peer(), "slow_report", report, "report-11").await.unwrap());
    let follow = task::follow(client.peer(), &id, drop);
    let (ended, restarted) =
        Box::pin(in_time(async { tokio::join!(follow, project.gateway.restart_after(DOWN)) })).await;
    restarted.unwrap();
    assert_eq!(ended.unwrap().status(), TaskStatus::Completed);
    client.cancel().await.unwrap();
    project.idle().await;
}

/// The page says which call loses the handle, and where else a key may stand.
#[tokio::test]
async fn rmcp_loses_the_handle_of_call_tool_and_finds_it_by_a_key_in_a_header() {
    let Some(project) = Project::open("clients-rmcp-lost", "sh").await else { return };
    let bridge = UnixSocketProxy::to(project.gateway.url(DEMO)).unwrap();
    let headers = [(HeaderName::from_static("idempotency-key"), HeaderValue::from_static("report-8"))];
    let config = StreamableHttpClientTransportConfig::with_uri(project.gateway.url(DEMO)).auth_header(KEY);
    let config = config.custom_headers(headers.into());
    let socket = bridge.socket();
    let transport = StreamableHttpClientTransport::from_unix_socket_with_config(&socket.to_string_lossy(), config);
    let client = in_time(connect::connect(transport)).await.unwrap();
    let mut params = CallToolRequestParams::new("slow_report");
    params.arguments = json!({ "seconds": 4, "steps": 4 }).as_object().cloned();
    let lost = in_time(client.call_tool(params.clone())).await;
    assert!(matches!(lost, Err(ServiceError::UnexpectedResponse)), "{lost:?}");
    let found = id_of(in_time(client.peer().call_tool_once(params)).await.unwrap());
    let ended = in_time(task::follow(client.peer(), &found, drop)).await.unwrap();
    assert_eq!(ended.status(), TaskStatus::Completed);
    assert_eq!(project.created().await, 1, "the second call found the task of the first");
    client.cancel().await.unwrap();
}

#[tokio::test]
async fn the_configuration_for_hosted_clients_is_accepted() {
    let file = Path::new(CODE).join("hosted.toml");
    let output = Command::new(support::taskgate()).arg("check").arg(file).output().await.unwrap();
    let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && printed.contains("/reports/mcp"), "{printed}");
}
