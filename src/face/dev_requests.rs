//! Shows clients' requests and responses, for `taskgate dev`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::http::{FaceResponse, Inbound, ResponseBody, is_event_stream};
use crate::dev_output::client::ClientRequest;
use crate::wire::framing::{BodyPart, SseDecoder};
use crate::wire::{Message, MessageText, ProtocolVersion, ScanLimits, envelope};

/// A longer response, or event of a stream, is shown by its size.
const BYTES_MAX: usize = 1 << 20;

/// Shows a request, if the output is on. `version` finds the version of its session.
pub(super) fn begin(
    inbound: &Inbound,
    version: impl Fn(&Inbound) -> Option<ProtocolVersion>,
) -> Option<Box<ClientRequest>> {
    if !crate::dev_output::is_on() {
        return None;
    }
    let version = version(inbound).map(ProtocolVersion::as_str);
    match inbound.message.clone().or_else(|| envelope::read(&inbound.body, ScanLimits::CLIENT).ok())? {
        Message::Request(request) => ClientRequest::begin(&request, version).map(Box::new),
        Message::Notification(_) | Message::Response(_) => None,
    }
}

pub(super) fn shown(request: Option<Box<ClientRequest>>, response: FaceResponse) -> FaceResponse {
    let Some(request) = request else { return response };
    let text = match is_event_stream(&response) {
        true => ResponseText::Events(SseDecoder::new(BYTES_MAX)),
        false => ResponseText::Whole(Vec::new()),
    };
    response.map(|body| ResponseBody::new(ShownBody { body, request, text, bytes: 0 }))
}

struct ShownBody {
    body: ResponseBody,
    request: Box<ClientRequest>,
    text: ResponseText,
    bytes: usize,
}

enum ResponseText {
    Whole(Vec<u8>),
    Events(SseDecoder),
}

impl ShownBody {
    fn look(&mut self, part: &BodyPart) {
        self.bytes += part.len();
        match (&mut self.text, part) {
            (ResponseText::Events(_), BodyPart::Event(event)) => self.look_at(&event.event().data.clone()),
            (ResponseText::Events(decoder), BodyPart::Bytes(bytes)) => {
                for event in decoder.feed(bytes).unwrap_or_default() {
                    self.look_at(&event.data);
                }
            }
            (ResponseText::Whole(text), BodyPart::Bytes(bytes)) if self.bytes <= BYTES_MAX => {
                text.extend_from_slice(bytes)
            }
            (ResponseText::Whole(_), BodyPart::Bytes(_) | BodyPart::Event(_)) => (),
        }
    }

    fn look_at(&mut self, text: &MessageText) {
        if let Some(Message::Response(response)) = text.read(ScanLimits::UPSTREAM).ok().as_deref() {
            self.request.answered(response);
        }
    }
}

impl Drop for ShownBody {
    /// Not at the end of the body: the server may stop before it asks for the end.
    fn drop(&mut self) {
        match &mut self.text {
            ResponseText::Whole(_) if self.bytes > BYTES_MAX => self.request.answered_at_length(self.bytes),
            ResponseText::Whole(text) => {
                let text = Bytes::from(std::mem::take(text)).into();
                self.look_at(&text);
            }
            ResponseText::Events(_) => (),
        }
    }
}

impl Body for ShownBody {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(part) = frame.as_ref().and_then(|frame| frame.as_ref().ok()).and_then(Frame::data_ref) {
            self.look(part);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
