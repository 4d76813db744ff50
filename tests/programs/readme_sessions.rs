//! The terminal sessions in `docs/command-line.md` are the program's real output.
//!
//! A session stands between `<!-- session:NAME -->` and `<!-- /session -->`, as a block of text. Each is recorded
//! against the gateway in front of the demo server and compared; with `UPDATE_SESSIONS=1` it is written there instead.
//! Ids of tasks differ from run to run and are shown as one short id.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use support::peers::gateway;
use support::peers::process;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use gateway::Gateway;
use process::Child;

/// How often a session is recorded until it is the one on the page: a poll on a busy machine may miss a status that passes quickly.
const ATTEMPTS: usize = 5;

/// A session: its name on the page, its commands, and the typed answers.
struct Session {
    name: &'static str,
    flavour: &'static str,
    answers: &'static str,
}

const SESSIONS: [Session; 3] = [
    Session { name: "extension", flavour: "extension", answers: "y\n\n" },
    Session { name: "core", flavour: "core", answers: "maybe\ny\n\n" },
    Session { name: "none", flavour: "none", answers: "n\n\n" },
];

const CALL: [&str; 2] = ["confirm_delete", r#"{"path":"/tmp/old"}"#];
/// The gateway's address on the page.
const SHOWN_URL: &str = "http://127.0.0.1:8080/demo/mcp";
const ID_SHOWN: &str = "3f9a62";
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a session and records the terminal: the program's two outputs are one here.
async fn record(url: &str, session: &Session) -> String {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskgate"));
    command.arg("call").arg(url).args(CALL).args(["--flavour", session.flavour]);
    command.stdin(Stdio::piped()).stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    // It holds the pipe's other end, which has to close with the program.
    drop(command);
    child.stdin.take().unwrap().write_all(session.answers.as_bytes()).unwrap();
    let read = tokio::task::spawn_blocking(move || std::io::read_to_string(&mut reader).unwrap());
    let printed = tokio::time::timeout(PATIENCE, read).await;
    if printed.is_err() {
        child.kill().unwrap();
    }
    child.wait().unwrap();
    let mut text = format!("$ taskgate call {SHOWN_URL} {} '{}' --flavour {}\n", CALL[0], CALL[1], session.flavour);
    for line in printed.unwrap().unwrap().lines() {
        writeln!(text, "{}", shortened(line).trim_end()).unwrap();
    }
    text
}

/// A status line with a short id: `task ID …`.
fn shortened(line: &str) -> String {
    match line.strip_prefix("task ").and_then(|rest| rest.split_once(' ')) {
        Some((id, rest)) if id.len() >= 16 => format!("task {ID_SHOWN} {rest}"),
        Some(_) | None => line.to_owned(),
    }
}

/// The page with the session's block replaced; `None` if it has no place for it.
fn replaced(page: &str, name: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(&format!("<!-- session:{name} -->\n"))?;
    let (_, after) = rest.split_once("<!-- /session -->")?;
    Some(format!("{before}<!-- session:{name} -->\n```text\n{text}```\n<!-- /session -->{after}"))
}

async fn demo_server() -> (Child, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_taskgate"));
    command.args(["demo-server", "--listen", "127.0.0.1:0"]);
    let mut child = Child::start("readme-demo", command).unwrap();
    let address = child.line("http://").await.unwrap();
    (child, format!("http://{address}"))
}

#[tokio::test]
async fn the_page_shows_the_programs_output() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/command-line.md");
    let page = fs::read_to_string(&path).unwrap();
    let marked = SESSIONS.iter().filter(|session| page.contains(&format!("<!-- session:{} -->", session.name)));
    let marked: Vec<_> = marked.collect();
    assert_eq!(page.matches("<!-- session:").count(), marked.len(), "the page names a session that is none");
    assert_eq!(marked.len(), SESSIONS.len(), "the page lacks a session");
    let (_demo, url) = demo_server().await;
    let gateway = Gateway::start("readme-gateway", &format!("[upstreams.demo]\nurl = \"{url}\"\n"), 1).await.unwrap();
    let mut updated = page.clone();
    for session in marked {
        for attempt in 1..=ATTEMPTS {
            let text = record(gateway.url("demo"), session).await;
            let next = replaced(&updated, session.name, &text).expect("the session's end is marked");
            if next == updated || attempt == ATTEMPTS {
                updated = next;
                break;
            }
        }
    }
    if env::var_os("UPDATE_SESSIONS").is_some() {
        fs::write(&path, updated).unwrap();
    } else {
        assert_eq!(page, updated, "run this test with UPDATE_SESSIONS=1");
    }
}

#[tokio::test]
async fn a_recorded_session_is_the_same_each_time() {
    let (_demo, url) = demo_server().await;
    let session = Session { name: "none", flavour: "none", answers: "maybe\ny\n\n" };
    let expected = "\
$ taskgate call http://127.0.0.1:8080/demo/mcp confirm_delete '{\"path\":\"/tmp/old\"}' --flavour none
calling
the tool asks: Delete /tmp/old?
  Delete it (yes/no) [no]: maybe
  expected yes or no
  Delete it (yes/no) [no]: y
  Send this? (accept/decline/cancel) [accept]:
Deleted /tmp/old.
";
    for _ in 0..2 {
        assert_eq!(record(&url, &session).await, expected);
    }
}

#[test]
fn blocks_are_replaced_between_their_marks_and_ids_are_shortened() {
    let page = "a\n<!-- session:core -->\nold\n<!-- /session -->\nb <!-- session:none -->\n<!-- /session -->\n";
    let expected =
        "a\n<!-- session:core -->\n```text\nnew\n```\n<!-- /session -->\nb <!-- session:none -->\n<!-- /session -->\n";
    assert_eq!(replaced(page, "core", "new\n").as_deref(), Some(expected));
    assert_eq!(replaced(expected, "core", "new\n").as_deref(), Some(expected));
    assert_eq!(replaced(page, "extension", "new\n"), None);
    for (line, short) in [
        ("task 0123456789abcdef0123456789abcdef working: a", "task 3f9a62 working: a"),
        ("task report working", "task report working"),
        ("the tool asks: task", "the tool asks: task"),
    ] {
        assert_eq!(shortened(line), short);
    }
}
