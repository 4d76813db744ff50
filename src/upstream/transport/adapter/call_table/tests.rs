//! Routing of messages, and isolation of slow readers.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::wire::{Message, Payload, ScanLimits, envelope};

fn text(message: &Value) -> MessageText {
    Bytes::from(message.to_string()).into()
}

fn request(id: u32, method: &str, params: Value) -> Request {
    let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    match envelope::read(&text(&message), ScanLimits::UPSTREAM) {
        Ok(Message::Request(request)) => request,
        other => panic!("{other:?}"),
    }
}

fn call(id: u32) -> Request {
    request(id, "tools/call", json!({ "name": "t", "_meta": { "progressToken": id } }))
}

fn note(table: &mut CallTable, method: &str, params: Value) -> Result<(), DeliveryError> {
    note_text(table, &text(&json!({ "jsonrpc": "2.0", "method": method, "params": params })))
}

fn note_text(table: &mut CallTable, text: &MessageText) -> Result<(), DeliveryError> {
    match envelope::read(text, ScanLimits::UPSTREAM) {
        Ok(Message::Notification(notification)) => table.note(&notification, text),
        other => panic!("{other:?}"),
    }
}

fn ask(table: &mut CallTable, id: u32, params: Value) -> Result<(), DeliveryError> {
    let asked = request(id, "elicitation/create", params);
    table.deliver_question(&asked, &Bytes::from_static(b"{}").into())
}

fn progress(table: &mut CallTable, token: u32) -> Result<(), DeliveryError> {
    note(table, "notifications/progress", json!({ "progressToken": token, "progress": 1 }))
}

/// The number of waiting messages, and whether the stream has ended.
fn drained(messages: &mut AnswerMessages) -> (usize, bool) {
    let mut count = 0;
    loop {
        match messages.try_recv() {
            Ok(_) => count += 1,
            Err(mpsc::error::TryRecvError::Empty) => return (count, false),
            Err(mpsc::error::TryRecvError::Disconnected) => return (count, true),
        }
    }
}

/// How long the connection had no use and no listener, unless a request is in progress.
fn unused(table: &mut CallTable) -> Option<Duration> {
    table.idle().map(|idle| idle.unused)
}

impl CallTable {
    fn begin(&mut self, request: &Request) -> Result<EnteredRequest, RequestStartError> {
        self.begin_on(request, RequestTerms::default())
    }
}

#[tokio::test]
async fn t_20_a_message_goes_to_the_call_it_names_else_to_the_only_one_else_to_the_session() {
    let mut table = CallTable::new();
    let mut one = table.begin(&call(1)).unwrap().messages;
    let mut list = table.begin(&request(3, "tools/list", json!({}))).unwrap().messages;
    assert_eq!(ask(&mut table, 9, json!({})), Ok(()), "the only tool call");
    assert_eq!(drained(&mut one), (1, false));
    let mut two = table.begin(&call(2)).unwrap().messages;
    assert_eq!(ask(&mut table, 10, json!({})), Err(DeliveryError::NoReceiver), "two calls and no listener");
    assert_eq!(progress(&mut table, 2), Ok(()));
    assert_eq!((drained(&mut one), drained(&mut two)), ((0, false), (1, false)));
    let mut own = table.listen(None);
    assert_eq!(ask(&mut table, 11, json!({})), Ok(()));
    assert_eq!(note(&mut table, "notifications/message", json!({ "level": "info", "data": 1 })), Ok(()));
    assert_eq!((drained(&mut own), drained(&mut one), drained(&mut two)), ((2, false), (0, false), (0, false)));
    let related = json!({ "_meta": { "io.modelcontextprotocol/related-task": { "taskId": "x" } } });
    let mut waits = table.begin(&request(4, "tasks/result", json!({ "taskId": "x" }))).unwrap().messages;
    assert_eq!(ask(&mut table, 12, related), Ok(()));
    assert_eq!((drained(&mut waits), drained(&mut own), drained(&mut list)), ((1, false), (0, false), (0, false)));
    assert_eq!(note(&mut table, "notifications/cancelled", json!({ "requestId": 9 })), Ok(()));
    assert_eq!(drained(&mut one), (1, false), "the question was put there first");
}

/// T-20: peers write back the decoded text.
#[tokio::test]
async fn t_20_a_call_is_found_by_any_spelling_of_its_token_and_of_its_questions_id() {
    let mut table = CallTable::new();
    let params = json!({ "name": "t", "_meta": { "progressToken": "\u{e9}" } });
    let mut one = table.begin(&request(1, "tools/call", params)).unwrap().messages;
    let mut own = table.listen(None);
    let said = |text: &'static str| MessageText::from(Bytes::from_static(text.as_bytes()));
    let question = said(r#"{"jsonrpc":"2.0","id":"\u00fc","method":"elicitation/create","params":{}}"#);
    match envelope::read(&question, ScanLimits::UPSTREAM) {
        Ok(Message::Request(asked)) => assert_eq!(table.deliver_question(&asked, &question), Ok(())),
        other => panic!("{other:?}"),
    }
    let params = r#"{"progressToken":"\u00e9","progress":1}"#;
    let progress = format!(r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}"#);
    assert_eq!(note_text(&mut table, &Bytes::from(progress).into()), Ok(()));
    let cancelled = json!({ "requestId": "\u{fc}" });
    assert_eq!(note(&mut table, "notifications/cancelled", cancelled.clone()), Ok(()));
    assert_eq!((drained(&mut one), drained(&mut own)), ((3, false), (0, false)));
    table.answered(&RequestId::text("\u{fc}"));
    assert_eq!(note(&mut table, "notifications/cancelled", cancelled), Ok(()));
    assert_eq!((drained(&mut one), drained(&mut own)), ((0, false), (1, false)));
    let terms = RequestTerms { is_kept: true, ..RequestTerms::default() };
    let _two = table.begin_on(&Request { id: RequestId::text("\u{e9}"), ..call(2) }, terms).unwrap();
    let spelled = Payload::parse(&Bytes::from_static(br#""\u00e9""#), ScanLimits::UPSTREAM).unwrap();
    let spelled = RequestId::from_payload(&spelled).unwrap();
    assert!(table.has(&spelled) && table.is_tool(&spelled) && table.is_kept(&spelled), "by its own id");
}

#[tokio::test]
async fn an_answer_ends_the_stream_of_its_request_alone() {
    let mut table = CallTable::new();
    let (mut one, mut two) = (table.begin(&call(1)).unwrap().messages, table.begin(&call(2)).unwrap().messages);
    assert_eq!(table.begin(&call(1)).unwrap_err(), RequestStartError::IdInUse);
    assert!(!table.answer(Some(&RequestId::text("1")), &MessageText::default()), "1 is not \"1\" (T-62)");
    assert!(!table.answer(None, &MessageText::default()));
    assert!(table.answer(Some(&RequestId::number(1)), &MessageText::default()));
    assert!(!table.answer(Some(&RequestId::number(1)), &MessageText::default()), "once");
    assert_eq!((drained(&mut one), drained(&mut two)), ((1, true), (0, false)));
    table.cancel(&RequestId::number(2));
    assert_eq!(drained(&mut two), (0, true));
}

#[tokio::test]
async fn a_slow_reader_misses_progress_and_never_its_answer() {
    let mut table = CallTable::new();
    let mut slow = table.begin(&call(1)).unwrap().messages;
    let mut other = table.begin(&call(2)).unwrap().messages;
    let taken = (0..1_000).filter(|_| progress(&mut table, 1).is_ok()).count();
    assert_eq!((taken, progress(&mut table, 1)), (QUEUE_MAX, Err(DeliveryError::Slow)));
    assert_eq!(progress(&mut table, 2), Ok(()));
    assert!(table.answer(Some(&RequestId::number(1)), &MessageText::default()));
    assert_eq!((drained(&mut slow), drained(&mut other)), ((QUEUE_MAX + 1, true), (1, false)));
}

#[tokio::test]
async fn the_end_of_the_connection_is_told_to_every_call_with_its_reason() {
    let mut table = CallTable::new();
    let (mut one, mut own) = (table.begin(&call(1)).unwrap().messages, table.listen(None));
    let fault = GatewayFault::new(Reason::UpstreamClosed, Executed::Unknown);
    table.end(fault);
    let error = one.recv().await.unwrap().unwrap_err();
    assert_eq!(BodyBreakError::known_in(&error), Some(fault));
    assert_eq!(drained(&mut own), (0, true));
}

#[tokio::test]
async fn messages_before_the_first_listener_are_kept_within_a_bound() {
    let mut table = CallTable::new();
    let kept = (0..100).filter(|_| note(&mut table, "notifications/tools/list_changed", json!({})).is_ok()).count();
    assert_eq!(kept, EARLY_MAX);
    assert_eq!(drained(&mut table.listen(None)), (EARLY_MAX, false));
}

/// The connection is idle from the end of the last stream on.
#[tokio::test(start_paused = true)]
async fn a_connection_is_not_idle_while_a_listener_or_a_call_is_there() {
    let ten = Duration::from_secs(10);
    let mut table = CallTable::new();
    tokio::time::advance(ten).await;
    assert_eq!(unused(&mut table), Some(ten));
    let own = table.listen(None);
    tokio::time::advance(ten).await;
    assert_eq!(unused(&mut table), Some(Duration::ZERO), "there is a listener");
    drop(own);
    assert_eq!(unused(&mut table), Some(Duration::ZERO), "there was a listener just now");
    tokio::time::advance(ten).await;
    assert_eq!(unused(&mut table), Some(ten));
    let one = table.begin(&call(1)).unwrap();
    tokio::time::advance(ten).await;
    assert_eq!((unused(&mut table), table.left_for()), (None, Duration::ZERO));
    drop(one);
    tokio::time::advance(ten).await;
    assert_eq!((unused(&mut table), table.left_for()), (None, ten), "it continues without a reader");
    assert!(table.answer(Some(&RequestId::number(1)), &MessageText::default()));
    assert_eq!((unused(&mut table), table.left_for()), (Some(Duration::ZERO), Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_the_gateways_own_is_of_use_only_while_its_session_is() {
    let ten = Duration::from_secs(10);
    let session = Arc::new(());
    let held = Arc::downgrade(&session);
    let mut table = CallTable::new();
    let _own = table.listen(Some(StreamPurpose::new(move || held.strong_count() > 1)));
    tokio::time::advance(ten).await;
    assert_eq!(unused(&mut table), Some(ten));
    let user = Arc::clone(&session);
    assert_eq!(unused(&mut table), Some(Duration::ZERO), "such as a task that is polled now and then");
    drop(user);
    tokio::time::advance(ten).await;
    assert_eq!(unused(&mut table), Some(ten));
}

#[tokio::test]
async fn messages_before_the_session_is_open_are_not_the_handshakes() {
    let mut table = CallTable::new();
    let mut first = table.begin(&request(0, "initialize", json!({}))).unwrap().messages;
    assert_eq!(ask(&mut table, 9, json!({})), Err(DeliveryError::NoReceiver), "answered by the stand, if it is a ping");
    assert_eq!(note(&mut table, "notifications/message", json!({ "level": "info", "data": 1 })), Ok(()));
    assert_eq!(drained(&mut first), (0, false));
    assert_eq!(drained(&mut table.listen(None)), (1, false), "kept for the first listener");
}

/// Listening gives no more right to a connection than waiting to call.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_only_listened_on_is_quiet_and_one_with_a_call_is_not_idle() {
    let mut table = CallTable::new();
    let _heard = table.listen(None);
    let ten = Duration::from_secs(10);
    tokio::time::advance(ten).await;
    let idle = table.idle().unwrap();
    assert_eq!((idle.quiet, idle.unused, idle.has_task), (ten, Duration::ZERO, false));
    let begun = table.begin(&call(1)).unwrap();
    assert!(table.idle().is_none());
    drop(begun);
    assert!(table.idle().is_none(), "the call goes on");
    assert!(table.cancel(&call(1).id));
    assert_eq!(table.idle().unwrap().quiet, Duration::ZERO, "its end is a use");
    table.has_task = true;
    assert!(table.idle().unwrap().has_task);
}

/// A question with a picture is larger than many a message, and may wait: many of them may not.
#[tokio::test]
async fn a_large_message_is_accepted_and_the_queue_is_bounded_in_bytes() {
    let mut table = CallTable::new();
    let mut begun = table.begin(&call(1)).unwrap();
    let large = MessageText::from(Bytes::from(vec![b'x'; 5 << 20]));
    let asked = request(9, "sampling/createMessage", json!({}));
    assert_eq!(table.deliver_question(&asked, &large), Ok(()), "a single question may exceed the bound");
    assert_eq!(table.deliver_question(&asked, &large), Err(DeliveryError::Slow));
    let small = MessageText::from(Bytes::from_static(b"{}"));
    assert_eq!(table.deliver_question(&asked, &small), Err(DeliveryError::Slow), "the bound is exceeded");
    assert_eq!(begun.messages.recv().await.unwrap().unwrap().len(), large.len());
    for _ in 0..4 {
        assert_eq!(table.deliver_question(&asked, &Bytes::from(vec![b'x'; 1_000_000]).into()), Ok(()));
    }
    assert_eq!(table.deliver_question(&asked, &Bytes::from(vec![b'x'; 1_000_000]).into()), Err(DeliveryError::Slow));
    assert!(table.answer(Some(&call(1).id), &large), "room for the answer is its own");
    assert_eq!(drained(&mut begun.messages), (5, true));
}
