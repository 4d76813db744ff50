//! The gateway withholds forbidden questions also between clients and servers without sessions: there, results have the
//! questions.

use std::fmt::Write as _;

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::{Value, json};

use super::client::{Client, TestGateway};
use super::peers::{body_of, client, gate, post, server};
use super::upstream::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, json_text};

/// Stands in every question.
const MARK: &str = "must-not-be-shown";
const MODES: &str = r#"{"elicitation":{"form":{},"url":{}}}"#;

const URL: &str = r#"{"method":"elicitation/create","params":{"mode":"url","message":"must-not-be-shown","elicitationId":"e","url":"URL"}}"#;
const FORM: &str = r#"{"method":"elicitation/create","params":{"message":"must-not-be-shown"}}"#;
const SAMPLE: &str =
    r#"{"method":"sampling/createMessage","params":{"messages":[],"systemPrompt":"must-not-be-shown"}}"#;

fn page(url: &str) -> String {
    URL.replace("URL", url)
}

/// Results with questions, the client's capabilities, and the code of the client's error.
fn bad() -> Vec<(&'static str, String, i64)> {
    let requests = |questions: &str| format!(r#"{{"resultType":"input_required","inputRequests":{questions}}}"#);
    let one = |question: &str| requests(&format!(r#"{{"k":{question}}}"#));
    let mut all = vec![
        ("{}", one(FORM), -32021),
        ("{}", one(SAMPLE), -32021),
        ("{}", one(r#"{"method":"roots/list","params":{"_meta":{"m":"must-not-be-shown"}}}"#), -32021),
        (r#"{"elicitation":{}}"#, one(&page("https://a.example/")), -32021),
        (r#"{"elicitation":{"url":{}}}"#, one(FORM), -32021),
        (MODES, requests(&format!(r#"{{"a":{FORM},"b":{SAMPLE}}}"#)), -32021),
        (MODES, one(r#"{"method":"custom/question","params":{"m":"must-not-be-shown"}}"#), -32603),
        (MODES, one(r#"["must-not-be-shown"]"#), -32603),
        // Written so that a search for names would not find them.
        ("{}", format!(r#"{{"\u0069nputRequests":{{"k":{FORM}}}}}"#), -32021),
        ("{}", format!(r#"{{"InputRequests":{{"k":{FORM}}},"resultType":"complete"}}"#), -32021),
    ];
    for url in ["javascript:alert(1)", "file:///etc/passwd", "https://bank@evil.example/", r"https://a.example/\n"] {
        all.push((MODES, one(&page(url)), -32603));
    }
    all
}

async fn world(result: String, as_events: bool) -> (ScriptedServer, TestGateway) {
    let server = server(move |seen: &SeenRequest| {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, seen.body["id"]);
        (seen.rpc() == "resources/read").then(|| said(&text, as_events))
    })
    .await;
    let gate = gate(&server).await;
    (server, gate)
}

fn said(text: &str, as_events: bool) -> ScriptedReply {
    if !as_events {
        return json_text(text.to_owned());
    }
    let (events, reply) = BodySender::open();
    events.raw(format!("data: {text}\n\n"));
    reply
}

async fn read(client: &Client, capabilities: &str) -> String {
    post(client, &body_of("resources/read", capabilities, r#""uri":"a:b""#)).await.text().await
}

#[tokio::test]
async fn u31_u32_a_client_without_a_session_is_not_shown_them_by_a_server_without_any() {
    let mut wrong = String::new();
    for as_events in [false, true] {
        for (declared, result, code) in bad() {
            let (_server, gate) = world(result.clone(), as_events).await;
            let shown = read(&client(&gate), declared).await;
            let data = shown.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&shown);
            let told: Value = serde_json::from_str(data).unwrap_or_default();
            // The gateway refuses a question that no client may get, and the server may have done something before it asked.
            let executed = if code == -32603 { json!("unknown") } else { Value::Null };
            let error = &told["error"];
            if shown.contains(MARK) || error["code"] != json!(code) || error["data"]["executed"] != executed {
                let _ = writeln!(wrong, "{declared} {result}: {shown}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// U32, T-49: errors that send the user to an address.
#[tokio::test]
async fn u32_an_error_does_not_send_a_client_without_a_session_to_an_address_that_is_no_page() {
    for (url, is_shown) in [("javascript:alert(1)", false), ("https://a.example/", true)] {
        for as_events in [false, true] {
            let server = server(move |seen: &SeenRequest| {
                let data = format!(r#"{{"elicitations":[{{"mode":"url","message":"{MARK}","url":"{url}"}}]}}"#);
                let error = format!(r#"{{"code":-32042,"message":"m","data":{data}}}"#);
                let text = format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, seen.body["id"]);
                (seen.rpc() == "resources/read").then(|| said(&text, as_events))
            })
            .await;
            let shown = read(&client(&gate(&server).await), MODES).await;
            assert_eq!((shown.contains(MARK), shown.contains("-32603")), (is_shown, !is_shown), "{shown}");
        }
    }
}

/// A long response is forwarded up to its question: there JSON is aborted, and an event becomes one that clients ignore.
#[tokio::test]
async fn u31_u32_an_answer_that_asks_after_its_beginning_has_passed_breaks_off() {
    for as_events in [false, true] {
        let result = format!(r#"{{"pad":"{}","inputRequests":{{"k":{FORM}}}}}"#, "x".repeat(1 << 20));
        let (_server, gate) = world(result, as_events).await;
        let reply = post(&client(&gate), &body_of("resources/read", "{}", r#""uri":"a:b""#)).await;
        let text = reply.try_text().await;
        assert_eq!(text.is_some(), as_events);
        let text = text.unwrap_or_default();
        let is_refused = text.contains("x\nevent: incomplete\ndata: x\n\n") && text.contains("\"code\":-32603");
        assert!(!text.contains(FORM) && is_refused == as_events, "{}", &text[text.len().saturating_sub(500)..]);
    }
}

#[tokio::test]
async fn a_question_that_the_client_declared_passes_byte_for_byte() {
    for as_events in [false, true] {
        let asked = page("https://a.example/");
        let result = format!(r#"{{"resultType":"input_required" ,"inputRequests":{{"k":{FORM}, "l":{asked}}}}}"#);
        let (_server, gate) = world(result.clone(), as_events).await;
        let shown = read(&client(&gate), MODES).await;
        assert!(shown.contains(&result), "{shown}");
    }
}

/// MOD-18: in 2026-07-28 no client can answer a server's request in the middle of a call. It is not forwarded, in any
/// spelling, and the messages around it are.
#[tokio::test]
async fn mod_18_a_request_of_the_servers_own_does_not_reach_the_client_and_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    let long = "x".repeat(300 << 10);
    let strays = [
        r#"data: {"jsonrpc":"2.0","id":"must-not-be-shown","method":"ping"}"#.to_owned(),
        format!("event: ask\ndata: {}", FORM.replacen('{', r#"{"jsonrpc":"2.0","id":7,"#, 1)),
        r#"data: {"jsonrpc":"2.0","id":7,"\u006dethod":"must-not-be-shown"}"#.to_owned(),
        r#"data: [{"jsonrpc":"2.0","id":7,"method":"must-not-be-shown"}]"#.to_owned(),
        format!(r#"data: {{"jsonrpc":"2.0","id":7,"params":{{"pad":"{long}"}},"method":"must-not-be-shown"}}"#),
    ];
    let told = r#"data: {"jsonrpc":"2.0","method":"notifications/x","params":{"progressToken":1,"progress":1}}"#;
    let (said, count) = (strays.join("\n\n"), strays.len());
    let server = server(move |seen: &SeenRequest| {
        let answer = format!(r#"data: {{"jsonrpc":"2.0","id":{},"result":{{"contents":[]}}}}"#, seen.body["id"]);
        (seen.rpc() == "resources/read").then(|| {
            let (events, reply) = BodySender::open();
            events.raw(format!("{told}\n\n{said}\n\n{answer}\n\n"));
            reply
        })
    })
    .await;
    let gate = gate(&server).await;
    let shown = read(&client(&gate), MODES).await;
    let data: Vec<_> = shown.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(data.len(), 2, "{shown}");
    assert!(data[0] == told && data[1].contains("contents") && !shown.contains(MARK), "{shown}");
    let page = metrics.render();
    let counted =
        page.lines().find(|line| line.starts_with("taskgate_upstream_dropped_total") && line.contains("stray_request"));
    assert!(counted.is_some_and(|line| line.ends_with(&format!(" {count}"))), "{page}");
}

#[tokio::test]
async fn mod_18_a_request_in_the_place_of_an_answer_is_none() {
    let server = server(|seen: &SeenRequest| {
        let request = r#"{"jsonrpc":"2.0","id":"must-not-be-shown","method":"ping"}"#;
        (seen.rpc() == "resources/read").then(|| json_text(request.to_owned()))
    })
    .await;
    let gate = gate(&server).await;
    let shown = read(&client(&gate), "{}").await;
    assert!(shown.contains("upstream_malformed") && !shown.contains(MARK), "{shown}");
}
