//! Checks how long an incomplete message holds bytes of the answer budget.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::*;
use crate::answer_budget::AnswerBudget;
use crate::task::{Principal, Reason};
use crate::upstream::reply::{EventStream, ReadLimits, read_whole};
use crate::wire::framing::{HoldPolicy, PrimerPolicy};

const BYTES_MAX: usize = 4 << 20;

/// A message that begins with 100 KiB, then gets a piece at each interval.
fn incomplete(piece: usize, interval: Duration) -> RawBody {
    let first = format!("data: {}", "x".repeat(100 << 10));
    let more = stream::unfold((), move |()| async move {
        sleep(interval).await;
        Some(("x".repeat(piece), ()))
    });
    let pieces = stream::once(async { first }).chain(more);
    RawBody::new(StreamBody::new(pieces.map(|piece| Ok(Frame::data(BodyPart::from(Bytes::from(piece)))))))
}

/// Why the reading of a message failed.
type Reading = BoxFuture<'static, Option<Reason>>;
type Reader = fn(RawBody, AnswerShare) -> Reading;

/// All readers of a server's messages that count bytes and belong to no call of the engine. The fourth one reads connections:
/// `u76_a_message_that_stays_incomplete_is_dropped_and_its_connection_goes_on`.
const READERS: [(&str, Reader); 3] = [
    ("event stream", |body, share| {
        async move {
            let mut events = EventStream::new(body, ReadLimits::within(BYTES_MAX, share));
            events.next().await.err().map(|error| error.into_fault().reason)
        }
        .boxed()
    }),
    ("whole body", |body, share| {
        async move { read_whole(body, &ReadLimits::within(BYTES_MAX, share)).await.err().map(|fault| fault.reason) }
            .boxed()
    }),
    ("edited stream", |body, share| {
        async move {
            let gate = EventGate::new(PrimerPolicy::Pass, HoldPolicy::Messages, BYTES_MAX);
            let mut edited = edited_events(body, gate, Some(share), |event| vec![event.data.clone()]);
            let error = edited.frame().await?.err()?;
            BodyBreakError::known_in(&error).map(|fault| fault.reason)
        }
        .boxed()
    }),
];

#[tokio::test(start_paused = true)]
async fn u76_an_incomplete_message_holds_bytes_only_while_it_grows() {
    let seconds = Duration::from_secs;
    let sources = [
        ("stops", 1, seconds(86_400), true),
        ("trickles", 1 << 10, seconds(1), true),
        ("grows", 64 << 10, seconds(20), false),
    ];
    for (reader, read) in READERS {
        for (source, piece, interval, ends) in sources {
            let budget = AnswerBudget::default();
            let mut reading = read(incomplete(piece, interval), budget.share(&Principal::local(), BYTES_MAX));
            assert!(timeout(seconds(29), &mut reading).await.is_err(), "{reader}, {source}");
            assert!(budget.in_use() > 0, "{reader}, {source}");
            let ended = timeout(seconds(60), &mut reading).await.ok();
            assert_eq!(ended, ends.then_some(Some(Reason::UpstreamTimeout)), "{reader}, {source}");
            assert_eq!(budget.in_use() == 0, ends, "{reader}, {source}");
        }
    }
}

/// U76: a client that does not read stops the reader, too.
#[tokio::test(start_paused = true)]
async fn u76_a_server_is_not_blamed_for_the_time_in_which_its_client_does_not_read() {
    let seconds = Duration::from_secs;
    for (reader, read) in READERS {
        for client_away in [20, 100] {
            let budget = AnswerBudget::default();
            let (server, pieces) = mpsc::channel(8);
            let pieces = stream::unfold(pieces, async |mut pieces| Some((pieces.recv().await?, pieces)));
            let body = StreamBody::new(pieces.map(|piece: String| Ok(Frame::data(BodyPart::from(Bytes::from(piece))))));
            let mut reading = read(RawBody::new(body), budget.share(&Principal::local(), BYTES_MAX));
            server.send(format!("data: {}", "x".repeat(100 << 10))).await.unwrap();
            assert!(timeout(seconds(1), &mut reading).await.is_err(), "{reader}");
            server.send("x".to_owned()).await.unwrap();
            sleep(seconds(client_away)).await;
            assert!(timeout(seconds(15), &mut reading).await.is_err(), "{reader}: the server has 28 seconds");
            server.send("\n\n".to_owned()).await.unwrap();
            drop(server);
            assert_eq!(reading.await, None, "{reader}");
        }
    }
}
