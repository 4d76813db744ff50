//! Writes a JSON body as one event of a stream, without copying large payloads.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame};

use super::http::ResponseBody;
use crate::wire::framing::BodyPart;

/// The longest part with line ends that is rewritten at once.
const LINES_MAX: usize = 64 << 10;

/// The body's line ends, which occur only in whitespace, become data lines, which read as the same JSON.
pub(super) struct SingleEventBody {
    source: ResponseBody,
    at: SingleEventPart,
    /// The rest of a frame, or the prefix of the event.
    left: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SingleEventPart {
    Head,
    Data,
    Over,
}

impl SingleEventBody {
    pub(super) const fn new(source: ResponseBody) -> Self {
        Self { source, at: SingleEventPart::Head, left: Bytes::from_static(b"event: message\ndata: ") }
    }

    pub(super) fn named(self, id: Option<String>) -> Self {
        let Some(id) = id else { return self };
        Self { left: [format!("id: {id}\n").as_bytes(), &self.left].concat().into(), ..self }
    }

    /// `left` is not empty.
    fn next_part(&mut self) -> Bytes {
        let Some(first) = memchr::memchr2(b'\r', b'\n', &self.left) else { return std::mem::take(&mut self.left) };
        if first > LINES_MAX {
            return self.left.split_to(first);
        }
        let part = self.left.split_to(self.left.len().min(LINES_MAX));
        let mut out = BytesMut::with_capacity(part.len() + 32);
        for (at, line) in part.split(|byte| matches!(byte, b'\r' | b'\n')).enumerate() {
            if at > 0 {
                out.extend_from_slice(b"\ndata: ");
            }
            out.extend_from_slice(line);
        }
        out.freeze()
    }
}

impl Body for SingleEventBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<BodyPart>, io::Error>>> {
        let this = self.get_mut();
        let part = |bytes: Bytes| Poll::Ready(Some(Ok(Frame::data(BodyPart::Bytes(bytes)))));
        match this.at {
            SingleEventPart::Over => return Poll::Ready(None),
            SingleEventPart::Head => {
                this.at = SingleEventPart::Data;
                return part(std::mem::take(&mut this.left));
            }
            SingleEventPart::Data if !this.left.is_empty() => return part(this.next_part()),
            SingleEventPart::Data => (),
        }
        match ready!(Pin::new(&mut this.source).poll_frame(cx)) {
            Some(Ok(frame)) => {
                this.left = frame.into_data().unwrap_or_default().into_bytes();
                part(if this.left.is_empty() { Bytes::new() } else { this.next_part() })
            }
            Some(Err(error)) => Poll::Ready(Some(Err(error))),
            None => {
                this.at = SingleEventPart::Over;
                part(Bytes::from_static(b"\n\n"))
            }
        }
    }
}
