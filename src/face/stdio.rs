//! Serves a client at standard input and output: one message a line, over [`super::stream_client`]. Writes only
//! messages. The client has left once its input has ended and is answered, or once its output has no reader.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::stream_client::{self, ClientMessage, InputEnd, StreamClient};
use crate::wire::framing::MessageClassifier;
use crate::wire::rpc_error::INVALID_REQUEST;
use crate::wire::{RequestId, RpcError, envelope};

const READ_BYTES: usize = 64 * 1024;
/// Lines that wait to be parsed. Each may be as large as a message.
const LINES_MAX: usize = 4;
const MESSAGES_MAX: usize = 8;
/// The client's time to read the last messages when the program ends.
const LAST_READ_MAX: Duration = Duration::from_millis(200);
/// The client's time to read one message after its input has ended.
const MESSAGE_READ_MAX: Duration = Duration::from_secs(30);
/// The interval of checks for the output's reader after the end of the input.
const READER_CHECK: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct StdioEnds<I, O> {
    pub input: I,
    pub output: O,
    /// Whether the output's reader has closed it, as far as a check without a write shows.
    pub is_reader_gone: fn() -> bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the standard input cannot be read")]
pub struct StdioError(#[source] io::Error);

/// Serves one client until it is gone, or `streams_end` is cancelled and its requests are answered, or `cut_off` is
/// cancelled. A line above `line_bytes_max` is refused, and the next one read; the last may lack its end. The end of
/// the input is no disconnect: requests are answered, within limits. Returns once the session has ended, within two
/// seconds, and its messages are written. Dropping the future leaves a session open. Fails if the input is unreadable.
pub async fn serve(
    client: StreamClient,
    line_bytes_max: usize,
    ends: StdioEnds<impl AsyncRead + Unpin + Send, impl AsyncWrite + Unpin + Send>,
    streams_end: CancellationToken,
    cut_off: &CancellationToken,
) -> Result<(), StdioError> {
    let StdioEnds { input, output, is_reader_gone } = ends;
    let (lines, messages_in) = mpsc::channel(LINES_MAX);
    let (outgoing, messages) = mpsc::channel(MESSAGES_MAX);
    let refusals = outgoing.clone();
    let streams_end = streams_end.child_token();
    let reading = async {
        let read = cut_off.run_until_cancelled(read(input, line_bytes_max, lines, refusals)).await;
        read.unwrap_or_else(|| {
            streams_end.cancel();
            Ok(())
        })
    };
    let [input_ended, output_closed, session_ended] = std::array::from_fn(|_| CancellationToken::new());
    let talking = async {
        let (answers, input_end) = (streams_end.clone(), InputEnd::ClientReads);
        let served = stream_client::serve_to_input_end(client, messages_in, outgoing, answers, input_end);
        tokio::pin!(served);
        let read = tokio::select! {
            read = reading => {
                input_ended.cancel();
                tokio::select! {
                    () = &mut served => (),
                    () = reader_gone(is_reader_gone, cut_off) => {
                        output_closed.cancel();
                        served.await;
                    }
                }
                read
            }
            // A client that no longer reads is gone, even if it still writes.
            () = &mut served => Ok(()),
        };
        session_ended.cancel();
        read
    };
    let writing = async {
        let too_late = async {
            session_ended.cancelled().await;
            streams_end.cancelled().await;
            tokio::time::sleep(LAST_READ_MAX).await;
        };
        tokio::select! {
            () = write(output, messages, &input_ended) => (),
            () = output_closed.cancelled() => (),
            () = too_late => (),
        }
    };
    let (read, ()) = tokio::join!(talking, writing);
    read
}

/// Waits until the output's reader is gone, or `cut_off` makes its responses useless.
async fn reader_gone(is_reader_gone: fn() -> bool, cut_off: &CancellationToken) {
    while !is_reader_gone() {
        let _ = timeout(READER_CHECK, cut_off.cancelled()).await;
        if cut_off.is_cancelled() {
            return;
        }
    }
}

/// Delivers lines until the input ends or the receiver is gone.
async fn read(
    mut input: impl AsyncRead + Unpin,
    line_bytes_max: usize,
    lines: mpsc::Sender<ClientMessage>,
    refusals: mpsc::Sender<Bytes>,
) -> Result<(), StdioError> {
    let mut cut = StdioClientLines::new(line_bytes_max);
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    let mut is_over = false;
    while !is_over {
        buffer.clear();
        is_over = input.read_buf(&mut buffer).await.map_err(StdioError)? == 0;
        let received = if is_over { cut.finish().into_iter().collect() } else { cut.feed(&buffer) };
        for line in received {
            let text = match line {
                StdioClientLine::Line(text) => text,
                // The server waits for it.
                StdioClientLine::TooLong { id: Some(id), has_method: false } => {
                    envelope::error(Some(&id), &too_long(line_bytes_max))
                }
                StdioClientLine::TooLong { id, .. } => {
                    // Fails if the receiver is gone.
                    let _ = refusals.send(envelope::error(id.as_ref(), &too_long(line_bytes_max))).await;
                    continue;
                }
            };
            if text.trim_ascii().is_empty() {
                continue;
            }
            if lines.send(ClientMessage { text, ..ClientMessage::default() }).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn too_long(line_bytes_max: usize) -> RpcError {
    RpcError::new(INVALID_REQUEST, format!("Invalid request: one line is longer than {line_bytes_max} bytes"))
}

#[derive(Debug, PartialEq, Eq)]
enum StdioClientLine {
    Line(Bytes),
    /// A line that was skipped to its end, with its readable parts.
    TooLong {
        id: Option<RequestId>,
        has_method: bool,
    },
}

/// Splits a host's output into lines. Buffers at most one line.
#[derive(Debug)]
struct StdioClientLines {
    line_bytes_max: usize,
    partial: Vec<u8>,
    passed: Option<Box<MessageClassifier>>,
}

impl StdioClientLines {
    const fn new(line_bytes_max: usize) -> Self {
        Self { line_bytes_max, partial: Vec::new(), passed: None }
    }

    fn feed(&mut self, mut rest: &[u8]) -> Vec<StdioClientLine> {
        let mut received = Vec::new();
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest);
            self.pass(&rest[..end.unwrap_or(rest.len())]);
            let Some(end) = end else { break };
            rest = &rest[end + 1..];
            received.extend(self.finish());
        }
        received
    }

    fn pass(&mut self, piece: &[u8]) {
        if self.passed.is_none() && self.partial.len() + piece.len() > self.line_bytes_max {
            let mut classifier = Box::<MessageClassifier>::default();
            classifier.feed(&std::mem::take(&mut self.partial));
            self.passed = Some(classifier);
        }
        match &mut self.passed {
            Some(classifier) => {
                classifier.feed(piece);
            }
            None => self.partial.extend_from_slice(piece),
        }
    }

    /// `None` for an empty line.
    fn finish(&mut self) -> Option<StdioClientLine> {
        if let Some(classifier) = self.passed.take() {
            return Some(StdioClientLine::TooLong { id: classifier.id(), has_method: classifier.has_method() });
        }
        let mut line = std::mem::take(&mut self.partial);
        line.pop_if(|last| *last == b'\r');
        (!line.is_empty()).then(|| StdioClientLine::Line(line.into()))
    }
}

async fn write(
    mut output: impl AsyncWrite + Unpin,
    mut messages: mpsc::Receiver<Bytes>,
    input_ended: &CancellationToken,
) {
    while let Some(message) = messages.recv().await {
        // Frees the message's bytes once the line is written.
        let line = line_of(message.clone());
        let writing = async { output.write_all(&line).await.is_ok() && output.flush().await.is_ok() };
        let is_stuck = async {
            input_ended.cancelled().await;
            tokio::time::sleep(MESSAGE_READ_MAX).await;
        };
        let is_written = tokio::select! {
            is_written = writing => is_written,
            () = is_stuck => false,
        };
        if !is_written {
            return;
        }
    }
}

/// JSON has line breaks between its parts only, where a space is equivalent.
fn line_of(message: Bytes) -> BytesMut {
    let mut line = BytesMut::from(message);
    if memchr::memchr2(b'\n', b'\r', &line).is_some() {
        line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    }
    line.extend_from_slice(b"\n");
    line
}
