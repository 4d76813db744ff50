//! The outcome of each kind of answer, good or bad. Rows are named after the rules of upstreams (U01, U02 and so on).

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use taskgate::upstream::{CallContext, ExchangeEvent, Timeouts};
use tokio_util::task::TaskTracker;

use super::server::{BodySender, ScriptedReply, ScriptedServer, SeenRequest, answer, json_text, polite, status, whole};
use super::{begin, call, context, line, lines, next, try_begin, upstream};

/// Runs one call against one answer; `ID` in a text stands for the call's own id.
async fn check(name: &str, answer: impl Fn(&SeenRequest) -> ScriptedReply + Send + Sync + 'static, expected: &[&str]) {
    let server = ScriptedServer::answering(answer).await;
    let upstream = upstream(&server.url());
    let mut context = context();
    context.result_bytes_max = 100_000;
    let lines = match try_begin(&upstream, call(&json!({})), context).await {
        Ok(mut exchange) => lines(&mut exchange).await,
        Err(error) => vec![format!("{error:?}")],
    };
    assert_eq!(lines, expected, "{name}");
    assert_eq!(server.world.all(SeenRequest::is_call).len(), 1, "{name}: sent once");
}

fn filled(seen: &SeenRequest, text: &str) -> String {
    text.replace("ID", &seen.body["id"].to_string())
}

async fn check_json(name: &str, text: &'static str, expected: &str) {
    check(name, move |seen| json_text(filled(seen, text)), &[expected]).await;
}

async fn check_events(name: &str, text: &'static str, expected: &[&str]) {
    let answer = move |seen: &SeenRequest| {
        let (events, reply) = BodySender::open();
        events.raw(filled(seen, text));
        reply
    };
    check(name, answer, expected).await;
}

async fn check_status(name: &str, code: u16, headers: &'static [(&str, &str)], expected: &str) {
    let answer = move |_: &SeenRequest| {
        let mut reply = status(code);
        for (name, value) in headers {
            reply.headers_mut().insert(*name, value.parse().unwrap());
        }
        reply
    };
    check(name, answer, &[expected]).await;
}

#[tokio::test]
async fn refusing_statuses_have_each_their_reason() {
    let from_status = "lost UpstreamHttpStatus Unknown";
    for code in [400, 404, 418, 500, 502, 503, 504] {
        // Without a session id a 404 is a status like any other.
        check_no_session(code, from_status).await;
    }
    check_status("U03", 401, &[("www-authenticate", "Bearer")], "lost UpstreamAuth Unknown").await;
    check_status("U03", 403, &[], "lost UpstreamAuth Unknown").await;
    check_status("U06", 202, &[], "lost UpstreamMalformed Unknown").await;
}

async fn check_no_session(code: u16, expected: &str) {
    let server = ScriptedServer::slow(move |seen, world| async move {
        if seen.is_call() {
            return Some(status(code));
        }
        let mut reply = polite(&seen, &world);
        reply.headers_mut().remove("mcp-session-id");
        Some(reply)
    })
    .await;
    let upstream = upstream(&server.url());
    assert_eq!(lines(&mut begin(&upstream).await).await, [expected], "U01 {code}");
}

#[tokio::test]
async fn a_status_and_its_retry_after_are_handed_on() {
    let server = ScriptedServer::answering(|_| {
        let mut reply = status(503);
        reply.headers_mut().insert("retry-after", "7".parse().unwrap());
        reply
    })
    .await;
    let upstream = upstream(&server.url());
    let ExchangeEvent::Lost(lost) = next(&mut begin(&upstream).await).await else { panic!("U02 is a loss") };
    assert_eq!((lost.0.http_status, lost.0.retry_after), (Some(503), Some(Duration::from_secs(7))), "U02");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = ScriptedServer::answering(|seen| answer(seen, &json!({}))).await;
    let location = elsewhere.url().to_string();
    let answer = move |_: &SeenRequest| {
        let mut reply = status(307);
        reply.headers_mut().insert("location", location.parse().unwrap());
        reply
    };
    check("U05", answer, &["lost UpstreamRedirect Unknown"]).await;
    assert!(elsewhere.world.all(|_| true).is_empty(), "U05: no request went there");
}

#[tokio::test]
async fn an_answer_that_is_no_message_of_ours_is_malformed() {
    let malformed = "lost UpstreamMalformed Yes";
    check("U06", |_| whole("<html>"), &["lost UpstreamMalformed Unknown"]).await;
    check_json("U07", r#"{"jsonrpc":"2.0","id":ID,"result":{"#, malformed).await;
    check_json("U08 two ids", r#"{"jsonrpc":"2.0","id":ID,"id":ID,"result":{}}"#, malformed).await;
    check_json("U08 both", r#"{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":""}}"#, malformed).await;
    check_json("U08 neither", r#"{"jsonrpc":"2.0","id":ID}"#, malformed).await;
    check_json("U08 array", r#"[{"jsonrpc":"2.0","id":ID,"result":{}}]"#, "returned {}").await;
    check_json("U08 array of others", r#"[{"jsonrpc":"2.0","id":"tg:0","result":{}}]"#, malformed).await;
    check_json("U08 null", r#"{"jsonrpc":"2.0","id":ID,"result":{},"error":null}"#, "returned {}").await;
    check_json("U09", r#"{"jsonrpc":"2.0","id":"tg:0","result":{}}"#, malformed).await;
    check_json("U09 null", r#"{"jsonrpc":"2.0","id":null,"result":{}}"#, malformed).await;
    check_json("U28 half a pair", r#"{"jsonrpc":"2.0","id":ID,"result":{"\ud800":1}}"#, malformed).await;
    let carried = "returned {\"a\":\"\\ud800\"}";
    check_json("U28 as a value", r#"{"jsonrpc":"2.0","id":ID,"result":{"a":"\ud800"}}"#, carried).await;
    check_json("U28 keys", r#"{"jsonrpc":"2.0","id":ID,"result":{"a":1,"a":2}}"#, malformed).await;
    let nested = |seen: &SeenRequest| {
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        json_text(filled(seen, &format!(r#"{{"jsonrpc":"2.0","id":ID,"result":{deep}}}"#)))
    };
    check("U27", nested, &[malformed]).await;
}

#[tokio::test]
async fn an_encoded_answer_is_refused_and_not_inflated() {
    let answer = |seen: &SeenRequest| {
        let mut reply = answer(seen, &json!({}));
        reply.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        reply
    };
    check("U16", answer, &["lost UpstreamMalformed Unknown"]).await;
}

#[tokio::test]
async fn answers_are_read_up_to_their_bound() {
    let large = |seen: &SeenRequest| answer(seen, &json!({ "text": "x".repeat(200_000) }));
    check("U12", large, &["lost ResultTooLarge Yes"]).await;
    let unannounced = |_: &SeenRequest| {
        let (events, mut reply) = BodySender::open();
        reply.headers_mut().insert("content-type", "application/json".parse().unwrap());
        for _ in 0..20 {
            events.raw("x".repeat(10_000));
        }
        reply
    };
    check("U12 chunked", unannounced, &["lost ResultTooLarge Yes"]).await;
    let endless_line = |_: &SeenRequest| {
        let (events, reply) = BodySender::open();
        for _ in 0..20 {
            events.raw("x".repeat(10_000));
        }
        reply
    };
    check("U17", endless_line, &["lost ResultTooLarge Yes"]).await;
    let head = |_: &SeenRequest| {
        let mut reply = status(200);
        for n in 0..200 {
            reply.headers_mut().insert(http::HeaderName::try_from(format!("x-{n}")).unwrap(), "1".parse().unwrap());
        }
        reply
    };
    check("U13", head, &["lost UpstreamMalformed Unknown"]).await;
    let large_head = |_: &SeenRequest| {
        let mut reply = status(200);
        for n in 0..9 {
            let value = "1".repeat(8 * 1024).parse().unwrap();
            reply.headers_mut().insert(http::HeaderName::try_from(format!("x-{n}")).unwrap(), value);
        }
        reply
    };
    check("U13", large_head, &["lost UpstreamMalformed Unknown"]).await;
}

#[tokio::test]
async fn an_error_of_the_upstream_stays_its_own() {
    let error = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32602,"message":"no such tool"}}"#;
    check_json("at 200", error, "faulted -32602 no such tool").await;
    let at_400 = move |seen: &SeenRequest| {
        let mut reply = json_text(filled(seen, error));
        *reply.status_mut() = StatusCode::BAD_REQUEST;
        reply
    };
    check("at 400", at_400, &["faulted -32602 no such tool"]).await;
    let of_nobody = |_: &SeenRequest| {
        let mut reply = json_text(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"bad request"}}"#);
        *reply.status_mut() = StatusCode::BAD_REQUEST;
        reply
    };
    check("at 400, without an id", of_nobody, &["lost UpstreamHttpStatus Unknown"]).await;
}

/// F34.
#[tokio::test]
async fn malformed_events_are_survived_ten_times() {
    let answer = |bad: usize| {
        move |seen: &SeenRequest| {
            let (events, reply) = BodySender::open();
            for _ in 0..bad {
                events.raw("data: {oops\n\n");
            }
            events.result(seen, &json!({}));
            reply
        }
    };
    check("U19 ten", answer(10), &["returned {}"]).await;
    check("U19 eleven", answer(11), &["lost UpstreamMalformed Unknown"]).await;
    let lone = "data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"a\":\"\\ud800\"}}\n\n";
    check_events("U28 in a stream", lone, &["returned {\"a\":\"\\ud800\"}"]).await;
    let twice = "data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"a\":1,\"a\":2}}\n\n";
    check_events("U28 keys in a stream", twice, &["lost UpstreamMalformed Yes"]).await;
}

/// F37.
#[tokio::test]
async fn only_the_first_answer_with_the_id_counts() {
    let text = "data: {\"jsonrpc\":\"2.0\",\"id\":\"tg:0\",\"result\":{\"n\":0}}\n\n\
                data: {\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":1,\"message\":\"\"}}\n\n\
                data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"n\":1.10}}\n\n\
                data: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"n\":2}}\n\n";
    check_events("U09, U10, U23", text, &["returned {\"n\":1.10}"]).await;
}

#[tokio::test]
async fn a_stream_that_cannot_be_resumed_is_closed() {
    check_events("U22", "data: \n\n", &["lost UpstreamClosed Unknown"]).await;
    let cut = |_: &SeenRequest| {
        let (events, reply) = BodySender::open();
        events.raw(":\n\n");
        events.cut();
        reply
    };
    check("F31", cut, &["lost UpstreamClosed Unknown"]).await;
    let short = |seen: &SeenRequest| {
        let (events, mut reply) = BodySender::open();
        reply.headers_mut().insert("content-type", "application/json".parse().unwrap());
        events.raw(filled(seen, r#"{"jsonrpc":"2.0","id":ID,"#));
        events.cut();
        reply
    };
    check("U14 short body", short, &["lost UpstreamClosed Unknown"]).await;
}

#[tokio::test]
async fn an_event_stream_is_read_however_it_is_written() {
    let text = "\u{feff}: hello\r\rdata: {\"jsonrpc\":\"2.0\",\r\ndata: \"id\":ID,\r\ndata: \"result\":{\"caf\u{e9}\":1}}\r\n\r\n";
    check_events("U20", text, &["returned {\"caf\u{e9}\":1}"]).await;
}

#[tokio::test]
async fn silence_ends_a_call_only_where_a_limit_is_set() {
    let server = ScriptedServer::slow(|seen, _| async move {
        if seen.is_call() {
            if seen.body["params"]["arguments"]["head"] == json!(true) {
                return Some(BodySender::silent());
            }
            std::future::pending::<()>().await;
        }
        None
    })
    .await;
    let upstream = upstream(&server.url());
    // The time for the first byte begins before the call is handed over, which a busy machine may take a while for.
    let limits = [
        (false, Timeouts { first_byte: Some(Duration::from_secs(3)), idle: None }),
        (true, Timeouts { first_byte: None, idle: Some(Duration::from_millis(200)) }),
    ];
    for (head, timeouts) in limits {
        let context = CallContext { timeouts, ..context() };
        let mut exchange = try_begin(&upstream, call(&json!({ "head": head })), context).await.unwrap();
        assert_eq!(line(&next(&mut exchange).await), "lost UpstreamTimeout Unknown", "F28, head sent: {head}");
    }
}

#[tokio::test]
async fn a_comment_is_no_silence() {
    let server = ScriptedServer::answering(|seen| {
        let (events, reply) = BodySender::open();
        let seen = seen.clone();
        TaskTracker::new().spawn(async move {
            // For longer than the silence that is allowed.
            for _ in 0..80 {
                events.raw(":\n\n");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            events.result(&seen, &json!({}));
        });
        reply
    })
    .await;
    let mut context = context();
    context.timeouts.idle = Some(Duration::from_secs(3));
    let mut exchange = try_begin(&upstream(&server.url()), call(&json!({})), context).await.unwrap();
    assert_eq!(lines(&mut exchange).await, ["returned {}"], "U18, F32, F35");
}
