//! One connection of a client, over HTTP/1.1 or HTTP/2.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

/// The longest that one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    /// Known beforehand, without TLS.
    Http2,
}

/// A connection of a client.
#[derive(Debug)]
pub(crate) struct Line {
    wire: Wire,
    /// Over HTTP/1.1 all that was read, over HTTP/2 and of chunks the body alone.
    read: Vec<u8>,
}

#[derive(Debug)]
enum Wire {
    Http1(TcpStream),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Line {
    pub(crate) async fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        Self::connect_with(address, Protocol::Http1).await
    }

    pub(crate) async fn connect_with(address: SocketAddr, protocol: Protocol) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        let wire = match protocol {
            Protocol::Http1 => Wire::Http1(stream),
            Protocol::Http2 => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
                TaskTracker::new().spawn(connection);
                Wire::Http2(sender)
            }
        };
        Ok(Self { wire, read: Vec::new() })
    }

    /// Sends a request that is not answered for now. HTTP/1.1 only.
    pub(crate) async fn send(&mut self, request: &[u8]) -> anyhow::Result<()> {
        Ok(self.socket()?.write_all(request).await?)
    }

    /// Sends a request and returns the body of its answer, whose status must be 200.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> anyhow::Result<&[u8]> {
        tokio::time::timeout(ANSWER_MAX, self.exchange(request)).await.context("no answer")?
    }

    /// A header of the last answer. HTTP/1.1 only.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let end = memmem::find(&self.read, b"\r\n\r\n")?;
        header(&String::from_utf8_lossy(&self.read[..end]), name)
    }

    /// Waits until the body of an answer has begun, and returns what has come of it. HTTP/1.1 only.
    pub(crate) async fn begin(&mut self) -> anyhow::Result<usize> {
        self.read.clear();
        loop {
            if let Some(end) = memmem::find(&self.read, b"\r\n\r\n").filter(|end| self.read.len() > end + 4) {
                return Ok(self.read.len() - end - 4);
            }
            tokio::time::timeout(ANSWER_MAX, self.more()).await.context("no answer")??;
        }
    }

    async fn exchange(&mut self, request: &[u8]) -> anyhow::Result<&[u8]> {
        if let Wire::Http2(sender) = &mut self.wire {
            sender.ready().await?;
            let response = sender.send_request(of_text(request)?).await?;
            ensure!(response.status() == StatusCode::OK, "refused: {}", response.status());
            let mut body = response.into_body();
            self.read.clear();
            while let Some(frame) = body.frame().await {
                self.read.extend_from_slice(frame?.data_ref().map_or(b"", |data| data.as_ref()));
            }
            return Ok(&self.read);
        }
        self.socket()?.write_all(request).await?;
        self.read.clear();
        let body = loop {
            if let Some(end) = memmem::find(&self.read, b"\r\n\r\n") {
                break end + 4;
            }
            self.more().await?;
        };
        let head = String::from_utf8_lossy(&self.read[..body]).to_ascii_lowercase();
        ensure!(head.starts_with("http/1.1 200"), "refused: {head}");
        if header(&head, "transfer-encoding").is_some() {
            return self.chunks(body).await;
        }
        let length = header(&head, "content-length").context("no length")?;
        let end = body + length.parse::<usize>()?;
        while self.read.len() < end {
            self.more().await?;
        }
        ensure!(self.read.len() == end, "more than an answer came");
        Ok(&self.read[body..end])
    }

    /// Reads a body in chunks, and puts it together in place of what was read.
    async fn chunks(&mut self, mut at: usize) -> anyhow::Result<&[u8]> {
        let mut body = Vec::new();
        loop {
            let Some(line) = memmem::find(&self.read[at..], b"\r\n") else {
                self.more().await?;
                continue;
            };
            let length = usize::from_str_radix(std::str::from_utf8(&self.read[at..at + line])?, 16)?;
            let data = at + line + 2;
            while self.read.len() < data + length + 2 {
                self.more().await?;
            }
            body.extend_from_slice(&self.read[data..data + length]);
            at = data + length + 2;
            if length == 0 {
                ensure!(self.read.len() == at, "more than an answer came");
                self.read = body;
                return Ok(&self.read);
            }
        }
    }

    fn socket(&mut self) -> anyhow::Result<&mut TcpStream> {
        match &mut self.wire {
            Wire::Http1(stream) => Ok(stream),
            Wire::Http2(_) => anyhow::bail!("not over HTTP/2"),
        }
    }

    async fn more(&mut self) -> anyhow::Result<()> {
        self.read.reserve(4 << 10);
        let Wire::Http1(stream) = &mut self.wire else { anyhow::bail!("not over HTTP/2") };
        ensure!(stream.read_buf(&mut self.read).await? > 0, "the connection ended");
        Ok(())
    }
}

fn header(head: &str, name: &str) -> Option<String> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.find_map(|(found, value)| found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned()))
}

/// A request that is written for HTTP/1.1.
fn of_text(text: &[u8]) -> anyhow::Result<Request<Full<Bytes>>> {
    let end = memmem::find(text, b"\r\n\r\n").context("a request has a head")?;
    let mut lines = std::str::from_utf8(&text[..end])?.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, path) = first.next().zip(first.next()).context("a request has a method and a path")?;
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        if !name.eq_ignore_ascii_case("host") {
            headers.insert(http::HeaderName::from_bytes(name.as_bytes())?, value.parse()?);
        }
    }
    let mut request = Request::new(Full::new(Bytes::copy_from_slice(&text[end + 4..])));
    *request.method_mut() = method.parse()?;
    *request.uri_mut() = format!("http://localhost{path}").parse()?;
    *request.headers_mut() = headers;
    Ok(request)
}
