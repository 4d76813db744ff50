//! A transport for tests, which send the server's messages.

use std::io;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::*;
use crate::answer_budget::AnswerBudget;
use crate::upstream::raw_channel::RawBody;
use crate::upstream::reply::{EventStream, ReadLimits};
use crate::upstream::transport::sse::SseReceiver;
use crate::wire::framing::BodyPart;

/// One connection. The server never ends it.
#[derive(Debug)]
pub(super) struct SpeakingTransport {
    said: Mutex<Option<mpsc::Receiver<Bytes>>>,
    sender: Arc<dyn MessageSender>,
}

impl SpeakingTransport {
    /// The transport, and a channel for the server's messages.
    pub(super) fn new(sender: Arc<dyn MessageSender>) -> (Self, mpsc::Sender<Bytes>) {
        let (say, said) = mpsc::channel(8);
        (Self { said: Mutex::new(Some(said)), sender }, say)
    }
}

struct SpeakingReceiver(mpsc::Receiver<Bytes>);

#[async_trait]
impl MessageTransport for SpeakingTransport {
    async fn open(&self, _: &ForwardedHeaders) -> Result<ConnectionEnds, GatewayFault> {
        let said = self.said.lock().take().unwrap();
        Ok(ConnectionEnds { sender: Arc::clone(&self.sender), receiver: Box::new(SpeakingReceiver(said)) })
    }
}

#[async_trait]
impl MessageReceiver for SpeakingReceiver {
    async fn next(&mut self, _: &mut MessageRoom) -> Result<Bytes, GatewayFault> {
        match self.0.recv().await {
            Some(text) => Ok(text),
            None => std::future::pending().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn u76_a_message_that_stays_incomplete_is_dropped_and_its_connection_goes_on() {
    const BYTES_MAX: usize = 4 << 20;
    let (budget, seconds) = (AnswerBudget::default(), Duration::from_secs);
    let share = budget.share(&Principal::local(), BYTES_MAX);
    let mut room = MessageRoom::new(move || share.clone());
    let large = format!("data: {}", "x".repeat(100 << 10));
    let pieces = stream::iter([(0, large), (40, "\n\ndata: {}\n\n".to_owned())]);
    let pieces = pieces.then(|(after, piece)| async move {
        sleep(Duration::from_secs(after)).await;
        Ok::<_, io::Error>(Frame::data(BodyPart::from(Bytes::from(piece))))
    });
    let events = EventStream::new(RawBody::new(StreamBody::new(pieces)), ReadLimits::of_bytes(BYTES_MAX));
    let mut receiver = SseReceiver(events);
    let mut next = Box::pin(room.next(&mut receiver));
    assert!(timeout(seconds(29), &mut next).await.is_err() && budget.in_use() > 0);
    assert!(timeout(seconds(2), &mut next).await.is_err(), "the rest is read, and dropped");
    assert_eq!(budget.in_use(), 0);
    let (_, fault) = next.await.unwrap().unwrap_err();
    assert_eq!(fault.reason, Reason::UpstreamTimeout);
    assert_eq!(room.next(&mut receiver).await.unwrap().unwrap(), "{}");
}

#[tokio::test(start_paused = true)]
async fn b190_behind_a_message_without_bytes_each_message_waits_for_a_second() {
    const BYTES_MAX: usize = 1 << 20;
    let share = AnswerBudget::default().share(&Principal::local(), BYTES_MAX);
    let (mut within, mut exceeding) = <(AnswerPermit, AnswerPermit)>::default();
    share.grow(&mut within, BYTES_MAX).await.unwrap();
    share.grow(&mut exceeding, BYTES_MAX).await.unwrap();
    let mut room = MessageRoom::new(move || share.clone());
    let (say, said) = mpsc::channel(8);
    let mut receiver = SpeakingReceiver(said);
    let mut waited = async || {
        say.send(Bytes::from(vec![b' '; 100 << 10])).await.unwrap();
        let begun = Instant::now();
        let is_refused = room.next(&mut receiver).await.unwrap().is_err();
        (is_refused, begun.elapsed().as_secs())
    };
    assert_eq!(waited().await, (true, 60));
    assert_eq!([waited().await, waited().await], [(true, 1); 2], "its other messages do not wait a minute each");
    tokio::time::advance(REFUSED_FOR).await;
    assert_eq!(waited().await, (true, 60), "the refusal was long ago");
    drop(within);
    drop(exceeding);
    assert_eq!(waited().await, (false, 0));
}
