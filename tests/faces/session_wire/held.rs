//! Calls that are held on a stream of the gateway's own, whose clients lose it and come back; in paused time.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::json;
use taskgate::face::http::FaceResponse;
use taskgate::upstream::Timeouts;
use taskgate::upstream::answer_body::BodyKind;
use tokio::time::{advance, sleep};

use super::client::call;
use super::face::{
    Caller, LAST, RESULT, Slow, call_with_token, face, own_event, progress, seconds, text, with_short_ids, without_ids,
};

const STEP: &str = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n";

/// The next bytes of a stream.
async fn piece(response: &mut FaceResponse) -> String {
    let frame = response.body_mut().frame().await.unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().into_bytes().to_vec()).unwrap()
}

/// T-81: an upstream over HTTP that answers in JSON, long after its client's connection is gone.
#[tokio::test(start_paused = true)]
async fn a_late_answer_waits_five_minutes_for_a_client_that_lost_its_stream() {
    let channel = Slow::new(seconds(50), BodyKind::Json, &[(Duration::ZERO, RESULT)]);
    let face = face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    let mut response = caller.post(&face, call(1)).await;
    assert_eq!(with_short_ids(&piece(&mut response).await), "id: S.0\ndata:\n\n:\n\n", "it can be taken up at once");
    drop(response);
    let answer = format!("event: message\ndata: {}\n\n", RESULT.replace('\n', "\ndata: "));
    let again = caller.get(&face, &own_event(0)).await;
    assert_eq!(again.headers()["content-type"], "text/event-stream");
    assert_eq!(without_ids(&text(again).await), format!(":\n\n:\n\n{answer}"), "it was never sent again");
    assert_eq!(channel.sent.lock().len(), 2, "the handshake and the call");
    sleep(seconds(290)).await;
    let later = text(caller.get(&face, &own_event(0)).await).await;
    assert!(later.ends_with(&answer) && with_short_ids(&later).starts_with("id: S."), "{later}");
    let number: u64 = later.split_once('\n').unwrap().0.rsplit('.').next().unwrap().parse().unwrap();
    assert_eq!(text(caller.get(&face, &own_event(number)).await).await, "", "after the last event there are no more");
    advance(seconds(11)).await;
    let gone = text(caller.get(&face, &own_event(0)).await).await;
    assert!(!gone.contains("result"), "it is kept no longer: {gone}");
}

#[tokio::test(start_paused = true)]
async fn a_held_call_without_its_client_is_released_after_five_minutes() {
    for (away, is_kept) in [(295, true), (305, false)] {
        let channel = Slow::new(seconds(600), BodyKind::Json, &[(Duration::ZERO, RESULT)]);
        let face = face(&channel, Timeouts::default());
        let caller = Caller::open(&face).await;
        let mut response = caller.post(&face, call(1)).await;
        piece(&mut response).await;
        drop(response);
        sleep(seconds(away)).await;
        let again = text(caller.get(&face, &own_event(0)).await).await;
        assert_eq!(again.contains("\"n\":1.10"), is_kept, "after {away} s: {again}");
    }
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_go_on_where_the_stream_is_taken_up() {
    let channel = Slow::new(seconds(70), BodyKind::Json, &[(Duration::ZERO, RESULT)]);
    let face = face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    let mut response = caller.post(&face, call_with_token(&json!("p"))).await;
    let first = progress(&without_ids(&piece(&mut response).await)).0;
    drop(response);
    sleep(seconds(20)).await;
    let rest = text(caller.get(&face, &own_event(1)).await).await;
    let (values, _) = progress(&without_ids(&rest));
    assert!(values.len() >= 2 && values[0] > first[0], "{first:?} {values:?}");
    assert!(values.is_sorted_by(|one, next| one < next), "{values:?}");
}

/// LEG-14.
#[tokio::test(start_paused = true)]
async fn a_held_call_that_is_cancelled_ends_without_an_answer() {
    let channel = Slow::new(seconds(60), BodyKind::Json, &[(Duration::ZERO, RESULT)]);
    let face = face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    let mut response = caller.post(&face, call(1)).await;
    piece(&mut response).await;
    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    let told = caller.post(&face, note.to_string());
    let (rest, _) = tokio::join!(text(response), told);
    assert!(!rest.contains("result"), "{rest}");
    assert!(
        channel.sent.lock().iter().any(|sent| sent.windows(9).any(|bytes| bytes == b"cancelled")),
        "it is passed on"
    );
}

/// The stream of a server over HTTP is its own: the server alone gives its events ids, or none.
#[tokio::test(start_paused = true)]
async fn a_stream_of_the_upstreams_goes_on_as_it_came_once_it_begins() {
    let channel =
        Slow::new(seconds(20), BodyKind::Events, &[(Duration::ZERO, "id: u-1\ndata: {}\n\n"), (seconds(1), LAST)]);
    let face = face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    let said = with_short_ids(&text(caller.post(&face, call(1)).await).await);
    assert_eq!(said, format!("id: S.0\ndata:\n\n:\n\nid: u-1\ndata: {{}}\n\n{LAST}"));
}

/// A forwarded stream is kept only as long as a call's deadline: its permit at the upstream is free again then.
#[tokio::test(start_paused = true)]
async fn a_late_stream_waits_for_its_client_as_long_as_a_call_does() {
    for (away, is_kept) in [(100, true), (400, false)] {
        let channel = Slow::new(seconds(20), BodyKind::Events, &[(Duration::ZERO, LAST)]);
        let face = face(&channel, Timeouts::default());
        let caller = Caller::open(&face).await;
        let mut response = caller.post(&face, call(1)).await;
        piece(&mut response).await;
        drop(response);
        sleep(seconds(away)).await;
        let again = text(caller.get(&face, &own_event(0)).await).await;
        assert_eq!(again.contains("\"n\":1.10"), is_kept, "after {away} s: {again}");
    }
}

/// An answer that is too large to be kept goes out as it comes.
#[tokio::test(start_paused = true)]
async fn a_late_answer_of_any_size_goes_out_whole() {
    let large: &'static str =
        format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"x":"{}"}}}}"#, "x".repeat(3 << 20)).leak();
    let (head, tail) = large.split_at(2 << 20);
    let channel = Slow::new(seconds(20), BodyKind::Json, &[(Duration::ZERO, head), (seconds(1), tail)]);
    let face = face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    let said = text(caller.post(&face, call(1)).await).await;
    assert!(said.ends_with(&format!("event: message\ndata: {large}\n\n")), "{} bytes", said.len());
}

/// Behind another transport every stream is the gateway's own, made of events.
#[tokio::test(start_paused = true)]
async fn a_stream_that_was_made_of_another_transport_has_ids_from_its_first_event_on() {
    for (version, opening, named) in [
        ("2024-11-05", "", false),
        ("2025-03-26", ":\n\n", true),
        ("2025-06-18", ":\n\n", true),
        ("2025-11-25", "id: S.0\ndata:\n\n", true),
    ] {
        let channel = Slow::made(&[(seconds(1), STEP), (seconds(9), LAST)]);
        let face = face(&channel, Timeouts::default());
        let caller = Caller::open_as(&face, version).await;
        let said = with_short_ids(&text(caller.post(&face, call(1)).await).await);
        let id = |number: u32| if named { format!("id: S.{number}\n") } else { String::new() };
        assert_eq!(said, format!("{opening}{}{STEP}{}{LAST}", id(1), id(2)), "{version}");
    }
    let channel = Slow::made(&[(Duration::ZERO, LAST)]);
    let face = face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    assert_eq!(text(caller.post(&face, call(1)).await).await, LAST, "an answer alone needs no name");
    let channel = Slow::made(&[(seconds(9), LAST)]);
    let face = self::face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    let began = tokio::time::Instant::now();
    let response = caller.post(&face, call(1)).await;
    assert!(began.elapsed() < seconds(1), "the head does not wait for it");
    assert_eq!(without_ids(&text(response).await), LAST);
}

#[tokio::test(start_paused = true)]
async fn a_made_stream_resumes_after_the_last_event_that_its_client_saw() {
    let channel = Slow::made(&[(seconds(1), STEP), (seconds(1), STEP), (seconds(60), LAST)]);
    let face = face(&channel, Timeouts::default());
    let caller = Caller::open(&face).await;
    let mut response = caller.post(&face, call(1)).await;
    piece(&mut response).await;
    drop(response);
    sleep(seconds(5)).await;
    let again = without_ids(&text(caller.get(&face, &own_event(1)).await).await);
    assert!(again.starts_with(STEP) && again.ends_with(LAST), "{again}");
    assert_eq!(again.matches("notifications/message").count(), 1, "seen events are not repeated: {again}");
}
