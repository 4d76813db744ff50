//! A listener with a recording endpoint behind it, and a client that speaks in bytes.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, StatusCode};
use parking_lot::Mutex;
use taskgate::face::http::{Endpoint, FaceResponse, Inbound, empty_body, full_body};
use taskgate::server::{
    Authenticator, ListenSettings, ListenerLimits, ListenerRole, ListenerSpec, Routes, RunningListener, start,
};
use taskgate::task::Principal;
use taskgate::wire::{Message, ScanLimits, envelope};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::column::Column;

/// Nothing in these tests takes this long unless it hangs, also on a machine that does much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const BODY_MAX: usize = 64 << 10;

/// The header lines of an ordinary POST.
pub(crate) const JSON: &str = "Host: localhost\r\nContent-Type: application/json\r\n";

/// Answers 200 to a POST and 405 to anything else, and keeps the requests.
pub(crate) struct Recorder {
    pub(crate) seen: Mutex<Vec<Inbound>>,
    /// Permits for requests to `/hold`.
    pub(crate) released: Semaphore,
    arrived: Semaphore,
    /// Requests to `/hold` that were dropped before they were released.
    pub(crate) dropped: AtomicUsize,
}

impl Recorder {
    const fn new() -> Self {
        Self {
            seen: Mutex::new(Vec::new()),
            released: Semaphore::const_new(0),
            arrived: Semaphore::const_new(0),
            dropped: AtomicUsize::new(0),
        }
    }

    async fn hold(&self) {
        let counted = CountedDrop(&self.dropped);
        self.released.acquire().await.unwrap().forget();
        std::mem::forget(counted);
    }
}

struct CountedDrop<'a>(&'a AtomicUsize);

impl Drop for CountedDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Endpoint for Recorder {
    async fn serve(&self, request: Box<Inbound>) -> FaceResponse {
        let (method, path) = (request.method.clone(), request.path.clone());
        note_messages(&request);
        self.seen.lock().push(*request);
        self.arrived.add_permits(1);
        match &*path {
            "/panic" => panic!("a handler with a bug"),
            "/hold" => self.hold().await,
            "/page" => return FaceResponse::new(full_body(Bytes::from(vec![b' '; 2_000]))),
            "/flood" => return FaceResponse::new(full_body(Bytes::from(vec![b' '; 64 << 20]))),
            _ => (),
        }
        if method == Method::POST {
            return FaceResponse::new(full_body(Bytes::from_static(b"{\"served\":true}")));
        }
        let mut response = FaceResponse::new(empty_body());
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert("allow", "POST".parse().unwrap());
        response
    }
}

/// Reads the messages of a request, as every path does.
fn note_messages(request: &Inbound) {
    let messages: Vec<Message> = match envelope::read(&request.body, ScanLimits::CLIENT) {
        Ok(message) => vec![message],
        Err(_) => {
            let items = envelope::read_batch(&request.body, ScanLimits::CLIENT, envelope::BATCH_MAX);
            items.unwrap_or_default().into_iter().flatten().collect()
        }
    };
    let _ = request.arrival.is_wanted(&messages);
}

pub(crate) struct Gate {
    pub(crate) running: RunningListener,
    pub(crate) recorder: Arc<Recorder>,
}

pub(crate) fn settings() -> ListenSettings {
    let (address, body_bytes_max) = (SocketAddr::from(([127, 0, 0, 1], 0)), NonZeroUsize::new(BODY_MAX).unwrap());
    ListenSettings {
        allowed_hosts: vec!["gate.example".to_owned()],
        allowed_origins: vec!["https://app.example:8443".to_owned()],
        drain_max: PATIENCE,
        ..ListenSettings::new(address, body_bytes_max, NonZeroUsize::new(100).unwrap())
    }
}

pub(crate) async fn gate() -> Gate {
    gate_with(settings(), ListenerLimits::default()).await
}

pub(crate) async fn gate_with(settings: ListenSettings, limits: ListenerLimits) -> Gate {
    let recorder = Arc::new(Recorder::new());
    let mut routes = Routes::new();
    for path in ["/mcp", "/panic", "/hold", "/page", "/flood"] {
        routes = routes.with(path, Arc::<Recorder>::clone(&recorder));
    }
    let callers = Authenticator::Everyone(Principal::local());
    let role = ListenerRole::Clients;
    let running =
        start(ListenerSpec { role, settings, limits, callers, routes, peers: None, audit: None }).await.unwrap();
    Gate { running, recorder }
}

impl Gate {
    pub(crate) fn reached(&self) -> usize {
        self.recorder.seen.lock().len()
    }

    pub(crate) async fn connect(&self) -> Client {
        connect(self.running.local_addr()).await
    }

    /// Waits until no connection is left.
    pub(crate) async fn emptied(&self) {
        let empty = async {
            while self.running.connections() > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, empty).await.expect("the gate lets all connections go");
    }

    /// Waits until `count` more requests have reached the endpoint.
    pub(crate) async fn arrivals(&self, count: u32) {
        timeout(PATIENCE, self.recorder.arrived.acquire_many(count)).await.unwrap().unwrap().forget();
    }
}

pub(crate) async fn connect(address: SocketAddr) -> Client {
    let stream = timeout(PATIENCE, TcpStream::connect(address)).await.unwrap().unwrap();
    Client { stream, read: Vec::new() }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    read: Vec<u8>,
}

/// One answer, as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find_map(|(found, value)| found.eq_ignore_ascii_case(name).then_some(value.trim()))
    }

    pub(crate) fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    /// `200`, `405∅ allow=POST`, `400 -32700 close`: an answer in the words of the table.
    fn summary(&self) -> String {
        let mut summary = self.status().to_owned();
        if self.body.is_empty() && self.header("content-length") == Some("0") {
            summary.push('∅');
        }
        if let Some(at) = self.body.windows(7).position(|bytes| bytes == b"\"code\":") {
            let code = self.body[at + 7..].iter().take_while(|byte| b"-0123456789".contains(byte));
            summary.push(' ');
            summary.extend(code.map(|&byte| char::from(byte)));
            assert!(!self.body.windows(5).any(|bytes| bytes == b"\"id\":"), "an error without id");
        }
        if let Some(allow) = self.header("allow") {
            summary.push_str(" allow=");
            summary.push_str(allow);
        }
        match self.header("access-control-allow-origin") {
            Some(origin) => {
                assert_eq!(
                    self.header("access-control-expose-headers"),
                    Some("Mcp-Session-Id, Retry-After, WWW-Authenticate")
                );
                assert_eq!(self.header("vary"), Some("Origin"));
                assert_eq!(self.header("access-control-allow-credentials"), None);
                summary.push_str(" cors=");
                summary.push_str(origin);
            }
            None => assert!(!self.head.to_ascii_lowercase().contains("access-control"), "no CORS headers: {self:?}"),
        }
        summary
    }
}

impl Client {
    /// Writes as much as the peer takes: one that refuses early stops reading.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        let _ = timeout(PATIENCE, self.stream.write_all(bytes)).await.expect("the gate reads or closes");
    }

    /// The next answer, or `None` where the connection ended in order. A reset fails the test.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        timeout(PATIENCE, self.read_answer()).await.expect("an answer or an end").unwrap()
    }

    async fn read_answer(&mut self) -> io::Result<Option<Answer>> {
        loop {
            if let Some(end) = self.read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let head = String::from_utf8(self.read.drain(..end + 4).collect()).unwrap();
                let mut answer = Answer { head, body: Vec::new() };
                if answer.status() == "100" {
                    return Ok(Some(answer));
                }
                let length = answer.header("content-length").map_or(0, |length| length.parse().unwrap());
                while self.read.len() < length {
                    assert!(self.more().await? > 0, "a body that broke off");
                }
                answer.body = self.read.drain(..length).collect();
                return Ok(Some(answer));
            }
            if self.more().await? == 0 {
                assert!(self.read.is_empty(), "half an answer: {:?}", String::from_utf8_lossy(&self.read));
                return Ok(None);
            }
        }
    }

    async fn more(&mut self) -> io::Result<usize> {
        self.stream.read_buf(&mut self.read).await
    }

    /// Whether the peer ends the connection, in order or not, without a further byte.
    pub(crate) async fn ends(&mut self) -> bool {
        matches!(timeout(PATIENCE, self.stream.read(&mut [0; 1])).await.expect("an end"), Ok(0) | Err(_))
    }
}

/// A POST to `/mcp` with `lines` beside the ordinary ones.
pub(crate) fn post(lines: &str, body: &str) -> String {
    format!("POST /mcp HTTP/1.1\r\n{JSON}{lines}Content-Length: {}\r\n\r\n{body}", body.len())
}

/// Sends `bytes` on a fresh connection and returns the answer in the words of [`Answer::summary`].
pub(crate) async fn outcome(gate: &Gate, bytes: &[u8]) -> String {
    outcome_at(gate.running.local_addr(), bytes).await
}

pub(crate) async fn outcome_at(address: SocketAddr, bytes: &[u8]) -> String {
    let mut client = connect(address).await;
    client.send(bytes).await;
    let Some(answer) = client.answer().await else {
        return "nothing close".to_owned();
    };
    let mut summary = answer.summary();
    if answer.header("connection") == Some("close") {
        assert!(client.answer().await.is_none(), "closed as announced");
        summary.push_str(" close");
    } else {
        client.send(b"GET /unknown HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        let probe = client.answer().await.expect("the connection is still good");
        assert_eq!(probe.status(), "404");
    }
    summary
}

/// One row of the table: the request, the answer, the number of admitted requests.
pub(crate) type Row<'a> = (&'a str, String, &'a str, usize);

/// Checks each row in each column. Where a row says `allow=POST`, `Allow` names the methods of the column's path.
pub(crate) async fn check_rows(rows: &[Row<'_>]) {
    let mut wrong = Vec::new();
    for column in Column::all().await {
        for (name, sent, expected, reaches) in rows {
            let expected = expected.replace("allow=POST", &format!("allow={}", column.allow));
            let before = column.reached();
            let found = outcome_at(column.address, column.dress(sent).as_bytes()).await;
            let reached = column.reached() - before;
            if found != expected || reached != *reaches {
                let column = column.name;
                wrong
                    .push(format!("{name}, {column}: {found:?} and {reached} reached, not {expected:?} and {reaches}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
