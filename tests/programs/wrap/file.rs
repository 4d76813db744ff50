//! `taskgate wrap --config`: several servers for one host.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::host::{Host, alone, greet, in_time, slow, text};

/// A folder with a configuration in it, and a host that has it wrapped.
struct HostFile {
    folder: TempDir,
    file: PathBuf,
}

impl HostFile {
    fn new(configuration: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("wrap.toml");
        fs::write(&file, configuration).unwrap();
        Self { folder, file }
    }

    fn host(&self) -> Host {
        self.host_with(&[])
    }

    fn host_with(&self, options: &[&str]) -> Host {
        Host::with(&[&["--config", &self.file.display().to_string()], options].concat(), &[], &[])
    }
}

/// A block of one upstream that is the demo server.
fn demo(name: &str) -> String {
    format!("[upstreams.{name}]\ncommand = [{:?}, \"demo-server\"]\n", env!("CARGO_BIN_EXE_taskgate"))
}

fn names(tools: &Value) -> Vec<String> {
    tools["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

fn named(tool: &str, mut params: Value) -> Value {
    params["name"] = json!(tool);
    params
}

#[tokio::test]
async fn a_host_has_several_servers_and_the_tasks_of_each() {
    let file = HostFile::new(&format!("{}tasks.grace = \"200ms\"\n{}", demo("second"), demo("first")));
    let mut host = file.host();
    host.initialize().await;
    let tools = names(&host.result(1, "tools/list", json!({})).await);
    assert!(["first__greet", "second__greet"].iter().all(|name| tools.iter().any(|tool| tool == name)), "{tools:?}");
    let first = tools.iter().position(|tool| tool.starts_with("first__"));
    assert!(tools[0].starts_with("second__") && first.is_some(), "in the order of the file: {tools:?}");
    for (id, name) in [(2, "first__greet"), (3, "second__greet")] {
        assert_eq!(text(&host.result(id, "tools/call", named(name, greet())).await), "Hello, Ada!");
    }
    // A host without sessions, with the extension: its handle is found, and leads to the outcome.
    let handle = host.result(4, "tools/call", alone(named("second__slow_report", slow(2.0)), true)).await;
    assert_eq!(handle["resultType"], "task", "{handle}");
    let id = alone(json!({ "taskId": handle["taskId"] }), true);
    let found = in_time(async {
        loop {
            let found = host.result(5, "tasks/get", id.clone()).await;
            if found["status"] != "working" {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await;
    assert!(text(&found["result"]).contains("2 sections"), "{found}");
    host.leave();
    let (status, _) = host.ended().await;
    assert_eq!(status.code(), Some(0), "{}", host.log());
    assert!(!file.folder.path().join("taskgate-data").exists(), "no store was written");
}

#[tokio::test]
async fn settings_of_endpoints_and_tools_in_the_file_take_effect() {
    let rules = "[[upstreams.one.tools]]\nmatch = \"greet\"\nrename = \"hello\"\n[[upstreams.one.tools]]\nmatch = \"slow_*\"\nhide = true\n";
    let endpoint = |prefix: &str| {
        format!("[[endpoints]]\npath = \"/mcp\"\nupstreams = [\"one\", \"two\"]\nprefix = \"{prefix}\"\n")
    };
    for (configuration, there, absent) in [
        (format!("{}{rules}", demo("one")), &["hello"][..], &["greet", "one__hello", "slow_report"][..]),
        (
            format!("{}{rules}{}{}", demo("one"), demo("two"), endpoint("always")),
            &["one__hello", "two__greet", "two__slow_report"],
            &["hello", "greet", "one__slow_report"],
        ),
        (
            format!("{}{rules}{}{}", demo("one"), demo("two"), endpoint("auto")),
            &["hello", "greet", "slow_report"],
            &["one__hello", "two__greet"],
        ),
    ] {
        let file = HostFile::new(&configuration);
        let mut host = file.host();
        host.initialize().await;
        let tools = names(&host.result(1, "tools/list", json!({})).await);
        assert!(there.iter().all(|name| tools.iter().any(|tool| tool == name)), "{configuration}: {tools:?}");
        assert!(!absent.iter().any(|name| tools.iter().any(|tool| tool == name)), "{configuration}: {tools:?}");
        assert_eq!(text(&host.result(2, "tools/call", named(there[0], greet())).await), "Hello, Ada!");
        host.leave();
        assert_eq!(host.ended().await.0.code(), Some(0), "{}", host.log());
    }
}

/// The host learns it from the instructions, the answer to a call, and the log.
#[tokio::test]
async fn a_server_that_cannot_be_started_takes_nothing_from_the_others() {
    let missing = "[upstreams.gone]\ncommand = [\"/nowhere/to-be-found\"]\n";
    let unset = "[upstreams.secret]\nurl = \"http://127.0.0.1:1/mcp\"\n[upstreams.secret.auth]\nauthorization = \"Bearer ${TASKGATE_TEST_UNSET}\"\n";
    let file = HostFile::new(&format!("{}{missing}{unset}", demo("one")));
    let mut host = file.host();
    let initialized = host.initialize().await;
    let instructions = initialized["instructions"].as_str().unwrap_or_default();
    let tools = names(&host.result(1, "tools/list", json!({})).await);
    assert!(tools.contains(&"one__greet".to_owned()), "{tools:?}");
    assert_eq!(text(&host.result(2, "tools/call", named("one__greet", greet())).await), "Hello, Ada!");
    for (id, name, why) in [
        (3, "gone", "/nowhere/to-be-found: does not exist"),
        (4, "secret", "the environment has no variable TASKGATE_TEST_UNSET"),
    ] {
        assert!(
            instructions.contains(&format!("# {name}\n\nThis server is not available")) && instructions.contains(why),
            "{instructions}"
        );
        host.ask(id, "tools/call", named(&format!("{name}__read"), json!({ "arguments": {} }))).await;
        let answer = host.answer(id).await;
        let words = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(words.contains(&format!("The server {name} is not available")) && words.contains(why), "{answer}");
        host.until_it_says(why).await;
    }
    host.until_it_says("key `upstreams.secret.auth.authorization`").await;
    host.leave();
    assert_eq!(host.ended().await.0.code(), Some(0), "{}", host.log());
}

/// Where no server is left, there is nothing to serve.
#[tokio::test]
async fn wrap_ends_if_no_server_of_its_file_can_be_started() {
    let missing = "[upstreams.gone]\ncommand = [\"/nowhere/to-be-found\"]\n";
    let unset = "[upstreams.secret]\nurl = \"http://${TASKGATE_TEST_UNSET}/mcp\"\n";
    for (configuration, code, words) in [
        (missing, 69, "/nowhere/to-be-found: does not exist"),
        (unset, 64, "wrap.toml:2: key `upstreams.secret.url`: the environment has no variable TASKGATE_TEST_UNSET"),
    ] {
        let file = HostFile::new(configuration);
        let mut host = file.host();
        let (status, said) = host.ended().await;
        assert_eq!((status.code(), said.as_str()), (Some(code), ""), "{}", host.log());
        assert!(host.log().contains(words), "{}", host.log());
    }
}

#[tokio::test]
async fn tasks_are_kept_where_the_file_says() {
    let store = tempfile::tempdir().unwrap();
    let store = format!("[store]\npath = {:?}\nephemeral = true\n", store.path().join("tasks"));
    let file = HostFile::new(&format!("{store}{}{}", demo("one"), demo("two")));
    let mut host = file.host();
    let always = alone(named("two__slow_report", slow(60.0)), true);
    let handle = host.result(1, "tools/call", always).await;
    host.leave();
    assert_eq!(host.ended().await.0.code(), Some(0), "{}", host.log());
    let mut host = file.host();
    let id = alone(json!({ "taskId": handle["taskId"] }), true);
    let found = in_time(async {
        loop {
            let found = host.result(2, "tasks/get", id.clone()).await;
            if found["status"] != "working" {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(found["error"]["data"]["reason"], "gateway_restart", "{found}");
    // It is open elsewhere.
    let mut other = file.host();
    assert_eq!(other.ended().await.0.code(), Some(75), "{}", other.log());
    assert!(other.log().contains("store.path"), "{}", other.log());
}

/// Reported as `check` does: file, line and key, all of them at once.
#[tokio::test]
async fn sections_that_wrap_cannot_use_are_mistakes() {
    let one = demo("one");
    let endpoint = "[[endpoints]]\npath = \"/mcp\"\nupstreams = [\"one\"]\n";
    for (configuration, options, words) in [
        (
            format!("[listen]\naddress = \"127.0.0.1:0\"\n{one}"),
            &[][..],
            &["wrap.toml:1: key `listen`: `taskgate wrap` has no listener"][..],
        ),
        (format!("[listen.tls]\ncertificate = \"a\"\nkey = \"b\"\n{one}"), &[], &["wrap.toml:1: key `listen`: "]),
        (
            format!("{one}[admin]\naddress = \"127.0.0.1:0\"\n"),
            &[],
            &["wrap.toml:3: key `admin`: `taskgate wrap` has no listener for operators"],
        ),
        (format!("{one}[[admin.tokens]]\nfile = \"ops.token\"\n"), &[], &["wrap.toml:3: key `admin`: "]),
        (format!("{one}[metrics]\naddress = \"127.0.0.1:0\"\n"), &[], &["wrap.toml:3: key `metrics`: "]),
        (
            format!("{one}[auth]\nmode = \"api_keys\"\n"),
            &[],
            &["wrap.toml:3: key `auth`: `taskgate wrap` serves only the host"],
        ),
        (
            format!("[listen]\n[auth]\n{one}[metrics]\naddress = \"127.0.0.1:0\"\n[limits]\nbody_bytes_max = 1\n"),
            &[],
            &[":1: key `listen`", ":2: key `auth`", ":5: key `metrics`", "key `limits.body_bytes_max`"],
        ),
        (
            format!("{one}{endpoint}[[endpoints]]\npath = \"/other\"\nupstreams = [\"one\"]\n"),
            &[],
            &["wrap.toml:6: key `endpoints[1]`: a host is served one endpoint"],
        ),
        (
            format!("{one}[[endpoints]]\npath = \"/mcp\"\nupstreams = [\"nobody\"]\n"),
            &[],
            &["there is no upstream `nobody`"],
        ),
        (
            format!("{}{}", demo("a"), demo("a__b")),
            &[],
            &["key `upstreams`: `a` and `a__b`: the prefixes `a__` and `a__b__` are ambiguous"],
        ),
        (String::new(), &[], &["upstreams"]),
        ("[upstreams".to_owned(), &[], &["wrap.toml:1"]),
        (one.clone(), &["--grace", "1s"], &["--config", "--grace"]),
        (one.clone(), &["--mode", "always"], &["--config", "--mode"]),
        (one.clone(), &["--fallback", "tools"], &["--config", "--fallback"]),
        (one.clone(), &["--store", "tasks"], &["--config", "--store"]),
        (one.clone(), &["--key-env", "TOKEN"], &["--config", "--key-env"]),
        (one.clone(), &["--url", "http://127.0.0.1:1/mcp"], &["--config", "--url"]),
        (one.clone(), &["--", "true"], &["--config", "COMMAND"]),
    ] {
        let file = HostFile::new(&configuration);
        let mut host = file.host_with(options);
        let (status, said) = host.ended().await;
        let log = host.log();
        assert_eq!((status.code(), said.as_str()), (Some(64), ""), "{configuration} {options:?}: {log}");
        assert!(words.iter().all(|word| log.contains(word)), "{configuration} {options:?}: {log}");
        assert!(!log.contains("no key is declared"), "a table that has to go needs no key: {log}");
    }
}

/// The usual address of a gateway is another server's here, and no upstream is forgotten in silence.
#[tokio::test]
async fn servers_that_the_host_does_not_get_are_logged() {
    let configuration = format!(
        "{}{}[upstreams.far]\nurl = \"http://127.0.0.1:8080/mcp\"\n[[endpoints]]\npath = \"/mcp\"\nupstreams = [\"one\", \"far\"]\n",
        demo("one"),
        demo("two"),
    );
    let file = HostFile::new(&configuration);
    let mut host = file.host();
    host.initialize().await;
    host.until_it_says("key `upstreams.two`: is in no endpoint").await;
    host.leave();
    assert_eq!(host.ended().await.0.code(), Some(0), "{}", host.log());
}
