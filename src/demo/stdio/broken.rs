//! Ways to be a bad server, for the tests of what stands in front of it. In debug builds only.
//!
//! `TASKGATE_DEMO_FAULT` names those of the whole process; a call of the tool `broken` names one of its own.

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::demo::rpc::{DemoRequest, Incoming};
use crate::wire::method;

const VARIABLE: &str = "TASKGATE_DEMO_FAULT";
const TOOL: &str = "broken";
/// Lines of a flood.
const FLOOD_LINES: usize = 20_000;
/// How long a server that does not want to end stays at most.
const STUBBORN_MAX: Duration = Duration::from_secs(120);

fn has(fault: &str) -> bool {
    std::env::var(VARIABLE).is_ok_and(|faults| faults.split(',').any(|one| one == fault))
}

/// `start`: ends before it has said a word. `noise`: says what is no message.
pub(super) fn at_start() {
    if has("start") {
        std::process::exit(3);
    }
    if has("noise") {
        say("starting up ...\n{\"level\":\"info\"}\n\n[not json\n");
    }
    if has("stubborn")
        && let Ok(mut terminate) = signal(SignalKind::terminate())
    {
        // Listened to from here on, and not heeded.
        let _ = terminate.poll_recv(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    }
}

/// `stateless`: another server altogether.
pub(super) fn is_stateless() -> bool {
    has("stateless")
}

/// What a server does at a request before `initialize`. `strict`: ends. `mute`: says nothing.
pub(super) fn is_silent_at(request: &DemoRequest) -> bool {
    if request.method == method::INITIALIZE {
        return false;
    }
    if has("strict") {
        std::process::exit(5);
    }
    has("mute")
}

/// `stubborn`: stays when its client has gone.
pub(super) async fn at_the_end() {
    if has("stubborn") {
        tokio::time::sleep(STUBBORN_MAX).await;
    }
}

/// `cancel`: ends when a call is cancelled.
pub(super) fn at(message: &Incoming) {
    if let Incoming::Notification { method, .. } = message
        && method == method::CANCELLED
        && has("cancel")
    {
        std::process::exit(4);
    }
}

/// What the tool `broken` does before it is refused as unknown.
pub(super) fn in_a_call(request: &DemoRequest) {
    if request.method != method::TOOLS_CALL || request.params["name"] != TOOL {
        return;
    }
    let arguments = &request.params["arguments"];
    match arguments["how"].as_str().unwrap_or_default() {
        "exit" => std::process::exit(arguments["code"].as_i64().and_then(|code| i32::try_from(code).ok()).unwrap_or(1)),
        "abort" => std::process::abort(),
        "stderr" => (0..FLOOD_LINES).for_each(|line| {
            let _ = writeln!(std::io::stderr(), "line {line} of a flood");
        }),
        "noise" => say("not json\n{\"half\": \n"),
        // Each character is one byte, so that any can be said.
        "says" => {
            let text = arguments["text"].as_str().unwrap_or_default().replace("{id}", &request.id.to_string());
            let bytes: Vec<u8> = text.chars().map(|one| u8::try_from(one).unwrap_or(b'?')).chain([b'\n']).collect();
            write(&bytes);
        }
        "wrong_id" => say(&line(&json!("nobody's"))),
        _ => (),
    }
}

fn line(id: &Value) -> String {
    format!("{}\n", json!({ "jsonrpc": "2.0", "id": id, "result": {} }))
}

/// Writes past the server's own queue.
fn say(text: &str) {
    write(text.as_bytes());
}

fn write(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(bytes);
    let _ = out.flush();
}
