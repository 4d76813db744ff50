//! Responds with a call's messages, life signs and result. A source of messages implements `CallMessages`. `respond` sends one
//! response if it comes first, else a stream of messages.

pub mod engine_call;
pub mod progress;
pub(super) mod replay;
pub(super) mod replay_buffer;
pub(super) mod request_answer;

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::time::Instant;

use super::answer::{Addressee, event_stream};
use super::http::{FaceResponse, ResponseBody};
use super::lazy_timer::within;
use crate::wire::framing::BodyPart;
use crate::wire::{Message, ScanLimits, method};
use request_answer::{RequestAnswer, unanswered};

pub(super) enum CallMessage {
    /// Progress, a log message, a question or the like; a stream treats them alike.
    Event(BodyPart),
    /// The result; nothing follows.
    Answer(RequestAnswer),
}

impl CallMessage {
    pub(super) fn event(message: Bytes) -> Self {
        Self::Event(BodyPart::message(message))
    }
}

/// The messages for one client, in order. Dropping it means that the client disconnected.
pub(super) trait CallMessages: Send + 'static {
    /// Whether the stream, once it has begun, needs life signs: a replay buffer contains its own.
    const NEEDS_LIFE_SIGNS: bool = true;

    /// The next message; `None` if nothing follows, not even a result. Cancel safe.
    fn next(&mut self) -> impl Future<Output = Option<CallMessage>> + Send;

    fn life_sign(&mut self) -> impl Future<Output = BodyPart> + Send {
        std::future::ready(BodyPart::comment())
    }

    /// Whether life signs are progress: then only progress ends a silence.
    fn signs_are_progress(&self) -> bool {
        false
    }
}

/// Responds with the result if it comes first, otherwise with an event stream if the client accepts one.
pub(super) async fn respond(mut messages: impl CallMessages, addressee: Addressee) -> FaceResponse {
    let takes_stream = addressee.accepted.takes_stream();
    let silence = Silence::begin();
    let first = loop {
        let message = match takes_stream {
            true => within(silence.ends_at(), messages.next()).await,
            false => Some(messages.next().await),
        };
        match message {
            Some(Some(CallMessage::Event(event))) if takes_stream => break event,
            Some(Some(CallMessage::Event(_))) => (),
            Some(Some(CallMessage::Answer(answer))) => return answer.into_response(&addressee),
            Some(None) => return unanswered(addressee.accepted).into_response(&addressee),
            None => break messages.life_sign().await,
        }
    };
    event_stream(stream(messages, addressee, Some(first)))
}

/// The body of a stream with a sent head; `first` precedes the other messages.
pub(super) fn stream(messages: impl CallMessages, addressee: Addressee, first: Option<BodyPart>) -> ResponseBody {
    let stream =
        MessageStream { left: StreamRemainder::Messages(messages), addressee, first, silence: Silence::begin() };
    let frames = stream::unfold(Box::new(stream), |mut stream| async move { Some((stream.next().await?, stream)) });
    ResponseBody::new(StreamBody::new(frames))
}

struct MessageStream<M> {
    left: StreamRemainder<M>,
    addressee: Addressee,
    first: Option<BodyPart>,
    silence: Silence,
}

enum StreamRemainder<M> {
    Messages(M),
    Answer(ResponseBody),
    Nothing,
}

impl<M: CallMessages> MessageStream<M> {
    async fn next(&mut self) -> Option<io::Result<Frame<BodyPart>>> {
        if let StreamRemainder::Messages(messages) = &mut self.left {
            let message = match self.first.take() {
                Some(first) => Some(Some(CallMessage::Event(first))),
                None if M::NEEDS_LIFE_SIGNS => self.silence.wait(messages.next()).await,
                None => Some(messages.next().await),
            };
            let event = match message {
                None => messages.life_sign().await,
                Some(Some(CallMessage::Event(event))) if messages.signs_are_progress() && !is_progress(&event) => {
                    return Some(Ok(Frame::data(event)));
                }
                Some(Some(CallMessage::Event(event))) => event,
                Some(Some(CallMessage::Answer(answer))) => {
                    self.left =
                        answer.into_events(&self.addressee).map_or(StreamRemainder::Nothing, StreamRemainder::Answer);
                    return self.rest().await;
                }
                Some(None) => return None,
            };
            self.silence.broken();
            return Some(Ok(Frame::data(event)));
        }
        self.rest().await
    }

    async fn rest(&mut self) -> Option<io::Result<Frame<BodyPart>>> {
        if let StreamRemainder::Answer(body) = &mut self.left { body.frame().await } else { None }
    }
}

fn is_progress(event: &BodyPart) -> bool {
    event.event().is_some_and(|event| match event.data.read(ScanLimits::UPSTREAM).as_deref() {
        Ok(Message::Notification(notification)) => notification.method == method::PROGRESS,
        Ok(Message::Request(_) | Message::Response(_)) | Err(_) => false,
    })
}

/// Proxies and clients give up on a longer silence.
pub const LIFE_SIGN: Duration = Duration::from_secs(15);

/// The time since the last write to a stream: a life sign is due after [`LIFE_SIGN`].
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    since: Instant,
}

impl Silence {
    pub fn begin() -> Self {
        Self::since(Instant::now())
    }

    pub const fn since(since: Instant) -> Self {
        Self { since }
    }

    pub fn broken(&mut self) {
        self.since = Instant::now();
    }

    pub fn ends_at(self) -> Instant {
        self.since + LIFE_SIGN
    }

    /// `None` if a life sign is due first: at once if the silence is over. Cancel safe if `next` is.
    pub async fn wait<T>(self, next: impl Future<Output = T>) -> Option<T> {
        if self.ends_at() <= Instant::now() { None } else { within(self.ends_at(), next).await }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::face::answer::addressee;
    use crate::face::http::AcceptedTypes;

    /// A call with a progress token; its server sends a log message every second, and no progress.
    struct LogFlood;

    impl CallMessages for LogFlood {
        async fn next(&mut self) -> Option<CallMessage> {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some(CallMessage::event(Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/message"}"#)))
        }

        async fn life_sign(&mut self) -> BodyPart {
            BodyPart::message(Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/progress"}"#))
        }

        fn signs_are_progress(&self) -> bool {
            true
        }
    }

    #[tokio::test(start_paused = true)]
    async fn gw_26_log_messages_are_no_life_signs_for_a_client_that_wants_progress() {
        let mut stream = stream(LogFlood, addressee(None, AcceptedTypes::Both), None);
        let (begun, mut signs) = (Instant::now(), Vec::new());
        while begun.elapsed() < Duration::from_secs(50) {
            let event = stream.frame().await.unwrap().unwrap().into_data().unwrap();
            if is_progress(&event) {
                signs.push(begun.elapsed().as_secs());
            }
        }
        assert_eq!(signs, [15, 30, 45]);
    }
}
