//! An upstream with a correct handshake that answers `tools/call` with any given bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use support::ports::reserved_address;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The pause before each piece of an answer that drips.
const DRIP: Duration = Duration::from_millis(20);

/// How a call is answered. In every text `{id}` stands for the call's id.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Says this and closes.
    Says(Vec<u8>),
    /// Says this and goes on with the connection.
    SaysOn(Vec<u8>),
    /// Says this and is silent.
    Stays(Vec<u8>),
    /// Sends the first once, and the second again and again, as fast as the gateway reads.
    Endless(Vec<u8>, Vec<u8>),
    /// Sends the first once, and the second again and again after pauses, as long as the gateway reads.
    Drips(Vec<u8>, Vec<u8>),
    /// Says this once the test lets it.
    Held(Vec<u8>),
    /// Says this and closes; sends the second to a request that resumes the stream.
    Resumed(Vec<u8>, Vec<u8>),
    /// Says this and closes, at the handshake already.
    AtHandshake(Vec<u8>),
    /// One call after the other; the last goes for all further ones.
    InTurn(Vec<Self>),
}

/// A request that the upstream received.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) row: usize,
    /// `null` where there was none.
    pub(crate) body: Value,
    /// Counts connections.
    pub(crate) connection: usize,
}

#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    acts: Arc<Vec<Act>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Bytes written in endless answers, and how many held ones.
    pub(crate) written: Arc<Mutex<usize>>,
    /// Lets held answers go.
    pub(crate) release: CancellationToken,
    tracker: TaskTracker,
    stop: CancellationToken,
    _end: Arc<DropGuard>,
}

impl Server {
    /// The act of number n is played at the path `/n`. No other process can get the port.
    pub(crate) async fn start(acts: Vec<Act>) -> Self {
        Self::serve(TcpListener::bind(reserved_address()).await.unwrap(), acts)
    }

    /// The same at a socket that is there.
    pub(crate) fn serve(listener: TcpListener, acts: Vec<Act>) -> Self {
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        let server = Self {
            address: listener.local_addr().unwrap(),
            acts: Arc::new(acts),
            seen: Arc::default(),
            written: Arc::default(),
            release: CancellationToken::new(),
            tracker: tracker.clone(),
            stop: stop.clone(),
            _end: Arc::new(stop.clone().drop_guard()),
        };
        let (acts, seen, written) = (Arc::clone(&server.acts), Arc::clone(&server.seen), Arc::clone(&server.written));
        let release = server.release.clone();
        tracker.clone().spawn(stop.clone().run_until_cancelled_owned(async move {
            let mut connection = 0;
            while let Ok((stream, _)) = listener.accept().await {
                connection += 1;
                let one = Conversation {
                    acts: Arc::clone(&acts),
                    seen: Arc::clone(&seen),
                    written: Arc::clone(&written),
                    release: release.clone(),
                    connection,
                };
                tracker.spawn(stop.clone().run_until_cancelled_owned(async move { one.run(stream).await }));
            }
        }));
        server
    }

    /// Closes its listener and all connections.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }

    pub(crate) fn seen(&self, row: usize) -> Vec<Seen> {
        self.seen.lock().iter().filter(|seen| seen.row == row).cloned().collect()
    }

    pub(crate) fn calls(&self, row: usize) -> Vec<Seen> {
        self.seen(row).into_iter().filter(|seen| seen.body["method"] == "tools/call").collect()
    }
}

struct Conversation {
    acts: Arc<Vec<Act>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    written: Arc<Mutex<usize>>,
    release: CancellationToken,
    connection: usize,
}

/// Whether the connection goes on.
type Go = std::ops::ControlFlow<()>;
const ON: Go = Go::Continue(());
const OVER: Go = Go::Break(());

impl Conversation {
    async fn run(&self, mut stream: TcpStream) -> Option<()> {
        let mut read = Vec::new();
        loop {
            let (verb, row, body) = request(&mut stream, &mut read).await?;
            self.seen.lock().push(Seen { row, body: body.clone(), connection: self.connection });
            if self.answer(&mut stream, (&verb, row, &body)).await?.is_break() {
                return None;
            }
        }
    }

    async fn answer(&self, stream: &mut TcpStream, (verb, row, body): (&str, usize, &Value)) -> Option<Go> {
        let id = &body["id"];
        let act = &self.acts[row];
        if let (Act::AtHandshake(said), Some("initialize")) = (act, body["method"].as_str()) {
            stream.write_all(&with_id(said, id)).await.ok()?;
            return Some(OVER);
        }
        let result = match body["method"].as_str() {
            Some("initialize") => json!({
                "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                "serverInfo": { "name": "hostile", "version": "1" },
            }),
            Some("tools/list") => json!({ "tools": [{ "name": "t", "inputSchema": { "type": "object" } }] }),
            Some("tools/call") => return self.play(stream, self.turn(act, row), id).await,
            // It speaks both kinds of versions, and each path has one written down.
            Some("server/discover") => json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} },
                "ttlMs": 0, "cacheScope": "private",
            }),
            _ if verb == "GET" => {
                let Act::Resumed(_, more) = act else { return bare(stream, "405 Method Not Allowed").await };
                // The session's own stream names no event.
                if body["last"].is_null() {
                    return bare(stream, "405 Method Not Allowed").await;
                }
                let id = self.last_call(row)?;
                stream.write_all(&with_id(more, &id)).await.ok()?;
                return Some(OVER);
            }
            _ if verb == "DELETE" => return bare(stream, "200 OK").await,
            _ => return bare(stream, "202 Accepted").await,
        };
        let text = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nMcp-Session-Id: s-1\r\n";
        stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{text}", text.len()).as_bytes()).await.ok()?;
        Some(ON)
    }

    fn last_call(&self, row: usize) -> Option<Value> {
        let seen = self.seen.lock();
        let call = seen.iter().rev().find(|seen| seen.row == row && seen.body["method"] == "tools/call");
        call.map(|call| call.body["id"].clone())
    }

    /// The act that answers the last call.
    fn turn<'a>(&self, act: &'a Act, row: usize) -> &'a Act {
        let Act::InTurn(acts) = act else { return act };
        let calls =
            self.seen.lock().iter().filter(|seen| seen.row == row && seen.body["method"] == "tools/call").count();
        &acts[(calls - 1).min(acts.len() - 1)]
    }

    async fn play(&self, stream: &mut TcpStream, act: &Act, id: &Value) -> Option<Go> {
        match act {
            Act::Says(said) | Act::Resumed(said, _) | Act::AtHandshake(said) => {
                stream.write_all(&with_id(said, id)).await.ok()?;
            }
            Act::SaysOn(said) => {
                stream.write_all(&with_id(said, id)).await.ok()?;
                return Some(ON);
            }
            Act::InTurn(_) => unreachable!("a turn is no turns"),
            Act::Stays(said) => {
                stream.write_all(&with_id(said, id)).await.ok()?;
                // Until the other side leaves.
                while stream.read(&mut [0; 1024]).await.ok()? > 0 {}
            }
            Act::Endless(first, more) => {
                stream.write_all(&with_id(first, id)).await.ok()?;
                let more = with_id(more, id);
                loop {
                    let count = stream.write(&more).await.ok()?;
                    *self.written.lock() += count;
                    if count < more.len() {
                        stream.write_all(&more[count..]).await.ok()?;
                    }
                }
            }
            Act::Drips(first, more) => {
                stream.write_all(&with_id(first, id)).await.ok()?;
                loop {
                    tokio::time::sleep(DRIP).await;
                    stream.write_all(more).await.ok()?;
                }
            }
            Act::Held(said) => {
                self.release.cancelled().await;
                let written = stream.write_all(&with_id(said, id)).await;
                *self.written.lock() += 1;
                written.ok()?;
            }
        }
        // The bytes must arrive before the end of the connection.
        stream.shutdown().await.ok()?;
        while stream.read(&mut [0; 1024]).await.ok()? > 0 {}
        Some(OVER)
    }
}

async fn bare(stream: &mut TcpStream, status: &str) -> Option<Go> {
    stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await.ok()?;
    Some(ON)
}

fn with_id(bytes: &[u8], id: &Value) -> Vec<u8> {
    let id = id.to_string().into_bytes();
    let mut filled = Vec::with_capacity(bytes.len() + id.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(4).position(|four| four == b"{id}") {
        filled.extend_from_slice(&rest[..at]);
        filled.extend_from_slice(&id);
        rest = &rest[at + 4..];
    }
    filled.extend_from_slice(rest);
    with_length(filled)
}

/// Puts the number of bytes behind the head in the place of `{len}` in it.
fn with_length(bytes: Vec<u8>) -> Vec<u8> {
    let Some(at) = bytes.windows(5).position(|five| five == b"{len}") else { return bytes };
    let body = bytes.windows(4).position(|four| four == b"\r\n\r\n").map_or(bytes.len(), |end| end + 4);
    let length = (bytes.len() - body).to_string();
    [&bytes[..at], length.as_bytes(), &bytes[at + 5..]].concat()
}

/// The next request: its verb, the number that its path is, and its JSON.
async fn request(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<(String, usize, Value)> {
    let end = loop {
        if let Some(at) = read.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(read).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(read.drain(..end).collect()).ok()?;
    let field = |name: &str| {
        let mut fields = head.lines().filter_map(|line| line.split_once(": "));
        fields.find_map(|(found, value)| found.eq_ignore_ascii_case(name).then(|| value.to_owned()))
    };
    let length: usize = field("content-length").map_or(0, |length| length.parse().unwrap());
    while read.len() < length {
        if stream.read_buf(read).await.ok()? == 0 {
            return None;
        }
    }
    let body: Vec<u8> = read.drain(..length).collect();
    let mut words = head.split(' ');
    let (verb, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let body = match field("last-event-id") {
        Some(last) => json!({ "last": last }),
        None => serde_json::from_slice(&body).unwrap_or_default(),
    };
    Some((verb, path.trim_start_matches('/').parse().ok()?, body))
}
