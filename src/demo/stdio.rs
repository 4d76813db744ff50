//! Serves the demo over stdio: one session, which is the process.

use std::io;
use std::sync::Arc;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::http;
use super::rpc::{self, Incoming};
use super::session::{DemoMessages, DemoSession, DemoSessions};
use crate::wire::framing::LineDecoder;
use crate::wire::{RpcError, method, rpc_error};

const LINE_BYTES_MAX: usize = 4 << 20;
const READ_BYTES: usize = 64 * 1024;
const EVENTS_MAX: usize = 64;

/// Serves the client until it closes its side; running calls are then stopped.
pub async fn serve(
    mut input: impl AsyncRead + Unpin + Send,
    output: impl AsyncWrite + Unpin + Send + 'static,
) -> io::Result<()> {
    let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
    let _ends_all = cancel.clone().drop_guard();
    let (events, lines) = mpsc::channel(EVENTS_MAX);
    tracker.spawn(write(lines, output));
    let mut client = DemoClient { sessions: DemoSessions::new(cancel), session: None, tracker, events };
    let mut decoder = LineDecoder::new(LINE_BYTES_MAX);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        let read = input.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        for line in decoder.feed(&buffer[..read]).map_err(io::Error::other)? {
            client.take(&line).await;
        }
    }
}

async fn write(mut lines: mpsc::Receiver<Value>, mut output: impl AsyncWrite + Unpin) {
    while let Some(message) = lines.recv().await {
        let line = format!("{message}\n");
        if output.write_all(line.as_bytes()).await.is_err() || output.flush().await.is_err() {
            return;
        }
    }
}

struct DemoClient {
    sessions: DemoSessions,
    session: Option<Arc<DemoSession>>,
    tracker: TaskTracker,
    events: DemoMessages,
}

impl DemoClient {
    async fn take(&mut self, line: &[u8]) {
        let Ok(message) = serde_json::from_slice(line) else {
            return self.send(rpc::refusal(&RpcError::new(rpc_error::PARSE_ERROR, "the line is not JSON"))).await;
        };
        let messages = if let Value::Array(messages) = message { messages } else { vec![message] };
        for message in messages {
            match rpc::read(message) {
                Some(message) => self.take_one(message).await,
                None => {
                    let error = RpcError::new(rpc_error::INVALID_REQUEST, "the line is not a JSON-RPC message");
                    self.send(rpc::refusal(&error)).await;
                }
            }
        }
    }

    async fn take_one(&mut self, message: Incoming) {
        match (message, &self.session) {
            (Incoming::Request(request), _) if request.method == method::INITIALIZE => {
                let Some((session, result)) = http::open(&self.sessions, &request) else { return };
                self.session = Some(session);
                self.send(rpc::answer(&request.id, Ok(result))).await;
            }
            (Incoming::Request(request), _) if !http::is_known(&request.method) => {
                self.send(rpc::answer(&request.id, Err(http::unknown(&request.method)))).await;
            }
            (Incoming::Request(request), None) => {
                let error = RpcError::new(rpc_error::INVALID_REQUEST, "there is no session before initialize");
                self.send(rpc::answer(&request.id, Err(error))).await;
            }
            (Incoming::Request(request), Some(session)) => {
                http::start(&self.tracker, session, request, self.events.clone());
            }
            (other @ (Incoming::Notification { .. } | Incoming::Answer { .. }), Some(session)) => {
                http::take(session, other);
            }
            (Incoming::Notification { .. } | Incoming::Answer { .. }, None) => (),
        }
    }

    async fn send(&self, message: Value) {
        // Fails if the client has disconnected and so needs no response.
        let _ = self.events.send(message).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncBufReadExt as _, BufReader};

    use super::*;

    #[tokio::test]
    async fn a_line_is_answered_by_a_line_and_the_end_of_the_input_ends_it() {
        let (mut to, input) = tokio::io::duplex(4096);
        let (output, from) = tokio::io::duplex(4096);
        let serving = serve(input, output);
        let talking = async {
            let initialize = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize",
                "params": { "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {} } });
            let greet = json!({ "jsonrpc": "2.0", "id": "1", "method": "tools/call",
                "params": { "name": "greet", "arguments": { "name": "Ada" } } });
            to.write_all(format!("{initialize}\n{greet}\nno json\n").as_bytes()).await.unwrap();
            let mut lines = BufReader::new(from).lines();
            let mut said = Vec::new();
            for _ in 0..3 {
                let line = lines.next_line().await.unwrap().unwrap();
                said.push(serde_json::from_str::<Value>(&line).unwrap());
            }
            drop(to);
            said
        };
        let (served, said) = tokio::join!(serving, talking);
        served.unwrap();
        let find = |id: Value| said.iter().find(|message| message["id"] == id).unwrap();
        assert_eq!(find(json!(1))["result"]["protocolVersion"], "2025-06-18");
        assert_eq!(find(json!("1"))["result"]["content"][0]["text"], "Hello, Ada!");
        assert_eq!(find(Value::Null)["error"]["code"], -32700);
    }
}
