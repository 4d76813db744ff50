//! A client at standard input and output: one message a line, over [`super::duplex`].
//!
//! Nothing but messages is ever written there. The client is gone once its side of the input ends, or nobody reads the
//! output.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::duplex::{self, Client, Spoken};
use crate::wire::fault::INVALID_REQUEST;
use crate::wire::framing::{FramingError, LineDecoder};
use crate::wire::{RpcError, envelope};

/// Most that one read takes.
const READ_BYTES: usize = 64 * 1024;
/// Lines that wait to be looked at.
const LINES_MAX: usize = 16;
/// Messages that wait for the client to read.
const MESSAGES_MAX: usize = 8;
/// How long a client may take to read what is said to it at the end.
const LAST_WORDS_MAX: Duration = Duration::from_millis(200);

/// Why a client was not served to its own end.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    #[error("the standard input cannot be read")]
    Input(#[source] io::Error),
    /// What follows belongs to no message that could be answered.
    #[error("the client wrote too much at once: {0}")]
    Line(#[from] FramingError),
}

/// Serves one client until it is gone, or `stop` ends it. Lines are at most `line_bytes_max` bytes long.
///
/// Returns once the client's session is ended, two seconds after its end at the latest, and what was said by then is
/// written, if it takes it. Dropping the future leaves a session open.
///
/// # Errors
/// If the client could not be understood to its end; it was told so if it could be.
pub async fn serve(
    client: Client,
    line_bytes_max: usize,
    (input, output): (impl AsyncRead + Unpin + Send, impl AsyncWrite + Unpin + Send),
    stop: &CancellationToken,
) -> Result<(), StdioError> {
    let (lines, spoken) = mpsc::channel(LINES_MAX);
    let (outgoing, messages) = mpsc::channel(MESSAGES_MAX);
    let refusals = outgoing.clone();
    let reading = async {
        let read = stop.run_until_cancelled(read(input, line_bytes_max, lines)).await;
        if let Some(Err(StdioError::Line(error))) = &read {
            let error = RpcError::new(INVALID_REQUEST, format!("Invalid request: {error}"));
            // Fails if nobody reads it.
            let _ = refusals.send(envelope::error(None, &error)).await;
        }
        drop(refusals);
        read.unwrap_or(Ok(()))
    };
    let over = CancellationToken::new();
    let talking = async {
        let served = duplex::serve(client, spoken, outgoing);
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
    lines: mpsc::Sender<Spoken>,
) -> Result<(), StdioError> {
    let mut decoder = LineDecoder::new(line_bytes_max);
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    loop {
        buffer.clear();
        if input.read_buf(&mut buffer).await.map_err(StdioError::Input)? == 0 {
            return Ok(());
        }
        for text in decoder.feed(&buffer)? {
            // Blanks alone are no message, and no mistake.
            if text.trim_ascii().is_empty() {
                continue;
            }
            if lines.send(Spoken { text, headers: HeaderMap::new() }).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Writes messages, each on a line of its own, until nobody reads them.
async fn write(mut output: impl AsyncWrite + Unpin, mut messages: mpsc::Receiver<Bytes>) {
    while let Some(message) = messages.recv().await {
        if output.write_all(&line_of(message)).await.is_err() || output.flush().await.is_err() {
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
