//! Writes the messages of one stream.

use bytes::Bytes;
use tokio::sync::mpsc;

use super::super::stream_client::ClientMessage;
use super::streams::SseStreamPermit;
use crate::face::call_stream::{CallMessage, CallMessages};

/// Dropping it, as its connection ends, releases its permit and closes its queue.
pub(super) struct SseEventStream {
    messages: mpsc::Receiver<Bytes>,
    _permit: SseStreamPermit<mpsc::Sender<ClientMessage>>,
}

impl SseEventStream {
    pub(super) const fn new(
        messages: mpsc::Receiver<Bytes>,
        permit: SseStreamPermit<mpsc::Sender<ClientMessage>>,
    ) -> Self {
        Self { messages, _permit: permit }
    }
}

impl CallMessages for SseEventStream {
    async fn next(&mut self) -> Option<CallMessage> {
        Some(CallMessage::event(self.messages.recv().await?))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt;
    use tokio::time::Instant;

    use super::super::streams::{SseStreamKey, SseStreamTable};
    use super::*;
    use crate::face::answer::addressee;
    use crate::face::call_stream::silence::LIFE_SIGN as SIGN;
    use crate::face::call_stream::stream;
    use crate::face::http::{AcceptedTypes, ResponseBody};
    use crate::shared_limits::SharedLimits;
    use crate::task::Principal;

    fn open() -> (mpsc::Sender<Bytes>, ResponseBody) {
        let key = SseStreamKey { owner: Principal::local(), upstream: Arc::from("up"), nonce: 1 };
        let table = Arc::new(SseStreamTable::new(SharedLimits::default()));
        let permit = table.open(key, Principal::local(), || mpsc::channel(1).0).unwrap();
        let (sender, messages) = mpsc::channel(4);
        let first = Some(Bytes::from_static(b"address").into());
        (sender, stream(SseEventStream::new(messages, permit), addressee(None, AcceptedTypes::EventStream), first))
    }

    async fn next(body: &mut ResponseBody) -> Option<Bytes> {
        Some(body.frame().await?.unwrap().into_data().unwrap().into_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn a_comment_stands_where_nothing_was_said_for_long() {
        let (sender, mut body) = open();
        assert_eq!(next(&mut body).await.unwrap(), "address");
        let began = Instant::now();
        assert_eq!(next(&mut body).await.unwrap(), ":\n\n");
        assert_eq!(began.elapsed(), SIGN);
        tokio::time::sleep(SIGN / 2).await;
        sender.send(Bytes::from_static(b"{}")).await.unwrap();
        assert_eq!(next(&mut body).await.unwrap(), "event: message\ndata: {}\n\n");
        assert_eq!(next(&mut body).await.unwrap(), ":\n\n");
        assert_eq!(began.elapsed(), SIGN * 5 / 2, "counted from the message");
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_once_all_that_was_said_is_written() {
        let (sender, mut body) = open();
        sender.send(Bytes::from_static(b"1")).await.unwrap();
        sender.send(Bytes::from_static(b"2")).await.unwrap();
        drop(sender);
        let mut written = Vec::new();
        while let Some(bytes) = next(&mut body).await {
            written.push(bytes);
        }
        assert_eq!(written.len(), 3, "{written:?}");
    }
}
