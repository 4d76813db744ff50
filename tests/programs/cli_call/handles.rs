//! Handles that are followed from a shell, in front of a real gateway and the demo server.

use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::extension::handle;
use super::gateway::Gateway;
use super::script::{Server, Step, bounded, text};
use super::{none, processes, program};

const ADA: &str = "tg_ada_0123456789abcdef0123456789abcdef";
const BOB: &str = "tg_bob_0123456789abcdef0123456789abcdef";

/// A gateway that makes a task of every call, in front of the demo server.
struct Place {
    gateway: Gateway,
    demo: String,
    _demo: Child,
}

impl Place {
    async fn start(name: &str, more: &str) -> Self {
        let mut child = program(&["demo-server", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let demo = bounded(lines.next_line()).await.unwrap().unwrap();
        let upstreams = format!("{more}\n[upstreams.demo]\nurl = \"{demo}\"\ntasks.mode = \"always\"\n");
        let gateway = Gateway::start(name, &upstreams, 1).await.unwrap();
        Self { gateway, demo, _demo: child }
    }

    fn url(&self) -> &str {
        self.gateway.url("demo")
    }

    /// Begins a call that takes a minute, and returns its task's id and the command that follows it.
    async fn begun(&self, flavour: &str, key: Option<&str>) -> (String, String) {
        let arguments = ["call", self.url(), "slow_report", "seconds=60", "--flavour", flavour, "--no-wait"];
        let ended = Ended::of(&mut keyed(&arguments, key)).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let handle: Value = serde_json::from_str(&ended.stdout).unwrap();
        let command = ended.stderr.lines().find_map(|line| line.strip_prefix("follow it: ")).unwrap().to_owned();
        (handle["taskId"].as_str().unwrap().to_owned(), command)
    }
}

fn keyed(arguments: &[&str], key: Option<&str>) -> Command {
    let mut command = program(arguments);
    command.env_remove("TASKGATE_KEY").envs(key.map(|key| ("TASKGATE_KEY", key)));
    command
}

struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ended {
    async fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = bounded(command.output()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }

    async fn with(arguments: &[&str]) -> Self {
        Self::of(&mut keyed(arguments, None)).await
    }

    #[track_caller]
    fn is(&self, code: i32, stdout: &str, stderr: &str) {
        assert_eq!(self.code, Some(code), "{} {}", self.stdout, self.stderr);
        assert!(self.stdout.contains(stdout), "{stdout}: {}", self.stdout);
        assert!(self.stderr.contains(stderr), "{stderr}: {}", self.stderr);
    }
}

#[tokio::test]
async fn a_handle_is_followed_by_the_command_that_was_printed_with_it() {
    let place = Place::start("handles", "").await;
    let url = place.url();
    for flavour in ["extension", "core"] {
        let (id, command) = place.begun(flavour, None).await;
        assert_eq!(command, format!("taskgate task wait {url} {id} --flavour {flavour}"));
        let task = |order: &'static str| ["task", order, url, &id];
        let cases: [(&[&str], i32, &str, &str); 6] = [
            (&task("get"), 0, "working", ""),
            (&[&task("get")[..], &["--json"]].concat(), 0, "\"status\":\"working\"", ""),
            (&task("result"), 5, "", "the task has no result yet"),
            (
                &[&task("wait")[..], &["--timeout", "50ms"]].concat(),
                5,
                "",
                "; the task goes on\nfollow it: taskgate task wait",
            ),
            // Before the server has said a word.
            (
                &[&task("wait")[..], &["--timeout", "1ms"]].concat(),
                5,
                "",
                "; the task goes on\nfollow it: taskgate task wait",
            ),
            (&["task", "list", url], 0, &id, ""),
        ];
        for (arguments, code, stdout, stderr) in cases {
            Ended::with(arguments).await.is(code, stdout, stderr);
        }
        // As a shell runs it, with the built program.
        let waits = command.replacen("taskgate", "exec \"$TASKGATE\"", 1);
        let mut shell = Command::new("sh");
        shell.args(["-c", &waits]).env("TASKGATE", env!("CARGO_BIN_EXE_taskgate")).kill_on_drop(true);
        let waiting = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Ended::with(&task("cancel")).await.is(0, "cancelled", "");
        assert_eq!(bounded(waiting.wait_with_output()).await.unwrap().status.code(), Some(3));
        for order in ["result", "wait"] {
            Ended::with(&task(order)).await.is(3, "", "the task was cancelled");
        }
        Ended::with(&[&task("cancel")[..], &["--flavour", flavour]].concat()).await.is(0, "cancelled", "");
    }
    let greeted = ["call", url, "greet", "name=Ada", "--flavour", "extension", "--no-wait"];
    let handle: Value = serde_json::from_str(&Ended::with(&greeted).await.stdout).unwrap();
    let id = handle["taskId"].as_str().unwrap();
    for flavour in ["extension", "core"] {
        Ended::with(&["task", "wait", url, id, "--flavour", flavour]).await.is(0, "Hello, Ada!\n", "");
        let whole = Ended::with(&["task", "result", url, id, "--flavour", flavour, "--json"]).await;
        let whole: Value = serde_json::from_str(&whole.stdout).unwrap();
        assert_eq!(whole["content"][0]["text"], "Hello, Ada!");
        let late = Ended::with(&["task", "cancel", url, id, "--flavour", flavour]).await;
        late.is(2, "completed", "the task had ended before");
    }
}

#[tokio::test]
async fn ctrl_c_leaves_a_task_that_is_only_waited_for() {
    let place = Place::start("left", "").await;
    for flavour in ["extension", "core"] {
        let (id, _) = place.begun(flavour, None).await;
        let mut waiting = keyed(&["task", "wait", place.url(), &id, "--flavour", flavour], None);
        let mut waiting = waiting.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(waiting.stderr.take().unwrap()).lines();
        let first = bounded(said.next_line()).await.unwrap().unwrap();
        assert!(first.starts_with(&format!("task {id} working")), "{first}");
        assert!(processes::signal(waiting.id().unwrap(), "INT"));
        assert_eq!(bounded(waiting.wait()).await.unwrap().code(), Some(5));
        Ended::with(&["task", "get", place.url(), &id]).await.is(0, "working", "");
        Ended::with(&["task", "cancel", place.url(), &id]).await.is(0, "cancelled", "");
    }
}

#[tokio::test]
async fn a_handle_is_of_no_use_with_another_key_or_at_another_gateway() {
    let keys = format!(
        "[auth]\nmode = \"api_keys\"\n[[auth.api_keys]]\nid = \"ada\"\nkey = \"{ADA}\"\n[[auth.api_keys]]\nid = \"bob\"\nkey = \"{BOB}\"\n"
    );
    let (place, other) = (Place::start("keyed", &keys).await, Place::start("another", "").await);
    let (id, _) = place.begun("extension", Some(ADA)).await;
    for flavour in ["extension", "core"] {
        for order in ["get", "wait", "result", "cancel"] {
            for (url, key) in [(place.url(), Some(BOB)), (other.url(), None)] {
                let ended = Ended::of(&mut keyed(&["task", order, url, &id, "--flavour", flavour], key)).await;
                ended.is(2, "", "belong to another key, session, server or --flavour");
            }
        }
    }
    Ended::of(&mut keyed(&["task", "get", place.url(), &id], None)).await.is(69, "", "put one into TASKGATE_KEY");
    let wrong = format!("{ADA}0");
    let refused = Ended::of(&mut keyed(&["task", "get", place.url(), &id], Some(&wrong))).await;
    refused.is(69, "", "it refuses the key in TASKGATE_KEY");
    let theirs = Ended::of(&mut keyed(&["task", "list", place.url()], Some(BOB))).await;
    assert!(theirs.code == Some(0) && !theirs.stdout.contains(&id), "{}", theirs.stdout);
    Ended::of(&mut keyed(&["task", "cancel", place.url(), &id], Some(ADA))).await.is(0, "cancelled", "");
}

#[tokio::test]
async fn a_server_without_tasks_says_so() {
    let place = Place::start("plain", "").await;
    let demo = place.demo.as_str();
    for arguments in [&["task", "get", demo, "id"][..], &["task", "wait", demo, "id"], &["task", "list", demo]] {
        Ended::with(arguments).await.is(69, "", "the server has no tasks of 2025-11-25");
        let plain = [arguments, &["--flavour", "none"]].concat();
        Ended::with(&plain).await.is(64, "", "[possible values: extension, core]");
    }
    // Neither a result nor a handle: there is nothing to follow.
    Ended::with(&["call", demo, "greet", "name=Ada", "--no-wait"]).await.is(0, "Hello, Ada!\n", "");
}

#[tokio::test]
async fn arguments_are_read_as_the_schema_of_the_tool_says() {
    let place = Place::start("arguments", "").await;
    let scratch = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = scratch.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let object = format!("@{}", file("object", r#"{"name":"Ada"}"#));
    let of_name = format!("name=@{}", file("name", "Ada"));
    let large = format!("name=@{}", file("large", &"a".repeat(10 << 20)));
    for url in [place.url(), &place.demo] {
        let greet = |words: &[&'static str]| [&["call", url, "greet"], words].concat();
        for words in [vec!["call", url, "greet", &object], vec!["call", url, "greet", &of_name], greet(&["name=Ada"])] {
            Ended::with(&words).await.is(0, "Hello, Ada!\n", "");
        }
        Ended::with(&greet(&["name=5"])).await.is(0, "Hello, 5!\n", "");
        Ended::with(&greet(&["nam=Ada"])).await.is(64, "", "`greet` takes no argument `nam`; it takes name\n");
        let slow = Ended::with(&["call", url, "slow_report", "seconds=soon"]).await;
        slow.is(64, "", "the argument `seconds` takes number, and not `soon`");
        let piped = super::typing(&["call", url, "greet", "-"], r#"{"name":"Ada"}"#).await;
        assert_eq!((piped.0, piped.1.as_str()), (Some(0), "Hello, Ada!\n"), "{}", piped.2);
    }
    let refused = Ended::with(&["call", place.url(), "greet", &large]).await;
    refused.is(2, "", "Body too large: the gateway's operator can raise `limits.body_bytes_max`");
}

#[tokio::test]
async fn a_servers_offers_are_listed_in_short_and_verbatim() {
    let place = Place::start("offers", "").await;
    for url in [place.url(), &place.demo] {
        Ended::with(&["tools", url]).await.is(0, "greet(name: string)\n    Returns a greeting at once\n", "");
        let whole: Value = serde_json::from_str(&Ended::with(&["tools", url, "--json"]).await.stdout).unwrap();
        assert!(whole.as_array().unwrap().iter().any(|tool| tool["name"] == "greet"), "{whole}");
        for what in ["resources", "prompts"] {
            Ended::with(&[what, url]).await.is(0, "", &format!("the server offers no {what}"));
        }
    }
}

#[tokio::test]
async fn bytes_go_to_files_where_there_is_a_folder_for_them() {
    let image = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
    let mixed = json!({ "content": [{ "type": "text", "text": "a" }, image] });
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("new").display().to_string();
    for (more, file) in [(None, "greet-1.png"), (Some("--json"), "greet-2.png")] {
        let server = Server::start(vec![Step::Result(mixed.clone())], mpsc::channel(1).0).await;
        let arguments = ["call", server.url.as_str(), "greet", "--flavour", "extension", "--out", &folder];
        let ended = Ended::with(&[&arguments[..], more.as_slice()].concat()).await;
        let path = format!("{folder}/{file}");
        ended.is(0, &path, "");
        assert!(!ended.stdout.contains("aGk"), "{}", ended.stdout);
        assert_eq!(std::fs::read(path).unwrap(), b"hi");
    }
}

#[tokio::test]
async fn a_time_that_is_over_cancels_a_call_and_leaves_a_task() {
    let server = Server::start(vec![Step::Hang], mpsc::channel(1).0).await;
    // The time to connect is part of it.
    let call = ["call", server.url.as_str(), "greet", "--timeout", "2s", "--flavour"];
    Ended::with(&[&call[..], &["extension"]].concat()).await.is(5, "", "no result within 2s; cancelled");
    bounded(server.left.notified()).await;
    let server = Server::start(vec![Step::Hang], mpsc::channel(1).0).await;
    let call =
        ["call", server.url.as_str(), "greet", "--timeout", "2s", "--flavour", "extension", "--idempotency-key", "k"];
    let said = "no result within 2s; a taskgate gateway may run the call on under its key, and the same command gets its result; \
                another server was asked to cancel the call, and would run it again";
    Ended::with(&call).await.is(5, "", said);
    let server = Server::start(vec![handle()], mpsc::channel(1).0).await;
    let call = ["call", server.url.as_str(), "greet", "--timeout", "2s", "--flavour", "extension"];
    let command = format!("taskgate task wait {} t1 --flavour extension", server.url);
    Ended::with(&call).await.is(5, "", &format!("no result within 2s; the task goes on\nfollow it: {command}\n"));
}

#[tokio::test]
async fn an_error_is_json_where_that_is_wanted() {
    let error = json!({ "code": -32603, "message": "no", "data": { "reason": "x" } });
    for (step, code, expected) in
        [(Step::Error(200, error.clone()), 2, json!({ "error": error })), (Step::Result(text("a")), 0, text("a"))]
    {
        let script = vec![none::unknown(), none::initialized(json!({})), step];
        let server = Server::start(script, mpsc::channel(1).0).await;
        let ended = Ended::with(&["call", server.url.as_str(), "greet", "--json"]).await;
        assert_eq!(ended.code, Some(code), "{}", ended.stderr);
        assert_eq!(serde_json::from_str::<Value>(&ended.stdout).unwrap(), expected);
    }
}
