//! `taskgate serve` without a file: one command leads to a task, and the output can be pasted.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use support::ports::reserved_address;
use tempfile::TempDir;

const TASKGATE: &str = env!("CARGO_BIN_EXE_taskgate");
/// The longest that any one line of a program is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// A variable that tests may set; `None` in a mistake's environment leaves all out.
const CONFIG: &str = "TASKGATE_CONFIG";

/// A program that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn taskgate(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(TASKGATE);
    command.env_remove(CONFIG).env_remove("TASKGATE_LOG").current_dir(folder).args(arguments);
    command
}

/// Starts a program and reads its output up to a line that contains `last`.
fn start(mut command: Command, last: &str) -> (Running, Vec<String>) {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let running = Running(child);
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let mut seen = Vec::new();
    while !seen.last().is_some_and(|line: &String| line.contains(last)) {
        seen.push(lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no line with {last} after {seen:?}")));
    }
    (running, seen)
}

fn demo(folder: &Path) -> (Running, String) {
    let (running, lines) = start(taskgate(folder, &["demo-server", "--listen", "127.0.0.1:0"]), "http://");
    (running, lines[0].clone())
}

fn serve(folder: &Path, arguments: &[&str]) -> (Running, Vec<String>) {
    start(taskgate(folder, &[&["serve"], arguments].concat()), "TOOL '{}'")
}

fn served(lines: &[String]) -> Vec<&str> {
    lines.iter().filter_map(|line| line.strip_prefix("serving ")).collect()
}

/// Runs a printed line as a person would: pasted into a shell, with the name of a tool in it.
fn paste(line: &str, tool: &str, arguments: &Value) -> Output {
    let line = line.replace("TOOL '{}'", &format!("{tool} '{arguments}'"));
    Command::new("sh").args(["-c", &line]).output().unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn one_line_leads_from_a_program_to_a_task_and_all_that_is_printed_works() {
    let folder = folder();
    let (_gateway, lines) = serve(folder.path(), &["--port", "0", "--", TASKGATE, "demo-server"]);
    let [url] = served(&lines)[..] else { panic!("{lines:?}") };
    assert!(url.starts_with("http://127.0.0.1:") && url.ends_with("/mcp"), "{url}");
    assert!(lines.contains(&format!("  claude mcp add --transport http taskgate {url}")), "{lines:?}");
    let json: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(line.trim()).ok()).collect();
    let [over_http, over_stdio] = json.as_slice() else { panic!("{lines:?}") };
    assert_eq!(*over_http, json!({ "servers": { "taskgate": { "type": "http", "url": url } } }));

    let slow = paste(lines.last().unwrap(), "slow_report", &json!({ "seconds": 6, "steps": 3 }));
    let said = String::from_utf8_lossy(&slow.stderr);
    assert!(slow.status.success() && said.contains("working"), "{said}");
    assert!(String::from_utf8_lossy(&slow.stdout).contains("3 sections"));
    let probed = paste(&lines[lines.len() - 2], "", &Value::Null);
    assert!(String::from_utf8_lossy(&probed.stdout).contains("slow_report"));
    assert!(folder.path().join("taskgate-data").is_dir());

    let entry = &over_stdio["mcpServers"]["taskgate"];
    let arguments = entry["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let mut host = Command::new(entry["command"].as_str().unwrap());
    let host = host.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut host = Running(host.spawn().unwrap());
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": "2025-06-18",
        "capabilities": {}, "clientInfo": { "name": "host", "version": "1" } } });
    writeln!(host.0.stdin.as_mut().unwrap(), "{hello}").unwrap();
    let mut answer = String::new();
    BufReader::new(host.0.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
    assert!(answer.contains("\"serverInfo\""), "{answer}");
}

#[test]
fn one_line_leads_from_an_address_to_a_task_and_its_options_hold() {
    let folder = folder();
    let (_server, url) = demo(folder.path());
    let options = ["--port", "0", "--mode", "always", "--store", "kept"];
    let (_gateway, lines) = serve(folder.path(), &[&options[..], &[&url]].concat());
    let greeted = paste(&format!("{} --no-wait", lines.last().unwrap()), "greet", &json!({ "name": "Ada" }));
    let handle = String::from_utf8_lossy(&greeted.stdout).into_owned();
    assert!(handle.contains(r#""resultType":"task""#), "{handle}");
    assert!(folder.path().join("kept").is_dir() && !folder.path().join("taskgate-data").exists());
}

#[test]
fn several_servers_are_served_below_their_names_and_the_environments_file_is_ignored() {
    let folder = folder();
    let (_server, url) = demo(folder.path());
    let (one, two) = (format!("one={url}"), format!("two={url}"));
    let mut command = taskgate(folder.path(), &["serve", "--upstream", &one, "--upstream", &two]);
    command.env(CONFIG, "nowhere.toml");
    let (_gateway, lines) = start(command, "/two/mcp TOOL");
    let [first, second] = served(&lines)[..] else { panic!("{lines:?}") };
    assert!(first.ends_with("/one/mcp") && second.ends_with("/two/mcp"), "{lines:?}");
    let greeted = paste(lines.last().unwrap(), "greet", &json!({ "name": "Ada" }));
    assert_eq!(String::from_utf8_lossy(&greeted.stdout).trim(), "Hello, Ada!");
}

#[test]
fn the_quick_start_takes_the_same_options() {
    let folder = folder();
    let command = taskgate(folder.path(), &["serve", "--port", "0", "--grace", "0s", "--store", "kept"]);
    let (_gateway, lines) = start(command, "--no-wait");
    // Shorter than the grace that holds otherwise, and longer than any answer that comes in the moment of the call.
    let call = lines[lines.len() - 2].replace(r#"{"seconds":8,"steps":8}"#, r#"{"seconds":1,"steps":1}"#);
    let short = paste(&call, "", &Value::Null);
    let said = String::from_utf8_lossy(&short.stderr).into_owned();
    assert!(short.status.success() && said.contains("task "), "it has outlived no grace: {said}");
    assert!(folder.path().join("kept").is_dir());
}

/// The head of the first request that comes to an address of its own.
fn listen() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let (sender, heads) = mpsc::channel();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.extend(byte);
        }
        sender.send(String::from_utf8_lossy(&head).to_ascii_lowercase()).unwrap();
    });
    (url, heads)
}

#[test]
fn the_server_is_shown_the_bearer_token_that_the_environment_holds_and_headers() {
    let folder = folder();
    let (url, heads) = listen();
    let mut command = taskgate(
        folder.path(),
        &["serve", &url, "--port", "0", "--key-env", "MCP_TOKEN", "--header", "X-Tenant: acme", "--header", "X-B: b:c"],
    );
    command.env("MCP_TOKEN", "s3cr3t");
    let (_gateway, lines) = start(command, "TOOL '{}'");
    assert!(!lines.concat().contains("s3cr3t"));
    let call = lines.last().unwrap().clone();
    let mut caller = Command::new("sh").args(["-c", &format!("exec {call}")]).stderr(Stdio::null()).spawn().unwrap();
    let head = heads.recv_timeout(PATIENCE).unwrap();
    let _ = caller.kill();
    let _ = caller.wait();
    for line in ["authorization: bearer s3cr3t\r\n", "x-tenant: acme\r\n", "x-b: b:c\r\n"] {
        assert!(head.contains(line), "{head}");
    }
}

#[test]
fn a_port_that_was_asked_for_is_taken_or_refused() {
    let folder = folder();
    // No other process gets it once the holder has released it.
    let address = reserved_address();
    let holder = TcpListener::bind(address).unwrap();
    let port = address.port().to_string();
    let arguments = ["serve", "http://127.0.0.1:1/mcp", "--port", &port];
    let refused = taskgate(folder.path(), &arguments).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(70), "{said}");
    assert!(said.contains(&format!("--port: cannot listen on 127.0.0.1:{port}: ")), "{said}");
    assert!(said.contains("omit it to use a free one"), "{said}");
    assert!(!folder.path().join("taskgate-data").exists(), "ports are found before the store is opened");
    drop(holder);
    let (_gateway, lines) = serve(folder.path(), &arguments[1..]);
    assert_eq!(served(&lines), [format!("http://127.0.0.1:{port}/mcp")]);
}

/// The program once found its own former try in the store, and waited for it.
#[test]
fn a_first_start_beside_a_taken_port_finds_a_free_one_before_it_opens_its_store() {
    let begin = || {
        let folder = folder();
        let line = format!("exec '{TASKGATE}' serve http://127.0.0.1:1/mcp 2>log");
        let mut command = Command::new("sh");
        command.env_remove(CONFIG).env("TASKGATE_LOG", "info").current_dir(folder.path()).args(["-c", &line]);
        let (gateway, lines) = start(command, "TOOL '{}'");
        let [url] = served(&lines)[..] else { panic!("{lines:?}") };
        (url.contains(":8080/"), folder, gateway)
    };
    // The port is taken, by this test or by another program. If the other program ends before the gateway starts, the gateway gets
    // the port, and a second gateway starts beside it.
    let holder = TcpListener::bind("127.0.0.1:8080");
    let (mut started, mut former) = (begin(), None);
    if started.0 && holder.is_err() {
        former = Some(std::mem::replace(&mut started, begin()));
    }
    let (has_port, folder, _gateway) = started;
    assert!(!has_port, "the port is taken");
    assert!(folder.path().join("taskgate-data").is_dir());
    let log = fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!log.contains("has the store"), "{log}");
    drop(former);
}

#[test]
fn a_store_of_no_use_is_named_as_the_command_line_does() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "no folder").unwrap();
    let refused = taskgate(folder.path(), &["serve", "http://127.0.0.1:1/mcp", "--store", "file"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(64), "{said}");
    assert!(said.contains("--store: file: "), "{said}");
}

#[test]
fn an_address_in_use_is_named_with_its_key() {
    let folder = folder();
    let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let taken = holder.local_addr().unwrap();
    for table in ["listen", "admin", "metrics"] {
        let free = ["listen", "admin"].into_iter().filter(|other| *other != table);
        let free: String = free.map(|other| format!("[{other}]\naddress = \"127.0.0.1:0\"\n")).collect();
        let text = format!(
            "{free}[{table}]\naddress = \"{taken}\"\n[store]\nkind = \"memory\"\n[upstreams.a]\nurl = \"http://127.0.0.1:1/mcp\"\n"
        );
        fs::write(folder.path().join("a.toml"), text).unwrap();
        let refused = taskgate(folder.path(), &["serve", "a.toml"]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(70), "{said}");
        assert!(said.contains(&format!("key `{table}.address`: cannot listen on {taken}: ")), "{said}");
    }
}

#[test]
fn a_mistake_is_reported_with_its_correction() {
    let folder = folder();
    let (url, other) = ("http://127.0.0.1:1/mcp", "a=http://127.0.0.1:1/mcp");
    fs::write(folder.path().join("a.toml"), "[upstreams.a]\nurl = \"http://127.0.0.1:1/mcp\"\n").unwrap();
    let twice = "exclude each other; write one of them";
    for (arguments, code, expected) in [
        (&["--port", "65536", url][..], 64, "invalid value '65536' for '--port <PORT>'"),
        (&["--port", "-1", url], 64, "unexpected argument '-1'"),
        (&["127.0.0.1:1/mcp"], 64, "there is no such file; an address begins with http:// or https://"),
        (&["--"], 64, "a server's command stands after `--`"),
        (&["--port", "0", "--"], 64, "a server's command stands after `--`"),
        (&["ftp://127.0.0.1/mcp"], 64, "there is no such file; an address begins with http:// or https://"),
        (&["http://"], 64, "URL: write a URL such as"),
        (&["http://ada:s3cr3t@127.0.0.1/mcp"], 64, "URL: has a user name or password; credentials do not belong"),
        (&["http://127.0.0.1/mcp#s3cr3t"], 64, "URL: has a fragment"),
        (&["--upstream", "Bad.Name=http://127.0.0.1:1"], 64, "--upstream: an upstream's name has 1 to 64 characters"),
        (&["--upstream", url], 64, "--upstream: write NAME=URL, such as reports=http://127.0.0.1:9000/mcp"),
        (&["--upstream", "a=127.0.0.1:1/mcp"], 64, "--upstream: write a URL such as"),
        (&["--upstream", "a=http://u:s3cr3t@127.0.0.1"], 64, "--upstream: has a user name or password"),
        (&["--upstream", other, "--upstream", other], 64, "two servers are called a; give each another name"),
        (&["--upstream", other, url], 64, twice),
        (&["--upstream", other, "--", "true"], 64, twice),
        (&["--upstream", other, "--config", "a.toml"], 64, twice),
        (&["a.toml", "--config", "a.toml"], 64, twice),
        (&["a.toml", "--", "true"], 64, twice),
        (&[url, "--", "true"], 64, twice),
        (&["nowhere.toml"], 64, "nowhere.toml: cannot be read: No such file"),
        (
            &["npx"],
            64,
            "npx: there is no such file; an address begins with http:// or https://, and a command stands after `--`",
        ),
        (&["a.toml", "--grace", "1s"], 64, "--grace is for servers that the command line names; a file has `grace` in"),
        (&["a.toml", "--mode", "auto"], 64, "--mode is for servers that the command line names; a file has `mode` in"),
        (&["a.toml", "--port", "0"], 64, "--port is for servers that the command line names; a file has `address` in"),
        (&["a.toml", "--store", "x"], 64, "--store is for servers that the command line names; a file has `path` in"),
        (&["a.toml", "--key-env", "X"], 64, "--key-env is for servers that the command line names; a file has `auth"),
        (&["--key-env", "X"], 64, "--key-env is for a server that is named by its URL; the quick start has none"),
        (&[url, "--key-env", "NOWHERE_TO_BE_FOUND"], 64, "`--key-env`: the environment has no such variable"),
        (&[url, "--key-env", "sk-s3cr3t"], 64, "`--key-env`: the environment has no such variable"),
        (&["--key-env", "PATH", "--", "true"], 64, "`--key-env`: is for an upstream with a `url`"),
        (
            &["--upstream", other, "--upstream", "b=http://127.0.0.1:2", "--key-env", "PATH"],
            64,
            "is ambiguous with several servers",
        ),
        (&[url, "--mode", "sometimes"], 64, "write never, auto, always or required"),
        (&[url, "--grace", "31s"], 64, "a call is held back for 30s at most"),
        (&[url, "--grace", "soon"], 64, "write a duration such as 2s or 500ms"),
        (&["npx", "-y", "server"], 64, "a server's command stands after `--`: taskgate serve -- COMMAND"),
        (&["npx", "server"], 64, "a server's command stands after `--`: taskgate serve -- COMMAND"),
        (&["--", "no-such-program"], 69, "no-such-program: is not found in PATH; install it"),
        (&["--", "./no-such-program"], 69, "./no-such-program: does not exist"),
        (&["--", ""], 64, "names no program"),
    ] {
        check_refused(folder.path(), arguments, (code, expected));
    }
    assert!(!folder.path().join("taskgate-data").exists(), "nothing was made");
}

/// The message of a refusal holds no secret, and nothing is served.
fn check_refused(folder: &Path, arguments: &[&str], (code, expected): (i32, &str)) {
    let refused = taskgate(folder, &[&["serve"], arguments].concat()).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.contains(expected), "{arguments:?}: {said}");
    assert!(!said.contains("s3cr3t"), "{arguments:?}: {said}");
    assert!(refused.stdout.is_empty());
}

#[test]
fn headers_and_certificates_for_other_kinds_of_servers_are_refused() {
    let folder = folder();
    let (url, other) = ("http://127.0.0.1:1/mcp", "a=http://127.0.0.1:1/mcp");
    fs::write(folder.path().join("a.toml"), "[upstreams.a]\nurl = \"http://127.0.0.1:1/mcp\"\n").unwrap();
    for (arguments, code, expected) in [
        (
            &["a.toml", "--header", "X-A: b"][..],
            64,
            "--header is for servers that the command line names; a file has [up",
        ),
        (&["a.toml", "--ca", "ca.pem"], 64, "--ca is for servers that the command line names; a file has `ca` in"),
        (&["--header", "X-A: b"], 64, "--header is for a server that is named by its URL; the quick start has none"),
        (&["--header", "X-A: b", "--", "true"], 64, "`--header`: is for a server that is named by its URL"),
        (&[url, "--header", "X-A"], 64, "`--header`: write 'NAME: VALUE'"),
        (&[url, "--header", "X-A: s3cr3t\r\nX-B: 1"], 64, "`--header`: the value is invalid"),
        (&[url, "--header", "X-A\r\nX-B: s3cr3t"], 64, "`--header`: the name is not allowed"),
        (&[url, "--header", "Host: s3cr3t"], 64, "`--header`: the name is not allowed"),
        (&[url, "--header", "Mcp-Session-Id: s3cr3t"], 64, "`--header`: the name is not allowed"),
        (&[url, "--header", "X-A: 1", "--header", "x-a: 2"], 64, "`--header`: one name is written twice"),
        (
            &[url, "--header", "Authorization: Bearer s3cr3t", "--key-env", "PATH"],
            64,
            "`--header`: Authorization is the header of the key, too",
        ),
        (
            &["--upstream", other, "--upstream", "b=http://127.0.0.1:2", "--header", "X-A: b"],
            64,
            "`--header`: is ambiguous with several servers",
        ),
        (&[url, "--ca", "ca.pem"], 64, "`--ca`: the `url` begins with http://"),
        (&["https://127.0.0.1:1/mcp", "--ca", "nowhere.pem"], 64, "--ca: nowhere.pem: cannot be read"),
        (&["--ca", "ca.pem", "--", "true"], 64, "`--ca`: is for an upstream with a `url`"),
    ] {
        check_refused(folder.path(), arguments, (code, expected));
    }
    assert!(!folder.path().join("taskgate-data").exists(), "nothing was made");
}

#[test]
fn a_file_that_the_environment_names_holds_where_nothing_else_is_said() {
    let folder = folder();
    let named = |arguments: &[&str]| {
        let mut command = taskgate(folder.path(), arguments);
        let refused = command.env(CONFIG, PathBuf::from("nowhere.toml")).output().unwrap();
        (refused.status.code(), String::from_utf8_lossy(&refused.stderr).into_owned())
    };
    let (code, said) = named(&["serve"]);
    assert_eq!(code, Some(64));
    assert!(said.contains("nowhere.toml: there is no such file, but TASKGATE_CONFIG names it"), "{said}");
    assert_eq!(named(&[]), (code, said));
    fs::write(folder.path().join("nowhere.toml"), "").unwrap();
    let (code, said) = named(&["serve", "--grace", "1s"]);
    assert_eq!(code, Some(64));
    assert!(said.contains("the file that TASKGATE_CONFIG names has `grace`"), "{said}");
    let (_, said) = named(&["serve", "other.toml"]);
    assert!(said.contains("other.toml: cannot be read"), "{said}");
}
