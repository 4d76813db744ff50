//! `taskgate call` against scripted servers: its requests, output, questions and exit codes. And against real servers,
//! where they are installed.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod core;
mod extension;
mod handles;
mod none;
mod real;
mod script;

use support::peers::gateway;
use support::peers::install;
use support::peers::process;
use support::ports::reserved_address;
use support::processes;

use std::process::Stdio;
use std::{fs, io};

use extension::{cancelled, completed, handle, working};
use script::{Server, Step, bounded, error, text};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;

#[tokio::test]
async fn a_server_that_is_not_there_is_a_lost_call() {
    let url = format!("http://{}/mcp", reserved_address());
    let output = program(&["call", &url, "greet"]).output();
    assert_eq!(bounded(output).await.unwrap().status.code(), Some(69));
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command
}

#[tokio::test]
async fn the_program_ends_with_the_code_that_scripts_rely_on() {
    let failed = json!({ "content": [{ "type": "text", "text": "b" }], "isError": true });
    for (script, code, stdout) in [
        (vec![Step::Result(text("Hello"))], 0, "Hello\n"),
        (vec![handle(), working(), completed(text("done"))], 0, "done\n"),
        (vec![Step::Result(failed)], 1, "b\n"),
        (vec![Step::Error(200, error(-32603))], 2, ""),
        (vec![handle(), cancelled()], 3, ""),
        (vec![Step::Page(502)], 69, ""),
    ] {
        let server = Server::start(script, mpsc::channel(1).0).await;
        let output = program(&["call", server.url.as_str(), "greet", "--flavour", "extension"]).output();
        let output = bounded(output).await.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), stdout);
        assert!(!stderr.is_empty(), "the status goes to stderr");
    }
}

/// Standard output is a file of a full disk, or a pipe that nothing reads.
#[tokio::test]
async fn a_result_that_cannot_be_written_is_no_success_unless_its_reader_left() {
    for (arguments, script) in [
        (&["call", "greet", "--flavour", "extension"][..], vec![Step::Result(text("Hello"))]),
        (&["call", "greet", "--flavour", "extension", "--json"], vec![Step::Result(text("Hello"))]),
        (&["call", "greet", "--flavour", "extension", "--no-wait"], vec![handle()]),
    ] {
        for (is_full, code) in [(true, 70), (false, 0)] {
            let server = Server::start(script.clone(), mpsc::channel(1).0).await;
            let mut command = program(&[&arguments[..1], &[server.url.as_str()], &arguments[1..]].concat());
            if is_full {
                command.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
            } else {
                command.stdout(io::pipe().unwrap().1);
            }
            let output = bounded(command.stderr(Stdio::piped()).spawn().unwrap().wait_with_output()).await.unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
            assert_eq!(stderr.contains("the output cannot be written: No space left on device"), is_full, "{stderr}");
        }
    }
}

#[tokio::test]
async fn a_result_without_a_file_that_was_asked_for_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let image = json!({ "type": "image", "mimeType": "image/png", "data": "\u{e9}" });
    let server = Server::start(vec![Step::Result(json!({ "content": [image] }))], mpsc::channel(1).0).await;
    let out = folder.path().to_str().unwrap();
    let arguments = ["call", server.url.as_str(), "greet", "--flavour", "extension", "--out", out];
    let output = bounded(program(&arguments).output()).await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("the image is not written: its data is not base64"), "{stderr}");
    assert_eq!(output.status.code(), Some(70), "{stderr}");
}

/// Runs the program with these lines typed, and returns its code, stdout and stderr.
async fn typing(arguments: &[&str], lines: &str) -> (Option<i32>, String, String) {
    let mut command = program(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // Fails if it ends before it was asked, which the rest then shows.
    let _ = stdin.write_all(lines.as_bytes()).await;
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn typed_input_answers_the_question_and_its_text_cannot_control_the_terminal() {
    let mut question = script::question();
    question["message"] = json!("Sure?\u{1b}[2J\r\u{202e}\nReally?");
    let script = vec![none::unknown(), none::initialized(json!({})), Step::Ask(question, text("done"))];
    let server = Server::start(script, mpsc::channel(1).0).await;
    let (code, stdout, stderr) = bounded(typing(&["call", server.url.as_str(), "greet"], "y\n\n")).await;
    assert_eq!((code, stdout.as_str()), (Some(0), "done\n"), "{stderr}");
    let expected = "flavour: none\ncalling\nthe tool asks: Sure? [2J  \n  Really?\n  ok (yes/no): y\n  \
                    Send this? (accept/decline/cancel) [accept]: \n";
    assert_eq!(stderr, expected);
    assert_eq!(server.seen.lock().iter().filter(|seen| seen.message["result"] == script::accepted()).count(), 1);
}

#[tokio::test]
async fn without_an_answer_the_program_ends_with_4() {
    for (more, lines) in [(&["--no-input"][..], "y\n\n"), (&[], "")] {
        let script = vec![none::unknown(), none::initialized(json!({})), Step::Ask(script::question(), text("kept"))];
        let server = Server::start(script, mpsc::channel(1).0).await;
        let arguments = [&["call", server.url.as_str(), "greet"], more].concat();
        let (code, stdout, stderr) = bounded(typing(&arguments, lines)).await;
        assert_eq!((code, stdout.as_str()), (Some(4), "kept\n"), "{stderr}");
    }
}

#[tokio::test]
async fn the_help_explains_the_exit_codes() {
    let output = bounded(program(&["call", "--help"]).output()).await.unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for code in ["0 ", "1 ", "2 ", "3 ", "4 ", "64", "69", "70"] {
        assert!(help.contains(&format!("\n  {code}  ")), "{code}: {help}");
    }
}

#[tokio::test]
async fn the_demo_server_prints_its_address_and_stops_on_sigterm() {
    let mut child = program(&["demo-server", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let url: url::Url = bounded(lines.next_line()).await.unwrap().unwrap().parse().unwrap();
    assert_eq!((url.host_str(), url.path()), (Some("127.0.0.1"), "/mcp"));
    assert_ne!(url.port(), Some(0));
    assert!(processes::signal(child.id().unwrap(), "TERM"));
    assert_eq!(bounded(child.wait()).await.unwrap().code(), Some(0));
}
