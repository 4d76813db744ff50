//! Refusals of a session server: which are answers, which are about its session, and which about the requested version.

use bytes::Bytes;
use http::StatusCode;
use serde_json::json;
use taskgate::upstream::Upstream as _;
use taskgate::wire::ProtocolVersion;

use super::server::{ScriptedReply, ScriptedServer, SeenRequest, json_text, status, whole};
use super::{begin, context, in_time, lines, upstream};

/// A refusal with these words, as a server of this SDK writes it.
pub(super) fn refusal(code: u16, media: Option<&str>, body: impl Into<Bytes>) -> ScriptedReply {
    let mut reply = whole(body);
    *reply.status_mut() = StatusCode::from_u16(code).unwrap();
    if let Some(media) = media {
        reply.headers_mut().insert("content-type", media.parse().unwrap());
    }
    reply
}

#[tokio::test]
async fn a_second_404_loses_the_call() {
    let server = ScriptedServer::answering(|_| status(404)).await;
    let upstream = upstream(&server.url());
    assert_eq!(
        lines(&mut begin(&upstream).await).await,
        ["lost UpstreamSessionLost Unknown"],
        "U04: it was sent twice"
    );
    assert_eq!(server.world.all(SeenRequest::is_call).len(), 2);
}

/// U04: a body that names the request is its answer under every status, and is made once.
#[tokio::test]
async fn a_body_that_names_the_request_is_its_answer_with_any_status() {
    let error = |code: i64, message: &str| json!({"error": {"code": code, "message": message}});
    for (status, outcome, expected, calls) in [
        (404, error(-32004, "no such document"), "faulted -32004 no such document", 1),
        (404, error(-32602, "Session not found"), "faulted -32602 Session not found", 1),
        (404, error(-32601, "no such tool"), "faulted -32601 no such tool", 1),
        (404, error(-32000, "the disk is full"), "faulted -32000 the disk is full", 1),
        (404, json!({"result": {"n": 1}}), "returned {\"n\":1}", 1),
        (500, json!({"result": {"n": 1}}), "returned {\"n\":1}", 1),
        (400, json!({"result": {"n": 1}}), "returned {\"n\":1}", 1),
        (422, error(-32050, "too odd"), "faulted -32050 too odd", 1),
        (404, error(-32001, "Session not found"), "lost UpstreamSessionLost Unknown", 2),
        // Servers that refuse a session with another code name no request: an error that does may come from a tool that ran.
        (404, error(-32600, "Session not found"), "faulted -32600 Session not found", 1),
        (404, error(-32000, "Session not found"), "faulted -32000 Session not found", 1),
        (400, error(-32000, "Session not found"), "faulted -32000 Session not found", 1),
    ] {
        let body = outcome.clone();
        let server = ScriptedServer::answering(move |seen| {
            let mut body = body.clone();
            body["jsonrpc"] = json!("2.0");
            body["id"] = seen.body["id"].clone();
            refusal(status, Some("application/json"), body.to_string())
        })
        .await;
        let upstream = upstream(&server.url());
        assert_eq!(lines(&mut begin(&upstream).await).await, [expected], "{status} {outcome}");
        let (made, opened) = (server.world.all(SeenRequest::is_call).len(), server.world.count("initialize"));
        assert_eq!(
            (made, opened),
            (calls, calls),
            "{status} {outcome}: a session is renewed for each repetition alone"
        );
    }
}

/// A body that may be the answer and cannot be read is no proof that the request was refused.
#[tokio::test]
async fn a_call_is_not_sent_again_after_a_404_whose_answer_is_too_large_to_be_read() {
    let large = json!({"jsonrpc": "2.0", "id": "x", "result": {"text": "x".repeat(128 * 1024)}}).to_string();
    let server = ScriptedServer::answering(move |_| refusal(404, Some("application/json"), large.clone())).await;
    assert_eq!(lines(&mut begin(&upstream(&server.url())).await).await, ["lost UpstreamHttpStatus Unknown"]);
    assert_eq!(server.world.all(SeenRequest::is_call).len(), 1);
}

/// How a server refuses.
type Words = fn() -> ScriptedReply;

/// A server that knows no session of before its restart, and says so in these words.
async fn restarted(words: Words, knows_pings: bool) -> ScriptedServer {
    ScriptedServer::start(move |seen| {
        let is_old = seen.header("mcp-session-id") == Some("s-1");
        let is_meant = seen.is_call() || (seen.rpc() == "ping" && !knows_pings);
        (is_old && is_meant).then(words)
    })
    .await
}

/// UPC-29: two calls fail, all later ones have another session; none is made twice.
#[tokio::test]
async fn a_session_that_is_refused_twice_in_unknown_words_is_asked_and_opened_anew() {
    let cases: [(&str, Words); 6] = [
        ("plain 400", || refusal(400, Some("text/plain"), "who are you?")),
        ("empty 400", || refusal(400, None, "")),
        ("a page", || refusal(410, Some("text/html"), "<p>gone</p>")),
        ("an error of nobody's", || {
            refusal(
                400,
                Some("application/json"),
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"bad"}}"#,
            )
        }),
        ("the same under 200", || json_text(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"bad"}}"#)),
        ("500", || refusal(500, Some("application/json"), "{}")),
    ];
    for (name, words) in cases {
        let server = restarted(words, false).await;
        let upstream = upstream(&server.url());
        let mut outcomes = Vec::new();
        for _ in 0..4 {
            outcomes.extend(lines(&mut begin(&upstream).await).await);
        }
        assert!(outcomes[..2].iter().all(|line| line.starts_with("lost ")), "{name}: {outcomes:?}");
        assert!(outcomes[..2].iter().all(|line| !line.ends_with(" No")), "{name}: the call may have run: {outcomes:?}");
        assert_eq!(outcomes[2..], ["returned {}", "returned {}"], "{name}");
        let calls = server.world.all(SeenRequest::is_call);
        assert_eq!((calls.len(), server.world.count("ping"), server.world.count("initialize")), (4, 1, 2), "{name}");
    }
}

/// UPC-29: as where the call's deadline ends while the server keeps silent.
#[tokio::test]
async fn a_ping_whose_call_is_dropped_midway_is_made_with_the_next_refusal() {
    let server = ScriptedServer::slow(|seen, world| async move {
        if seen.rpc() == "ping" && world.count("ping") == 1 {
            std::future::pending::<()>().await;
        }
        let is_refused = seen.header("mcp-session-id") == Some("s-1") && (seen.is_call() || seen.rpc() == "ping");
        is_refused.then(|| refusal(400, Some("text/plain"), "who are you?"))
    })
    .await;
    let upstream = upstream(&server.url());
    assert_eq!(lines(&mut begin(&upstream).await).await, ["lost UpstreamHttpStatus Unknown"]);
    let mut dropped = begin(&upstream).await;
    tokio::select! {
        outcome = lines(&mut dropped) => panic!("{outcome:?}"),
        _ = server.world.first(|seen| seen.rpc() == "ping") => drop(dropped),
    }
    assert_eq!(lines(&mut begin(&upstream).await).await, ["lost UpstreamHttpStatus Unknown"]);
    assert_eq!(lines(&mut begin(&upstream).await).await, ["returned {}"]);
    assert_eq!((server.world.count("ping"), server.world.count("initialize")), (2, 2));
}

/// A refused credential says nothing of the session, in which other calls go on.
#[tokio::test]
async fn a_session_outlives_refused_credentials() {
    for code in [401, 403, 407] {
        let server =
            ScriptedServer::answering(move |_| refusal(code, Some("text/plain"), "the token has expired")).await;
        let upstream = upstream(&server.url());
        for _ in 0..4 {
            let outcome = lines(&mut begin(&upstream).await).await;
            assert!(matches!(outcome.as_slice(), [only] if only.starts_with("lost ")), "{code}: {outcome:?}");
        }
        assert_eq!((server.world.count("ping"), server.world.count("initialize")), (0, 1), "{code}");
    }
}

#[tokio::test]
async fn a_session_in_which_a_ping_is_answered_stays() {
    let server = restarted(|| refusal(400, Some("text/plain"), "busy"), true).await;
    let upstream = upstream(&server.url());
    for _ in 0..5 {
        assert_eq!(lines(&mut begin(&upstream).await).await, ["lost UpstreamHttpStatus Unknown"]);
    }
    let asked = (server.world.count("ping"), server.world.count("initialize"));
    assert_eq!(asked, (2, 1), "after the second and the fourth refusal");
}

/// UPC-22: with any text and any status.
#[tokio::test]
async fn a_server_that_refuses_newer_versions_in_any_words_is_asked_for_older_ones() {
    let words = "Bad Request: Unsupported protocol version (supported versions: 2025-03-26, 2024-11-05)";
    for (status, body) in [
        (400, json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": words}}).to_string()),
        (200, json!({"jsonrpc": "2.0", "id": "{id}", "error": {"code": -32603, "message": words}}).to_string()),
        (400, words.to_owned()),
        (500, String::new()),
    ] {
        let reply = body.clone();
        let server = ScriptedServer::start(move |seen| {
            let version = seen.body["params"]["protocolVersion"].as_str()?;
            let text = reply.replace("{id}", seen.id());
            (version > "2025-03-26")
                .then(|| refusal(status, reply.starts_with('{').then_some("application/json"), text))
        })
        .await;
        let upstream = upstream(&server.url());
        let handshake = in_time(upstream.handshake(&context())).await.unwrap();
        assert_eq!(handshake.version, ProtocolVersion::V2025_03_26, "UPC-22: {status} {body}");
        let asked = server.world.all(|seen| seen.rpc() == "initialize");
        let asked: Vec<_> = asked.iter().map(|seen| seen.body["params"]["protocolVersion"].as_str().unwrap()).collect();
        assert_eq!(asked, ["2025-11-25", "2025-06-18", "2025-03-26"], "{status} {body}");
    }
}

/// How SDKs whose servers are not among the real peers refuse a session of before their restart, and how many calls that costs.
#[tokio::test]
async fn servers_of_other_sdks_lose_at_most_two_calls_over_a_restart_and_run_none_twice() {
    let java = r#"{"cause":null,"stackTrace":[],"jsonRpcError":{"code":-32603,"message":"Session not found: s-1","data":null}}"#;
    let csharp = r#"{"jsonrpc":"2.0","id":"","error":{"code":-32001,"message":"Session not found"}}"#;
    let python = r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}"#;
    for (sdk, status, media, body, lost) in [
        ("Go", 404, Some("text/plain; charset=utf-8"), "session not found\n", 0),
        ("Java, servlet", 404, Some("application/json;charset=UTF-8"), java, 0),
        ("Java, WebFlux", 404, None, "", 0),
        ("C#", 404, Some("application/json"), csharp, 0),
        ("Python from 1.23", 404, Some("application/json"), python, 0),
        ("mcp-go", 400, Some("text/plain; charset=utf-8"), "Invalid session ID\n", 0),
        ("Rust, early", 401, Some("text/plain"), "Unauthorized: Session not found", 0),
        ("a server of somebody's own", 422, Some("text/html"), "<p>try again</p>", 2),
    ] {
        let server = ScriptedServer::start(move |seen| {
            let is_old = seen.header("mcp-session-id") == Some("s-1") && !seen.rpc().starts_with("notifications/");
            (is_old && seen.method == http::Method::POST).then(|| refusal(status, media, body))
        })
        .await;
        let upstream = upstream(&server.url());
        let mut failed = 0;
        for _ in 0..5 {
            let outcome = lines(&mut begin(&upstream).await).await;
            failed += usize::from(outcome != ["returned {}"]);
        }
        assert_eq!(failed, lost, "{sdk}");
        let ids: std::collections::HashSet<_> = server
            .world
            .all(|seen| seen.is_call() && seen.header("mcp-session-id") != Some("s-1"))
            .iter()
            .map(|seen| seen.id().to_owned())
            .collect();
        assert_eq!(ids.len(), 5 - lost, "{sdk}: what may have run is not sent again");
    }
}
