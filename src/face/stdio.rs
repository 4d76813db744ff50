//! Serves a client at standard input and output: one message a line, over [`super::stream_client`].
//!
//! Nothing but messages is ever written there. Once its input ends, what was read of it is answered; the client is gone
//! then, or when its end of the output is closed.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::stream_client::{self, ClientMessage, NEXT_ANSWER_MAX, OutgoingMessage, StreamClient};
use crate::wire::framing::MessageClassifier;
use crate::wire::rpc_error::INVALID_REQUEST;
use crate::wire::{RequestId, RpcError, envelope};

/// Most that one read takes.
const READ_BYTES: usize = 64 * 1024;
/// Lines that wait to be looked at. Each may be as large as a message may be.
const LINES_MAX: usize = 4;
/// Messages that wait for the client to read.
const MESSAGES_MAX: usize = 8;
/// How long a client may take to read what is said to it at the end.
const LAST_WORDS_MAX: Duration = Duration::from_millis(200);

/// Why a client was not served to its own end.
#[derive(Debug, thiserror::Error)]
#[error("the standard input cannot be read")]
pub struct StdioError(#[source] io::Error);

/// Serves one client until it is gone; or until `leaving` is cancelled and everything that it asked is answered; or until
/// `stop` ends it. A line of more than `line_bytes_max` bytes is refused, and the
/// next one heard. The last one need not end.
///
/// Returns once the client's session is ended, two seconds after its end at the latest, and what was said by then is
/// written, if it takes it. Dropping the future leaves a session open.
///
/// # Errors
/// If the client could not be heard to its end.
pub async fn serve(
    client: StreamClient,
    line_bytes_max: usize,
    (input, output): (impl AsyncRead + Unpin + Send, impl AsyncWrite + Unpin + Send),
    (leaving, stop): (CancellationToken, &CancellationToken),
) -> Result<(), StdioError> {
    let (lines, spoken) = mpsc::channel(LINES_MAX);
    let (outgoing, messages) = mpsc::channel(MESSAGES_MAX);
    let refusals = outgoing.clone();
    let leaving = leaving.child_token();
    let reading = async {
        let read = stop.run_until_cancelled(read(input, line_bytes_max, lines, refusals)).await;
        read.unwrap_or_else(|| {
            leaving.cancel();
            Ok(())
        })
    };
    let over = CancellationToken::new();
    let talking = async {
        let served = stream_client::serve_and_answer(client, spoken, outgoing, leaving.clone(), NEXT_ANSWER_MAX);
        tokio::pin!(served);
        let read = tokio::select! {
            read = reading => {
                served.await;
                read
            }
            // A client that hears nothing any more is gone, whether it still speaks or not.
            () = &mut served => Ok(()),
        };
        over.cancel();
        read
    };
    let writing = async {
        let too_late = async {
            over.cancelled().await;
            tokio::time::sleep(LAST_WORDS_MAX).await;
        };
        tokio::select! {
            () = write(output, messages) => (),
            () = too_late => (),
        }
    };
    let (read, ()) = tokio::join!(talking, writing);
    read
}

/// Hands over lines until the input ends or nobody takes them.
async fn read(
    mut input: impl AsyncRead + Unpin,
    line_bytes_max: usize,
    lines: mpsc::Sender<ClientMessage>,
    refusals: mpsc::Sender<OutgoingMessage>,
) -> Result<(), StdioError> {
    let mut cut = StdioClientLines::new(line_bytes_max);
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    let mut is_over = false;
    while !is_over {
        buffer.clear();
        is_over = input.read_buf(&mut buffer).await.map_err(StdioError)? == 0;
        let heard = if is_over { cut.finish().into_iter().collect() } else { cut.feed(&buffer) };
        for line in heard {
            let text = match line {
                StdioClientLine::Line(text) => text,
                StdioClientLine::TooLong { id, has_method: true } => {
                    // Fails if nobody reads it.
                    let _ = refusals.send(envelope::error(id.as_ref(), &too_long(line_bytes_max)).into()).await;
                    continue;
                }
                // The server waits for it.
                StdioClientLine::TooLong { id: Some(id), .. } => envelope::error(Some(&id), &too_long(line_bytes_max)),
                StdioClientLine::TooLong { id: None, .. } => {
                    let _ = refusals.send(envelope::error(None, &too_long(line_bytes_max)).into()).await;
                    continue;
                }
            };
            // Blanks alone are no message, and no mistake.
            if text.trim_ascii().is_empty() {
                continue;
            }
            if lines.send(ClientMessage { text, headers: HeaderMap::new() }).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn too_long(line_bytes_max: usize) -> RpcError {
    RpcError::new(INVALID_REQUEST, format!("Invalid request: one line is longer than {line_bytes_max} bytes"))
}

/// What a host wrote.
#[derive(Debug, PartialEq, Eq)]
enum StdioClientLine {
    Line(Bytes),
    /// A line that was passed over to its end, and what could be told of it.
    TooLong {
        id: Option<RequestId>,
        has_method: bool,
    },
}

/// Cuts what a host writes into lines. Holds one line at most.
#[derive(Debug)]
struct StdioClientLines {
    line_bytes_max: usize,
    partial: Vec<u8>,
    /// Of a line that is too long.
    passed: Option<Box<MessageClassifier>>,
}

impl StdioClientLines {
    const fn new(line_bytes_max: usize) -> Self {
        Self { line_bytes_max, partial: Vec::new(), passed: None }
    }

    fn feed(&mut self, mut rest: &[u8]) -> Vec<StdioClientLine> {
        let mut heard = Vec::new();
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest);
            self.pass(&rest[..end.unwrap_or(rest.len())]);
            let Some(end) = end else { break };
            rest = &rest[end + 1..];
            heard.extend(self.finish());
        }
        heard
    }

    fn pass(&mut self, piece: &[u8]) {
        if self.passed.is_none() && self.partial.len() + piece.len() > self.line_bytes_max {
            let mut glance = Box::<MessageClassifier>::default();
            glance.feed(&std::mem::take(&mut self.partial));
            self.passed = Some(glance);
        }
        match &mut self.passed {
            Some(glance) => {
                glance.feed(piece);
            }
            None => self.partial.extend_from_slice(piece),
        }
    }

    /// The line that ends here, if there is anything in it.
    fn finish(&mut self) -> Option<StdioClientLine> {
        if let Some(glance) = self.passed.take() {
            return Some(StdioClientLine::TooLong { id: glance.id(), has_method: glance.has_method() });
        }
        let mut line = std::mem::take(&mut self.partial);
        line.pop_if(|last| *last == b'\r');
        (!line.is_empty()).then(|| StdioClientLine::Line(line.into()))
    }
}

/// Writes messages, each on a line of its own, until nobody reads them.
async fn write(mut output: impl AsyncWrite + Unpin, mut messages: mpsc::Receiver<OutgoingMessage>) {
    while let Some(message) = messages.recv().await {
        let (text, _held) = message.into_parts();
        if output.write_all(&line_of(text)).await.is_err() || output.flush().await.is_err() {
            return;
        }
    }
}

/// A message as one line. Line breaks in JSON stand between its parts only, where a blank says the same.
fn line_of(message: Bytes) -> BytesMut {
    let mut line = BytesMut::from(message);
    if memchr::memchr2(b'\n', b'\r', &line).is_some() {
        line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    }
    line.extend_from_slice(b"\n");
    line
}
