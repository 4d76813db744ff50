//! A gateway whose log or standard output cannot be written, as on a full disk, or is not read.

use std::io::{BufRead, PipeWriter, Read as _};
use std::os::fd::AsRawFd as _;
use std::process::Stdio;
use std::thread;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::program::{Call, Folder, Program, block};
use super::upstream::{ScriptedServer, answer, in_time};

const APPLIED: &str = "taskgate_config_reloads_total{outcome=\"applied\"}";
const REJECTED: &str = "taskgate_config_reloads_total{outcome=\"rejected\"}";
const LOST: &str = "taskgate_log_lines_lost_total";

async fn worker() -> ScriptedServer {
    ScriptedServer::start(|seen| match seen.rpc() {
        "tools/list" => Some(answer(seen, &json!({"tools": [{"name": "work", "inputSchema": {"type": "object"}}]}))),
        "tools/call" => Some(answer(seen, &json!({"content": []}))),
        _ => None,
    })
    .await
}

/// A gateway one of whose outputs is a file of a full disk.
fn on_full_disk(folder: &Folder, output: &str) -> Command {
    redirected(folder, &format!("{output}>/dev/full"))
}

fn redirected(folder: &Folder, to: &str) -> Command {
    let command = folder.command();
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("exec \"$0\" \"$@\" {to}")).env_remove("TASKGATE_LOG");
    shell.arg(command.as_std().get_program()).args(command.as_std().get_args());
    shell
}

/// The path by which another process opens a pipe of this one.
fn path_of(pipe: &PipeWriter) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), pipe.as_raw_fd())
}

#[tokio::test]
async fn f91_a_gateway_whose_log_cannot_be_written_serves_reloads_and_drains() {
    let (server, folder) = (worker().await, Folder::new());
    folder.write(&block("up", &server));
    let mut program = Program::launch(on_full_disk(&folder, "2")).await;
    let called = Call::plain(&json!({})).send(program.clients, "/up/mcp").await;
    assert!(called.json()["result"].is_object(), "{called:?}");
    folder.write("[upstreams.up]\nurl = 1\n");
    program.until_counted(REJECTED, 1).await;
    folder.write(&format!("{}tasks.grace = \"7s\"\n", block("up", &server)));
    program.until_counted(APPLIED, 1).await;
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));
}

#[tokio::test]
async fn f91_a_gateway_whose_addresses_cannot_be_printed_says_so_and_serves() {
    let (server, folder) = (worker().await, Folder::new());
    folder.write(&block("up", &server));
    let mut command = on_full_disk(&folder, "");
    let mut child = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let (mut clients, mut is_said) = (None, false);
    while clients.is_none() || !is_said {
        let line = in_time(lines.next_line()).await.unwrap().expect("the gateway ended");
        let entry: Value = serde_json::from_str(&line).unwrap();
        is_said |= entry["fields"]["message"] == "the addresses cannot be printed";
        if entry["fields"]["listener"] == "clients" {
            clients = Some(entry["fields"]["local_addr"].as_str().unwrap_or_else(|| panic!("{line}")).parse().unwrap());
        }
    }
    let called = Call::plain(&json!({})).send(clients.unwrap(), "/up/mcp").await;
    assert!(called.json()["result"].is_object(), "{called:?}");
}

/// A reader that hangs, as a collector of logs on a busy machine; later it reads on.
#[tokio::test]
async fn f96_a_gateway_whose_log_is_not_read_serves_and_counts_the_lines_that_it_loses() {
    let (server, folder) = (worker().await, Folder::new());
    folder.write(&block("up", &server));
    let (log, writer) = std::io::pipe().unwrap();
    let mut command = redirected(&folder, &format!("2>{}", path_of(&writer)));
    command.env("TASKGATE_LOG", "trace");
    let mut program = Program::launch(command).await;
    drop(writer);
    while program.counted(LOST).await == 0 {
        for _ in 0..10 {
            let called = Call::plain(&json!({})).send(program.clients, "/up/mcp").await;
            assert!(called.json()["result"].is_object(), "{called:?}");
        }
    }
    folder.write(&format!("{}tasks.grace = \"7s\"\n", block("up", &server)));
    program.until_counted(APPLIED, 1).await;
    let mut log = std::io::BufReader::new(log);
    let reading = thread::spawn(move || {
        let mut line = String::new();
        while !line.contains("lines were lost: standard error") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "the gateway ended");
        }
        (log, line)
    });
    let (mut log, line) = in_time(tokio::task::spawn_blocking(|| reading.join().unwrap())).await.unwrap();
    let entry: Value = serde_json::from_str(&line).unwrap();
    let lost = entry["fields"]["lines"].as_u64().unwrap();
    assert!(lost > 0 && lost <= program.counted(LOST).await, "{line}");
    let reading = thread::spawn(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    });
    program.signal("INT");
    assert_eq!(program.ended().await, Some(0));
    let text = in_time(tokio::task::spawn_blocking(|| reading.join().unwrap())).await.unwrap();
    assert!(text.contains("\"drained\""), "the end is in the log: {text}");
}
