//! Shared parts of calls: handshake, pool, the session's own stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use taskgate::task::{Principal, Reason};
use taskgate::upstream::http::HttpUpstreamSettings;
use taskgate::upstream::{Answer, BeginError, CallContext, ClientFacts, Exchange, ExchangeEvent, Upstream};
use taskgate::wire::{Payload, ProtocolVersion};
use tokio::sync::Mutex;

use support::ports::reserved_address;

use super::refused_sessions::refusal;
use super::server::{
    BodySender, ScriptedReply, ScriptedServer, ScriptedState, SeenRequest, answer, json_text, polite, status,
};
use super::{
    begin, call, context, in_time, line, lines, next, settings, try_begin, until_some_are_held, upstream, upstream_of,
    upstream_of_4_mib,
};

fn is_initialize(seen: &SeenRequest) -> bool {
    seen.rpc() == "initialize"
}

fn is_get(seen: &SeenRequest) -> bool {
    seen.method == Method::GET
}

fn is_delete(seen: &SeenRequest) -> bool {
    seen.method == Method::DELETE
}

fn refused(begun: Result<Box<dyn Exchange>, BeginError>) -> String {
    match begun.err().expect("nothing begins") {
        BeginError::Gateway(fault) => format!("{:?} {:?}", fault.reason, fault.executed),
        BeginError::Refused(error) => format!("refused {} {}", error.code, error.message),
    }
}

#[tokio::test]
async fn b268_a_session_whose_handshake_fails_after_it_was_opened_ends_at_its_server() {
    let server = ScriptedServer::start(|seen| (seen.rpc() == "notifications/initialized").then(|| status(500))).await;
    let upstream = upstream(&server.url());
    assert_eq!(refused(try_begin(&upstream, call(&json!({})), context()).await), "UpstreamHttpStatus No");
    assert_eq!(server.world.first(is_delete).await.header("mcp-session-id"), Some("s-1"));
}

/// B268.
#[tokio::test]
async fn b268_a_session_with_an_unusable_handshake_ends_at_its_server() {
    for (members, expected) in [
        (json!({"protocolVersion": "2026-07-28"}), "UpstreamRefused No"),
        (json!({"protocolVersion": "soon"}), "UpstreamMalformed No"),
        (json!({"capabilities": null}), "UpstreamMalformed No"),
    ] {
        let server = ScriptedServer::polite().await;
        *server.world.initialize_result.lock() = members;
        let upstream = upstream(&server.url());
        assert_eq!(refused(try_begin(&upstream, call(&json!({})), context()).await), expected);
        assert_eq!(server.world.first(is_delete).await.header("mcp-session-id"), Some("s-1"), "{expected}");
    }
}

#[tokio::test]
async fn a_session_declares_the_capabilities_of_its_client() {
    let server = ScriptedServer::answering(|seen| answer(seen, &json!({}))).await;
    let upstream = upstream(&server.url());
    lines(&mut begin(&upstream).await).await;
    server.world.first(is_get).await;
    let all = server.world.all(|seen| !is_get(seen));
    let order: Vec<_> = all.iter().map(SeenRequest::rpc).collect();
    assert_eq!(order, ["initialize", "notifications/initialized", "tools/call"]);
    let params = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "taskgate", "version": env!("CARGO_PKG_VERSION")},
    });
    assert_eq!(all[0].body["params"], params, "UPC-21");
    assert_eq!((all[0].header("mcp-session-id"), all[0].header("mcp-protocol-version")), (None, None));
    for later in &all[1..] {
        assert_eq!(later.header("mcp-session-id"), Some("s-1"));
        assert_eq!(later.header("mcp-protocol-version"), Some("2025-11-25"));
    }
    let handshake = in_time(upstream.handshake(&context())).await.unwrap();
    assert_eq!(handshake.version, ProtocolVersion::V2025_11_25);
    assert_eq!(handshake.capabilities.as_str(), "{\"tools\":{}}");
    assert_eq!(handshake.server_info.as_ref().map(Payload::as_str), Some("{\"name\":\"scripted\",\"version\":\"1\"}"));
}

#[tokio::test]
async fn sessions_are_not_shared_between_principals_or_capabilities() {
    let server = ScriptedServer::answering(|seen| answer(seen, &json!({}))).await;
    let upstream = upstream(&server.url());
    let other_principal = CallContext { principal: Principal::new("key:other"), ..context() };
    let silent = ClientFacts { capabilities: Payload::empty_object() };
    let other_client = CallContext { client: silent, ..context() };
    for context in [context(), other_principal, other_client, context()] {
        lines(&mut try_begin(&upstream, call(&json!({})), context).await.unwrap()).await;
    }
    let sessions: Vec<_> = server
        .world
        .all(SeenRequest::is_call)
        .iter()
        .map(|seen| seen.header("mcp-session-id").unwrap().to_owned())
        .collect();
    assert_eq!(sessions, ["s-1", "s-2", "s-3", "s-1"], "T-20, T-60");
}

async fn fifty_calls(upstream: &impl Upstream) -> Vec<Vec<String>> {
    let calls = (0..50).map(|_| async {
        let mut exchange = in_time(upstream.begin(call(&json!({})), context())).await.unwrap();
        lines(&mut exchange).await
    });
    join_all(calls).await
}

#[tokio::test]
async fn fifty_first_calls_make_one_handshake() {
    let server = ScriptedServer::answering(|seen| answer(seen, &json!({}))).await;
    let all = fifty_calls(&upstream(&server.url())).await;
    assert!(all.iter().all(|lines| lines == &["returned {}"]));
    assert_eq!(server.world.all(is_initialize).len(), 1);
}

#[tokio::test]
async fn a_forgotten_session_is_opened_anew_once_for_all() {
    let server = ScriptedServer::slow(|seen, world: Arc<ScriptedState>| async move {
        if !seen.is_call() {
            return None;
        }
        if seen.header("mcp-session-id") != Some("s-1") {
            return Some(answer(&seen, &json!({})));
        }
        // The calls are refused together, so that all look for a session at once.
        world.nth(49, SeenRequest::is_call).await;
        Some(status(404))
    })
    .await;
    let upstream = upstream(&server.url());
    let all = fifty_calls(&upstream).await;
    assert!(all.iter().all(|lines| lines == &["returned {}"]), "U04: {all:?}");
    assert_eq!(server.world.all(is_initialize).len(), 2, "F39: one handshake, then one for all who wait");
    assert_eq!(server.world.all(SeenRequest::is_call).len(), 100, "U04: each sent again once");
    assert!(server.world.all(is_delete).is_empty(), "a forgotten session need not be ended");
}

/// UPC-17: servers built after the SDKs' examples answer 400 in place of 404, and name no session.
#[tokio::test]
async fn a_400_that_says_so_is_a_forgotten_session_and_no_other_is() {
    for (words, code, expected, calls) in [
        ("Bad Request: No valid session ID provided", -32000, "returned {}", 2),
        ("Session not found", -32000, "returned {}", 2),
        ("Session not found", -32602, "lost UpstreamHttpStatus Unknown", 1),
        ("Bad Request: no such tool", -32000, "lost UpstreamHttpStatus Unknown", 1),
        // Python's mcp up to 1.22, in plain text.
        ("Bad Request: No valid session ID provided", 0, "returned {}", 2),
        ("Bad Request: no such tool", 0, "lost UpstreamHttpStatus Unknown", 1),
    ] {
        let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": code, "message": words}});
        let server = ScriptedServer::answering(move |seen| {
            if seen.header("mcp-session-id") != Some("s-1") {
                return answer(seen, &json!({}));
            }
            match code {
                0 => refusal(400, None, words),
                _ => refusal(400, Some("application/json"), error.to_string()),
            }
        })
        .await;
        let upstream = upstream(&server.url());
        assert_eq!(lines(&mut begin(&upstream).await).await, [expected], "{words} {code}");
        assert_eq!(server.world.all(SeenRequest::is_call).len(), calls, "{words} {code}");
    }
}

#[tokio::test]
async fn a_held_call_outlives_its_session_and_is_not_sent_again() {
    let held: Arc<Mutex<Option<(BodySender, SeenRequest)>>> = Arc::default();
    let hold = Arc::clone(&held);
    let server = ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let hold = Arc::clone(&hold);
        async move {
            let is_first = world.all(SeenRequest::is_call).len() == 1;
            match (seen.is_call(), seen.header("mcp-session-id")) {
                (true, Some("s-1")) if is_first => {
                    let (events, reply) = BodySender::open();
                    *hold.lock().await = Some((events, seen));
                    Some(reply)
                }
                (true, Some("s-1")) => Some(status(404)),
                _ => None,
            }
        }
    })
    .await;
    let upstream = upstream(&server.url());
    let mut first = begin(&upstream).await;
    server.world.first(SeenRequest::is_call).await;
    assert_eq!(lines(&mut begin(&upstream).await).await, ["returned {}"]);
    let (events, seen) = held.lock().await.take().unwrap();
    events.result(&seen, &json!({"held": true}));
    assert_eq!(lines(&mut first).await, ["returned {\"held\":true}"], "F38");
    assert_eq!(server.world.all(|call| call.id() == seen.id()).len(), 1);
}

/// Begins one call at a server that answers `initialize` in this way.
async fn check_handshake(
    name: &str,
    answer: impl Fn(&SeenRequest) -> ScriptedReply + Send + Sync + 'static,
    expected: &str,
) {
    let server = ScriptedServer::slow(move |seen, _| {
        let answer = is_initialize(&seen).then(|| answer(&seen));
        async move { answer }
    })
    .await;
    let begun = try_begin(&upstream(&server.url()), call(&json!({})), context()).await;
    assert_eq!(refused(begun), expected, "{name}");
    assert!(server.world.all(SeenRequest::is_call).is_empty(), "{name}: nothing was sent");
}

#[tokio::test]
async fn a_handshake_that_fails_sends_no_call() {
    let with_session = |id: Vec<u8>| {
        move |seen: &SeenRequest| {
            let mut reply = answer(seen, &json!({"protocolVersion": "2025-11-25", "capabilities": {}}));
            reply.headers_mut().insert("mcp-session-id", http::HeaderValue::from_bytes(&id).unwrap());
            reply
        }
    };
    check_handshake("U39 space", with_session(b"a b".to_vec()), "UpstreamMalformed No").await;
    check_handshake("U39 not ASCII", with_session(vec![b'a', 0xe9]), "UpstreamMalformed No").await;
    check_handshake("U39 length", with_session(vec![b'a'; 1025]), "UpstreamMalformed No").await;
    let version = |version: &'static str| {
        move |seen: &SeenRequest| answer(seen, &json!({"protocolVersion": version, "capabilities": {}}))
    };
    check_handshake("2026-07-28", version("2026-07-28"), "UpstreamRefused No").await;
    check_handshake("unknown version", version("2031-01-01"), "UpstreamMalformed No").await;
    check_handshake("no members", |seen| answer(seen, &json!({})), "UpstreamMalformed No").await;
    check_handshake("U01", |_| status(500), "UpstreamHttpStatus No").await;
    check_handshake("U03", |_| status(401), "UpstreamAuth No").await;
    let stateless_only = |seen: &SeenRequest| {
        let error = json!({"code": -32022, "message": "unsupported", "data": {"supported": ["2026-07-28"]}});
        let body = json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error});
        let mut reply = json_text(body.to_string());
        *reply.status_mut() = StatusCode::BAD_REQUEST;
        reply
    };
    check_handshake("stateless only", stateless_only, "refused -32022 unsupported").await;
}

#[tokio::test]
async fn a_server_that_refuses_newer_versions_is_asked_for_its_own() {
    let server = ScriptedServer::slow(|seen, _| async move {
        if !is_initialize(&seen) || seen.body["params"]["protocolVersion"] == "2025-06-18" {
            return None;
        }
        let error = json!({"code": -32602, "message": "unsupported", "data": {"supported": ["2025-06-18"]}});
        let (events, reply) = BodySender::open();
        events.message(&json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}));
        Some(reply)
    })
    .await;
    let upstream = upstream(&server.url());
    assert_eq!(in_time(upstream.handshake(&context())).await.unwrap().version, ProtocolVersion::V2025_06_18);
    let other = CallContext { principal: Principal::anonymous(), ..context() };
    in_time(upstream.handshake(&other)).await.unwrap();
    assert_eq!(server.world.all(is_initialize).len(), 3, "UPC-22: the agreement is remembered");
}

#[tokio::test]
async fn a_fixed_version_is_asked_for() {
    let server = ScriptedServer::answering(|seen| answer(seen, &json!({}))).await;
    let upstream = upstream_of(HttpUpstreamSettings {
        protocol: Some(ProtocolVersion::V2025_03_26),
        ..HttpUpstreamSettings::new(Arc::from("fixed"), server.url().clone())
    });
    assert_eq!(in_time(upstream.handshake(&context())).await.unwrap().version, ProtocolVersion::V2025_03_26);
}

#[tokio::test]
async fn an_upstream_that_is_down_is_unreachable_and_the_call_was_not_run() {
    let url = format!("http://{}/mcp", reserved_address()).parse().unwrap();
    let begun = try_begin(&upstream(&url), call(&json!({})), context()).await;
    assert_eq!(refused(begun), "UpstreamUnreachable No", "F26");
}

#[tokio::test]
async fn a_server_that_goes_away_after_the_handshake_is_unreachable() {
    let server = ScriptedServer::answering(|seen| answer(seen, &json!({}))).await;
    let upstream = upstream(&server.url());
    lines(&mut begin(&upstream).await).await;
    drop(server);
    let begun = in_time(async {
        loop {
            // Until the old connection is seen to be closed, a call may still be lost on it.
            match upstream.begin(call(&json!({})), context()).await {
                Ok(mut exchange) => drop(exchange.next().await),
                Err(error) => return Err(error),
            }
        }
    })
    .await;
    assert_eq!(refused(begun), "UpstreamUnreachable No", "F26");
}

/// A server that holds its calls and its GET stream open, and the sending end of the latter.
async fn listening() -> (ScriptedServer, BodySender) {
    let (events, reply) = BodySender::open();
    let reply = Arc::new(Mutex::new(Some(reply)));
    let server = ScriptedServer::slow(move |seen, _| {
        let reply = Arc::clone(&reply);
        async move {
            if seen.is_call() {
                std::future::pending::<()>().await;
            }
            if is_get(&seen) { reply.lock().await.take() } else { None }
        }
    })
    .await;
    (server, events)
}

fn question(id: u32) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {}})
}

async fn answer_to(world: &ScriptedState, id: u32) -> Value {
    world.first(|seen| seen.body.get("method").is_none() && seen.body["id"] == id).await.body
}

#[tokio::test]
async fn a_question_on_the_sessions_stream_goes_to_the_only_call_or_to_none() {
    let (server, events) = listening().await;
    let upstream = upstream(&server.url());
    let mut first = begin(&upstream).await;
    server.world.first(SeenRequest::is_call).await;
    events.message(&question(1));
    let ExchangeEvent::Asked { ask, .. } = next(&mut first).await else { panic!("T-20: the only call is asked") };
    in_time(first.answer(&ask, Answer::Result(Payload::of(&json!({"action": "decline"}))))).await.unwrap();
    assert_eq!(answer_to(&server.world, 1).await["result"]["action"], "decline");

    let second = begin(&upstream).await;
    server.world.nth(1, SeenRequest::is_call).await;
    events.message(&question(2));
    assert_eq!(answer_to(&server.world, 2).await["error"]["code"], -32603, "T-20: its call is unknown");

    drop(second);
    events.message(&question(3));
    assert_eq!(line(&next(&mut first).await), "asked 3 elicitation/create {}", "a dropped call leaves nothing behind");

    drop(first);
    events.message(&question(4));
    assert_eq!(answer_to(&server.world, 4).await["error"]["code"], -32603);
    events.message(&json!({"jsonrpc": "2.0", "id": 5, "method": "ping"}));
    assert_eq!(answer_to(&server.world, 5).await["result"], json!({}));
}

#[tokio::test]
async fn a_message_goes_to_the_call_or_task_that_it_names() {
    let (server, events) = listening().await;
    let upstream = upstream(&server.url());
    let mut news = in_time(upstream.notifications(&context())).await.unwrap();
    let mut plain = begin(&upstream).await;
    let other = begin(&upstream).await;
    let seen = server.world.first(SeenRequest::is_call).await;
    server.world.nth(1, SeenRequest::is_call).await;
    let related = json!({"_meta": {"io.modelcontextprotocol/related-task": {"taskId": "t-1"}}});
    let note = |method: &str, params: Value| json!({"jsonrpc": "2.0", "method": method, "params": params});
    events.raw("data: {oops\n\n");
    events.message(&json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": {}}));
    events.message(&note("notifications/message", json!({"level": "info"})));
    events.message(&note("notifications/progress", json!({"progressToken": seen.token(), "progress": 1})));
    let mut of_task = question(1);
    of_task["params"] = related;
    events.message(&of_task);
    assert_eq!(answer_to(&server.world, 1).await["error"]["code"], -32603, "of a task that no call has");
    drop(other);
    events.message(&question(2));
    events.message(&note("notifications/cancelled", json!({"requestId": 2})));
    events.message(&json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
    events.message(&note("notifications/resources/updated", json!({"uri": "a:b"})));

    assert_eq!(line(&next(&mut plain).await), "progress 1 of ? -", "by token, and no answer comes here");
    assert!(line(&next(&mut plain).await).starts_with("asked 2 "), "the only call");
    assert_eq!(line(&next(&mut plain).await), "withdrawn 2");
    let (method, params) = in_time(news.recv()).await.unwrap();
    assert_eq!((&*method, params), ("notifications/tools/list_changed", None));
    let (method, params) = in_time(news.recv()).await.unwrap();
    assert_eq!((&*method, params.unwrap().as_str()), ("notifications/resources/updated", "{\"uri\":\"a:b\"}"));
}

/// U54: notifications wait in a queue until the cached lists read them.
#[tokio::test]
async fn u54_of_a_large_notification_its_resource_alone_is_kept() {
    let (server, events) = listening().await;
    let upstream = upstream(&server.url());
    let mut news = in_time(upstream.notifications(&context())).await.unwrap();
    let large = "x".repeat(1 << 20);
    for params in [json!({"uri": "a:b", "more": large}), json!({"more": large}), json!({"uri": large})] {
        let method = "notifications/resources/updated";
        events.message(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }
    let mut kept = Vec::new();
    for _ in 0..3 {
        let (_, params) = in_time(news.recv()).await.unwrap();
        kept.push(params.map(|params| params.as_str().to_owned()));
    }
    assert_eq!(kept, [Some("{\"uri\":\"a:b\"}".to_owned()), None, None]);
    drop(server);
}

/// B190: the beginning of an event takes bytes of its client's answers.
#[tokio::test]
async fn b190_an_event_that_begins_on_a_sessions_stream_is_counted() {
    let (server, events) = listening().await;
    let (upstream, limits) = upstream_of_4_mib(settings(&server.url()));
    let news = in_time(upstream.notifications(&context())).await.unwrap();
    events.raw(format!("data: {}", "x".repeat(3 << 20)));
    until_some_are_held(&limits).await;
    drop((server, news));
}

/// U53: the first call waits for it, and the others find that it failed.
#[tokio::test]
async fn u53_calls_do_not_queue_for_a_log_level_that_is_never_accepted() {
    const CALLS: usize = 40;
    let server = ScriptedServer::slow(|seen, _| async move {
        if seen.rpc() == "logging/setLevel" {
            std::future::pending::<()>().await;
        }
        None
    })
    .await;
    *server.world.initialize_result.lock() = json!({"capabilities": {"logging": {}, "tools": {}}});
    let upstream = upstream(&server.url());
    let context = CallContext { log_level: Some(Arc::from("info")), ..context() };
    let calls = (0..CALLS).map(|_| try_begin(&upstream, call(&json!({})), context.clone()));
    let calls = join_all(calls).await;
    assert!(calls.iter().all(Result::is_ok));
    server.world.nth(CALLS - 1, SeenRequest::is_call).await;
    assert_eq!(server.world.count("logging/setLevel"), 1);
}

/// B274: also if the server refuses the new stream at first, because it still counts the ended one.
#[tokio::test]
async fn a_sessions_stream_that_ends_is_opened_again_after_its_last_event() {
    let server = ScriptedServer::slow(|seen, world: Arc<ScriptedState>| async move {
        if !is_get(&seen) {
            return None;
        }
        let (events, reply) = BodySender::open();
        match world.all(is_get).len() {
            1 => events.numbered("g-1", &json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})),
            2 => return Some(status(409)),
            _ => events.stay_open(),
        }
        Some(reply)
    })
    .await;
    let upstream = upstream(&server.url());
    in_time(upstream.handshake(&context())).await.unwrap();
    let first = server.world.first(is_get).await;
    assert_eq!((first.header("last-event-id"), first.header("mcp-session-id")), (None, Some("s-1")));
    for again in [1, 2] {
        let again = server.world.nth(again, is_get).await;
        assert_eq!(again.header("last-event-id"), Some("g-1"));
    }
}

/// A server would send the same event after each resumption.
#[tokio::test]
async fn a_sessions_stream_is_not_resumed_before_an_event_that_is_too_large() {
    let server = ScriptedServer::slow(|seen, world: Arc<ScriptedState>| async move {
        if !is_get(&seen) {
            return None;
        }
        let (events, reply) = BodySender::open();
        if world.all(is_get).len() == 1 {
            events.numbered("g-1", &json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
            let params = json!({"level": "info", "data": "x".repeat(5 << 20)});
            events.message(&json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params}));
        }
        events.stay_open();
        Some(reply)
    })
    .await;
    let upstream = upstream(&server.url());
    in_time(upstream.handshake(&context())).await.unwrap();
    assert_eq!(server.world.nth(1, is_get).await.header("last-event-id"), None);
}

#[tokio::test]
async fn closing_ends_idle_sessions_and_leaves_those_with_calls() {
    let (server, _events) = listening().await;
    let upstream = upstream(&server.url());
    let _held = begin(&upstream).await;
    let idle = CallContext { principal: Principal::anonymous(), ..context() };
    in_time(upstream.handshake(&idle)).await.unwrap();
    in_time(upstream.close()).await;
    let ended: Vec<_> =
        server.world.all(is_delete).iter().map(|seen| seen.header("mcp-session-id").unwrap().to_owned()).collect();
    assert_eq!(ended, ["s-2"]);
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_delay_the_handshake_of_others() {
    let is_open = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&is_open);
    let server = ScriptedServer::slow(move |seen, world: Arc<ScriptedState>| {
        let gate = Arc::clone(&gate);
        async move {
            if is_initialize(&seen) {
                world.first(|seen| seen.rpc() == "release").await;
                gate.store(true, Ordering::SeqCst);
                return Some(polite(&seen, &world));
            }
            None
        }
    })
    .await;
    let upstream = upstream(&server.url());
    tokio::select! {
        _ = upstream.begin(call(&json!({})), context()) => panic!("the handshake is held back"),
        _ = server.world.first(is_initialize) => (),
    }
    let release = async {
        let http = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
        let request = http::Request::post(server.url().as_str());
        let body = http_body_util::Full::new(bytes::Bytes::from(r#"{"method":"release"}"#));
        http.request(request.body(body).unwrap()).await.unwrap();
    };
    let context = context();
    let (handshake, ()) = in_time(async { tokio::join!(upstream.handshake(&context), release) }).await;
    assert_eq!(handshake.unwrap().version, ProtocolVersion::V2025_11_25);
    assert!(is_open.load(Ordering::SeqCst));
    assert_eq!(server.world.all(is_initialize).len(), 1, "the second caller takes the first one's handshake");
}

#[tokio::test]
async fn the_lowest_requested_log_level_is_set_once() {
    let server = ScriptedServer::slow(|seen, _| async move {
        let handshake = json!({"protocolVersion": "2025-11-25", "capabilities": {"logging": {}}});
        is_initialize(&seen).then(|| answer(&seen, &handshake))
    })
    .await;
    let upstream = upstream(&server.url());
    for level in [Some("warning"), Some("error"), None, Some("loud"), Some("debug"), Some("warning")] {
        let context = CallContext { log_level: level.map(Arc::from), ..context() };
        lines(&mut try_begin(&upstream, call(&json!({})), context).await.unwrap()).await;
    }
    let levels: Vec<_> = server.world.all(|seen| seen.rpc() == "logging/setLevel");
    let levels: Vec<_> = levels.iter().map(|seen| seen.body["params"]["level"].as_str().unwrap()).collect();
    assert_eq!(levels, ["warning", "debug"]);
}

/// The bound on sessions is 1,024: a principal that declares ever other capabilities has three quarters of them at most.
#[tokio::test]
async fn one_principal_with_many_capabilities_leaves_sessions_to_others() {
    let server = ScriptedServer::answering(|seen| answer(seen, &json!({}))).await;
    let upstream = upstream(&server.url());
    let of = |who: &str, number: u32| {
        let capabilities = Payload::of(&json!({ "experimental": { "number": { "is": number } } }));
        CallContext { principal: Principal::new(who), client: ClientFacts { capabilities }, ..context() }
    };
    let open = async |who: &str, number: u32| in_time(upstream.handshake(&of(who, number))).await;
    // Each is listened to, as the gateway does that keeps a list of tools.
    let mut news = Vec::new();
    for number in 0..768 {
        news.push(in_time(upstream.notifications(&of("key:ada", number))).await.expect("it has its share"));
    }
    let more = open("key:ada", 768).await.err();
    let full = |error: &BeginError| matches!(error, BeginError::Gateway(fault) if fault.reason == Reason::QueueFull);
    assert!(more.as_ref().is_some_and(full), "{more:?}");
    news.push(in_time(upstream.notifications(&of("key:bob", 0))).await.expect("there is one for another"));
    // A third one fills the remaining sessions, and a fourth gets one in which the first only listens.
    for number in 0..255 {
        news.push(in_time(upstream.notifications(&of("key:carol", number))).await.expect("there is room"));
    }
    let first = of("key:ada", 0);
    let _held = lines(&mut try_begin(&upstream, call(&json!({})), first).await.unwrap()).await;
    open("key:dave", 0).await.expect("a session with a listener alone is closed");
}
