//! Completes another replica's responses to an array if that replica ends between two of them (F92).

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame};

use super::http::{FaceResponse, ResponseBody, is_event_stream};
use crate::dialect::faults::gateway_error;
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::framing::{BodyPart, MessageClassifier, SseDecoder};
use crate::wire::{RequestId, envelope};

/// The largest response that is read in an event stream. Behind a larger one the missing responses are unknown.
const EVENT_BYTES_MAX: usize = 64 * 1024;

/// The response of another replica to an array with these requests. A single error is no array, and has a length.
pub(super) fn completed(response: FaceResponse, requests: Vec<RequestId>) -> FaceResponse {
    if !response.status().is_success() || response.body().size_hint().exact().is_some() {
        return response;
    }
    let form = match is_event_stream(&response) {
        true => ArrayForm::Events { decoder: SseDecoder::new(EVENT_BYTES_MAX), has_lost: false },
        false => ArrayForm::Json(ArrayPosition::default()),
    };
    response.map(|body| {
        ResponseBody::new(ReplicaArray { body, form, open: requests, added: VecDeque::new(), is_over: false })
    })
}

/// The error in place of a response that the other replica did not send.
pub(super) fn lost(id: &RequestId) -> Bytes {
    let fault = GatewayFault::new(Reason::ReplicaUnavailable, Executed::Unknown);
    envelope::error(Some(id), &gateway_error(&fault))
}

struct ReplicaArray {
    body: ResponseBody,
    form: ArrayForm,
    /// The requests without a response so far.
    open: Vec<RequestId>,
    added: VecDeque<BodyPart>,
    is_over: bool,
}

enum ArrayForm {
    Json(ArrayPosition),
    /// One event for each response. Some may have been too large.
    Events {
        decoder: SseDecoder,
        has_lost: bool,
    },
}

impl ReplicaArray {
    fn note(&mut self, part: &BodyPart) {
        let answered = match &mut self.form {
            ArrayForm::Json(position) => position.feed(&part.clone().into_bytes()),
            ArrayForm::Events { decoder, has_lost } => {
                let events = decoder.take(part);
                *has_lost |= events.is_err();
                events.iter().flatten().filter_map(|event| id_of(&event.data)).collect()
            }
        };
        for id in answered {
            if let Some(at) = self.open.iter().position(|open| *open == id) {
                self.open.swap_remove(at);
            }
        }
    }

    /// The rest of the array, with an error for each missing response; `None` if it cannot be completed.
    fn rest(&mut self) -> Option<VecDeque<BodyPart>> {
        let errors = std::mem::take(&mut self.open).into_iter().map(|id| lost(&id));
        match &self.form {
            ArrayForm::Events { decoder, has_lost } => {
                let can_follow = decoder.is_between_events() && !has_lost;
                can_follow.then(|| errors.map(BodyPart::message).collect())
            }
            ArrayForm::Json(position) => position.rest(errors).map(|rest| VecDeque::from([BodyPart::Bytes(rest)])),
        }
    }
}

impl Body for ReplicaArray {
    type Data = BodyPart;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<BodyPart>>>> {
        let this = self.get_mut();
        if !this.is_over {
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Err(error)) => {
                    this.is_over = true;
                    let Some(rest) = this.rest() else { return Poll::Ready(Some(Err(error))) };
                    this.added = rest;
                }
                frame => {
                    if let Some(part) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
                        this.note(part);
                    }
                    return Poll::Ready(frame);
                }
            }
        }
        Poll::Ready(this.added.pop_front().map(|part| Ok(Frame::data(part))))
    }
}

fn id_of(message: &[u8]) -> Option<RequestId> {
    let mut classifier = MessageClassifier::default();
    classifier.feed(message);
    classifier.id()
}

/// How far a JSON array of responses has come.
#[derive(Debug, Default)]
struct ArrayPosition {
    /// Open brackets and braces, the array's included.
    depth: usize,
    in_string: bool,
    after_backslash: bool,
    element: MessageClassifier,
    last: LastToken,
}

/// The last token outside of the elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastToken {
    #[default]
    Nothing,
    Open,
    Comma,
    Element,
    Close,
}

impl ArrayPosition {
    /// Returns the ids of the responses that end in these bytes.
    fn feed(&mut self, bytes: &[u8]) -> Vec<RequestId> {
        let (mut ids, mut from) = (Vec::new(), 0);
        for (at, byte) in bytes.iter().enumerate() {
            if self.in_string {
                let is_escaped = std::mem::take(&mut self.after_backslash);
                self.after_backslash = !is_escaped && *byte == b'\\';
                self.in_string = is_escaped || *byte != b'"';
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    match self.depth {
                        0 => self.last = LastToken::Open,
                        1 => (self.element, from) = (MessageClassifier::default(), at),
                        _ => (),
                    }
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    match self.depth {
                        0 => self.last = LastToken::Close,
                        1 => {
                            self.element.feed(&bytes[from..=at]);
                            ids.extend(self.element.id());
                            self.last = LastToken::Element;
                        }
                        _ => (),
                    }
                }
                b',' if self.depth == 1 => self.last = LastToken::Comma,
                _ => (),
            }
        }
        if self.depth > 1 {
            self.element.feed(&bytes[from..]);
        }
        ids
    }

    /// The end of the array, with these elements; `None` within an element, and behind a comma without an element.
    fn rest(&self, elements: impl ExactSizeIterator<Item = Bytes>) -> Option<Bytes> {
        if self.depth > 1 {
            return None;
        }
        let is_empty = elements.len() == 0;
        let joined = elements.collect::<Vec<_>>().join(&b',');
        let lead: &[u8] = match self.last {
            LastToken::Close => return Some(Bytes::new()),
            LastToken::Comma if is_empty => return None,
            LastToken::Nothing => b"[",
            LastToken::Element if !is_empty => b",",
            LastToken::Open | LastToken::Comma | LastToken::Element => b"",
        };
        Some([lead, &joined, b"]"].concat().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_completed_wherever_it_ends_between_two_elements() {
        let (first, second) = (r#"{"id":1,"result":{"a":["]","\"}{"],"id":7}}"#, r#"{"error":{},"id":"b"}"#);
        let whole = format!("[ {first} ,\n{second}]");
        let lost = [RequestId::number(3), RequestId::number(4)];
        for cut in 0..=whole.len() {
            let mut position = ArrayPosition::default();
            let (start, rest) = whole.as_bytes().split_at(cut);
            let (early, late) = start.split_at(cut / 2);
            let mut ids = position.feed(early);
            ids.extend(position.feed(late));
            let completed = position.rest(lost.iter().map(super::lost));
            let ends = [whole.find(" ,").unwrap(), whole.len() - 1].map(|end| cut >= end);
            let known = [RequestId::number(1), RequestId::text("b")];
            let count = ends.iter().filter(|is_whole| **is_whole).count();
            assert_eq!(ids, known[..count], "cut at {cut}");
            let is_within = cut > 2 && !ends[0] || cut > whole.find(second).unwrap() && !ends[1];
            assert_eq!(completed.is_none(), is_within, "cut at {cut}");
            let Some(completed) = completed else { continue };
            let text = [start, &completed].concat();
            let elements: Vec<serde_json::Value> = serde_json::from_slice(&text).unwrap();
            let added = if rest.is_empty() { 0 } else { lost.len() };
            assert_eq!(elements.len(), ids.len() + added, "cut at {cut}");
        }
    }

    #[test]
    fn an_array_with_all_responses_only_ends() {
        for (text, rest) in [("", Some("[]")), ("[", Some("]")), ("[{}", Some("]")), ("[{},", None), ("[{}]", Some(""))]
        {
            let mut position = ArrayPosition::default();
            position.feed(text.as_bytes());
            let completed = position.rest(std::iter::empty());
            assert_eq!(completed.as_deref(), rest.map(str::as_bytes), "{text}");
        }
    }
}
