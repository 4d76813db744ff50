//! Misbehaves as a server: ends, floods, prints lines that are no messages, ignores its end.

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

const OPTION: &str = "--faults=";
const TOOL: &str = "broken";
/// Lines of a flood.
const FLOOD_LINES: usize = 20_000;
/// How long a server that does not want to end stays at most.
const STUBBORN_MAX: Duration = Duration::from_secs(120);

/// The faults of the whole process.
pub(crate) struct Faults(Vec<String>);

impl Faults {
    pub(crate) fn of_the_command_line() -> Self {
        let named = std::env::args().find_map(|word| word.strip_prefix(OPTION).map(str::to_owned));
        Self(named.unwrap_or_default().split(',').map(str::to_owned).collect())
    }

    pub(crate) fn has(&self, fault: &str) -> bool {
        self.0.iter().any(|one| one == fault)
    }

    /// `start`: ends before its first line. `noise`: prints lines that are no messages.
    pub(crate) fn at_start(&self) {
        if self.has("start") {
            std::process::exit(3);
        }
        if self.has("noise") {
            write(b"starting up ...\n{\"level\":\"info\"}\n\n[not json\n");
        }
        if self.has("stubborn")
            && let Ok(mut terminate) = signal(SignalKind::terminate())
        {
            // Listened to from here on, and not heeded.
            let _ = terminate.poll_recv(&mut std::task::Context::from_waker(std::task::Waker::noop()));
        }
    }

    /// Handles a request before `initialize`; whether the demo gets it. `strict`: the process ends. `mute`: no answer.
    pub(crate) fn accepts_before_initialize(&self) -> bool {
        if self.has("strict") {
            std::process::exit(5);
        }
        !self.has("mute")
    }

    /// `cancel`: ends when a call is cancelled.
    pub(crate) fn at_a_cancel(&self) {
        if self.has("cancel") {
            std::process::exit(4);
        }
    }

    /// `stubborn`: stays when its client has gone.
    pub(crate) async fn at_the_end(&self) {
        if self.has("stubborn") {
            tokio::time::sleep(STUBBORN_MAX).await;
        }
    }
}

/// Does the fault that a call of the tool `broken` names. The demo has no such tool, and answers with an error afterwards.
pub(crate) fn in_a_call(request: &Value) {
    let params = &request["params"];
    if params["name"] != TOOL {
        return;
    }
    let arguments = &params["arguments"];
    match arguments["how"].as_str().unwrap_or_default() {
        "exit" => std::process::exit(arguments["code"].as_i64().and_then(|code| i32::try_from(code).ok()).unwrap_or(1)),
        "abort" => std::process::abort(),
        "stderr" => (0..FLOOD_LINES).for_each(|line| {
            let _ = writeln!(std::io::stderr(), "line {line} of a flood");
        }),
        "noise" => write(b"not json\n{\"half\": \n"),
        // Each character is one byte, so that any can be said.
        "says" => {
            let text = arguments["text"].as_str().unwrap_or_default().replace("{id}", &request["id"].to_string());
            let bytes: Vec<u8> = text.chars().map(|one| u8::try_from(one).unwrap_or(b'?')).chain([b'\n']).collect();
            write(&bytes);
        }
        "wrong_id" => write(format!("{}\n", json!({ "jsonrpc": "2.0", "id": "nobody's", "result": {} })).as_bytes()),
        _ => (),
    }
}

/// Writes past the server's own queue.
fn write(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(bytes);
    let _ = out.flush();
}
