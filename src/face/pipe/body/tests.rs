//! Checks which parts of a response show that its server lives.

use std::cell::Cell;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use memchr::memmem;
use tokio::time::{advance, sleep};

use super::*;
use crate::connection_timer::ConnectionTimer;
use crate::face::http::SingleEventBody;
use crate::upstream::body::edited_events;
use crate::wire::Payload;
use crate::wire::framing::{EventGate, HoldPolicy, PrimerPolicy};

const ANSWER: &str = "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n";

struct TestRequest {
    id: RequestId,
    is_wanted: bool,
}

impl AnsweredRequest for TestRequest {
    fn id(&self) -> &RequestId {
        &self.id
    }

    fn is_wanted(&self) -> bool {
        self.is_wanted
    }
}

/// The body that a client receives over HTTP/1.1 if the server sends its parts at an interval.
async fn received(parts: &'static [&'static str], interval: Duration) -> String {
    let frames = stream::iter(parts).then(move |part| async move {
        sleep(interval).await;
        Ok(Frame::data(BodyPart::from(Bytes::from_static(part.as_bytes()))))
    });
    let gate = EventGate::new(PrimerPolicy::Unnumbered, HoldPolicy::Messages, 1 << 20);
    let source = edited_events(RawBody::new(StreamBody::new(frames)), gate, None, |event| {
        if memmem::find(&event.data, b"result").is_some() { vec![event.data.clone()] } else { Vec::new() }
    });
    let pace = PipeTimeouts { idle: Some(Duration::from_secs(120)), deadline: None };
    let request = TestRequest { id: RequestId::number(1), is_wanted: true };
    let mut body = PipeBody::new(source, BodyForm::Events, pace, Some(request));
    let (mut text, mut timer) = (Vec::new(), ConnectionTimer::default());
    let mut next = |context: &mut Context<'_>| timer.poll(context, |context| Pin::new(&mut body).poll_frame(context));
    while let Some(frame) = poll_fn(&mut next).await {
        let part = frame.unwrap().into_data().unwrap();
        assert!(!part.is_empty(), "a client gets no empty part");
        text.extend_from_slice(&part.into_bytes());
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn parts_that_a_client_does_not_get_show_that_the_server_lives() {
    const TOLD: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n";
    const PRIMER: &str = "id: 5\n\n";
    let (often, rarely) = (Duration::from_secs(50), Duration::from_secs(130));
    for parts in [&[TOLD, TOLD, TOLD, TOLD, ANSWER][..], &[PRIMER, PRIMER, PRIMER, PRIMER, ANSWER]] {
        let text = received(parts, often).await;
        assert!(text.contains("\"result\"") && !text.contains("notifications"), "{text}");
        let text = received(parts, rarely).await;
        assert!(text.contains("upstream_timeout") && !text.contains("\"result\""), "{text}");
    }
}

/// U22: an event that is incomplete, of any size and cut anywhere, or that has another name, is no response.
#[tokio::test(start_paused = true)]
async fn u22_an_error_follows_an_event_that_clients_do_not_read_as_a_message() {
    let large =
        format!("data: {{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{{\"a\":\"{}", "a".repeat(2 * EVENT_BYTES_MAX));
    for cut in [
        "dat",
        "event: message\ndata: {\"jsonrpc\":\"2.0\",\"result",
        ANSWER.trim_ascii_end(),
        &ANSWER[..ANSWER.len() - 1],
        &format!("event: other\n{ANSWER}"),
        &large,
    ] {
        let parts: &'static [&'static str] = vec![&*cut.to_owned().leak()].leak();
        let text = received(parts, Duration::from_millis(1)).await;
        let events = SseDecoder::new(1 << 20).feed(text.as_bytes()).unwrap();
        let messages: Vec<_> = events.iter().filter(|event| event.is_message()).collect();
        assert_eq!(messages.len(), 1, "{cut:.80}: {text:.400}");
        assert!(memmem::find(&messages[0].data, b"\"reason\":\"upstream_closed\"").is_some(), "{text:.400}");
    }
}

/// U22: also if the gateway ends the response.
#[tokio::test(start_paused = true)]
async fn u22_json_in_an_event_that_misses_the_deadline_ends_with_that_fault() {
    let begun: Result<_, io::Error> = Ok(Frame::data(BodyPart::from(Bytes::from_static(b"{\"jsonrpc\":"))));
    let source = RawBody::new(StreamBody::new(stream::iter([begun]).chain(stream::pending())));
    let pace = PipeTimeouts { idle: None, deadline: Some(Instant::now() + Duration::from_secs(100)) };
    let request = TestRequest { id: RequestId::number(1), is_wanted: true };
    let body = RawBody::new(PipeBody::new(source, BodyForm::Json, pace, Some(request)));
    let text = SingleEventBody::new(body, Some(RequestId::number(1))).collect().await.unwrap().to_bytes();
    assert!(memmem::find(&text, b"\"reason\":\"deadline_exceeded\"").is_some(), "{text:?}");
}

/// Reads a response of which a part comes every 10 ms for 200 s; the call has a deadline of 100 s. Returns the number of life signs
/// and the last text that the client gets.
async fn flooded(part: &'static str, is_left_out: bool, wants_progress: bool) -> (usize, String) {
    let begun = Instant::now();
    let frames = stream::poll_fn(move |_| {
        // It is never pending; the first poll moves the clock.
        let _ = advance(Duration::from_millis(10)).now_or_never();
        let part = BodyPart::from(Bytes::from_static(part.as_bytes()));
        Poll::Ready((begun.elapsed() < Duration::from_secs(200)).then(|| Ok(Frame::data(part))))
    });
    let gate = EventGate::new(PrimerPolicy::Unnumbered, HoldPolicy::Messages, 1 << 20);
    let source = edited_events(RawBody::new(StreamBody::new(frames)), gate, None, move |event| {
        if is_left_out { Vec::new() } else { vec![event.data.clone()] }
    });
    let pace = PipeTimeouts { idle: None, deadline: Some(begun + Duration::from_secs(100)) };
    let id = RequestId::number(1);
    let signs = wants_progress.then(|| LifeSigns::new(id.clone(), Payload::of("t")));
    let request = TestRequest { id, is_wanted: true };
    let mut body = PipeBody::new(source, BodyForm::Events, pace, Some(request)).with_signs(signs);
    let (mut signs, mut last) = (0, String::new());
    while let Some(frame) = body.frame().await {
        let part = frame.unwrap().into_data().unwrap();
        last = String::from_utf8(part.into_bytes().to_vec()).unwrap();
        signs += usize::from(last.starts_with(':') || last.contains("notifications/progress"));
    }
    (signs, last)
}

/// GW-26: one every 15 s.
#[tokio::test(start_paused = true)]
async fn gw_26_a_flood_of_messages_hides_no_life_sign_and_no_deadline() {
    const LOG: &str = "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\"}\n\n";
    for (is_left_out, wants_progress, expected) in
        [(true, false, 6), (true, true, 6), (false, true, 6), (false, false, 0)]
    {
        let (signs, last) = flooded(LOG, is_left_out, wants_progress).await;
        assert_eq!(signs, expected, "left out: {is_left_out}, progress: {wants_progress}");
        assert!(last.contains("deadline_exceeded"), "{last}");
    }
}

/// U90, LEG-14: its server may be silent, go on with comments, end the stream, or break it.
#[tokio::test(start_paused = true)]
async fn u90_the_stream_of_a_cancelled_call_ends_with_the_next_life_sign_and_has_no_response() {
    type Item = Result<Frame<BodyPart>, io::Error>;

    let silent = RawBody::new(StreamBody::new(stream::pending::<Item>()));
    let ended = RawBody::new(StreamBody::new(stream::empty::<Item>()));
    let broken = RawBody::new(StreamBody::new(stream::iter([Item::Err(io::Error::other("reset"))])));
    let commenting = RawBody::new(StreamBody::new(stream::repeat(()).then(|()| async {
        sleep(Duration::from_secs(5)).await;
        Item::Ok(Frame::data(BodyPart::from(Bytes::from_static(b":\n\n"))))
    })));
    for (source, expected, seconds) in
        [(silent, ":\n\n", 15), (commenting, ":\n\n:\n\n:\n\n", 15), (ended, "", 0), (broken, ":\n\n", 0)]
    {
        let begun = Instant::now();
        let request = TestRequest { id: RequestId::number(1), is_wanted: false };
        let body = PipeBody::new(source, BodyForm::Events, PipeTimeouts::default(), Some(request));
        assert_eq!(body.collect().await.unwrap().to_bytes(), expected);
        assert_eq!(begun.elapsed().as_secs(), seconds);
    }
}

/// U90: its server stops in the middle of the response.
#[tokio::test(start_paused = true)]
async fn u90_the_json_of_a_cancelled_call_is_cut_off_within_15_s() {
    for (is_wanted, seconds) in [(false, 15), (true, 100)] {
        let part: Result<_, io::Error> = Ok(Frame::data(BodyPart::from(Bytes::from_static(b"{\"jsonrpc\":"))));
        let source = RawBody::new(StreamBody::new(stream::iter([part]).chain(stream::pending())));
        let begun = Instant::now();
        let pace = PipeTimeouts { idle: None, deadline: Some(begun + Duration::from_secs(100)) };
        let request = TestRequest { id: RequestId::number(1), is_wanted };
        let body = PipeBody::new(source, BodyForm::Json, pace, Some(request));
        assert!(body.collect().await.is_err());
        assert_eq!(begun.elapsed().as_secs(), seconds);
    }
}

/// U90: a server that answers in JSON sends nothing before its response.
#[tokio::test(start_paused = true)]
async fn u90_the_wait_for_the_response_to_a_cancelled_call_ends() {
    let begun = Instant::now();
    for (is_wanted, deadline, seconds) in [(false, None, 15), (true, Some(Duration::from_secs(50)), 65)] {
        let request = TestRequest { id: RequestId::number(1), is_wanted };
        let waiting = pin!(std::future::pending::<Result<(), GatewayFault>>());
        let deadline = deadline.map(|span| Instant::now() + span);
        assert!(in_time(&request, waiting, None, deadline).await.is_err());
        assert_eq!(begun.elapsed().as_secs(), seconds);
    }
}

struct CancelledRequest {
    id: RequestId,
    cancelled: Instant,
    is_given_up: Cell<bool>,
}

impl AnsweredRequest for CancelledRequest {
    fn id(&self) -> &RequestId {
        &self.id
    }

    fn given_up(&self) {
        self.is_given_up.set(true);
    }

    fn is_wanted(&self) -> bool {
        Instant::now() < self.cancelled
    }
}

/// U90: a server sends no response to a request that was cancelled.
#[tokio::test(start_paused = true)]
async fn b254_a_request_that_its_client_soon_cancels_is_no_failure_of_its_server() {
    for (seconds, is_given_up) in [(1, false), (50, true)] {
        let cancelled = Instant::now() + Duration::from_secs(seconds);
        let request = CancelledRequest { id: RequestId::number(1), cancelled, is_given_up: Cell::default() };
        let waiting = pin!(std::future::pending::<Result<(), GatewayFault>>());
        assert!(in_time(&request, waiting, None, None).await.is_err());
        assert_eq!(request.is_given_up.get(), is_given_up, "cancelled after {seconds} s");
    }
}
