//! What is written on one stream: the address first, then messages as they come, and comments while none does.

use std::io;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;

use super::super::duplex::{Held, Said, Spoken};
use super::streams::Place;
use crate::face::call_stream::silence::Silence;
use crate::face::http::ResponseBody;
use crate::wire::framing::{sse_comment, sse_message};

/// One open stream. Dropped, as its connection ends, it gives its place back, and nobody receives what is said on it.
pub(super) struct Events {
    address: Option<Bytes>,
    said: mpsc::Receiver<Said>,
    /// The room of the message that is being written.
    writing: Option<Held>,
    silence: Silence,
    _place: Place<mpsc::Sender<Spoken>>,
}

impl Events {
    pub(super) fn new(address: Bytes, said: mpsc::Receiver<Said>, place: Place<mpsc::Sender<Spoken>>) -> Self {
        Self { address: Some(address), said, writing: None, silence: Silence::begin(), _place: place }
    }

    pub(super) fn into_body(self) -> ResponseBody {
        let frames = stream::unfold(Box::new(self), |mut events| async move {
            let bytes = events.next().await?;
            events.silence.broken();
            Some((Ok::<_, io::Error>(Frame::data(bytes)), events))
        });
        StreamBody::new(frames).boxed_unsync()
    }

    /// The next bytes; `None` once nothing will be said any more.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(address) = self.address.take() {
            return Some(address);
        }
        // What was given out before is written: nothing more is asked for until it is.
        self.writing = None;
        let Some(said) = self.silence.wait(self.said.recv()).await else { return Some(sse_comment()) };
        let (text, held) = said?.into_parts();
        self.writing = Some(held);
        Some(sse_message(&text))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::super::streams::{Key, Table};
    use super::*;
    use crate::face::call_stream::silence::LIFE_SIGN as SIGN;
    use crate::task::Principal;

    fn open() -> (mpsc::Sender<Said>, ResponseBody) {
        let key = Key { owner: Principal::local(), upstream: Arc::from("up"), nonce: 1 };
        let place = Arc::<Table<mpsc::Sender<Spoken>>>::default().open(key, || mpsc::channel(1).0).unwrap();
        let (saying, said) = mpsc::channel(4);
        (saying, Events::new(Bytes::from_static(b"address"), said, place).into_body())
    }

    async fn next(body: &mut ResponseBody) -> Option<Bytes> {
        Some(body.frame().await?.unwrap().into_data().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_comment_stands_where_nothing_was_said_for_long() {
        let (saying, mut body) = open();
        assert_eq!(next(&mut body).await.unwrap(), "address");
        let began = Instant::now();
        assert_eq!(next(&mut body).await.unwrap(), ":\n\n");
        assert_eq!(began.elapsed(), SIGN);
        tokio::time::sleep(SIGN / 2).await;
        saying.send(Bytes::from_static(b"{}").into()).await.unwrap();
        assert_eq!(next(&mut body).await.unwrap(), "event: message\ndata: {}\n\n");
        assert_eq!(next(&mut body).await.unwrap(), ":\n\n");
        assert_eq!(began.elapsed(), SIGN * 5 / 2, "counted from the message");
    }

    #[tokio::test(start_paused = true)]
    async fn it_ends_once_all_that_was_said_is_written() {
        let (saying, mut body) = open();
        saying.send(Bytes::from_static(b"1").into()).await.unwrap();
        saying.send(Bytes::from_static(b"2").into()).await.unwrap();
        drop(saying);
        let mut written = Vec::new();
        while let Some(bytes) = next(&mut body).await {
            written.push(bytes);
        }
        assert_eq!(written.len(), 3, "{written:?}");
    }
}
