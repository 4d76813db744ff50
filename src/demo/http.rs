//! Serves the demo over streamable HTTP with sessions.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Frame, Incoming as Body};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::DemoState;
use super::rpc::{self, Incoming};
use super::session::{DemoCall, DemoClientCapabilities, DemoMessages, DemoSession, DemoSessions};
use super::tools::{self, DemoCaller};
use crate::face::http::{FaceResponse, ResponseBody, empty_body, full_body};
use crate::server::is_loopback;
use crate::wire::framing::BodyPart;
use crate::wire::{ProtocolVersion, RpcError, method, rpc_error};

pub(super) const PATH: &str = "/mcp";

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const BODY_BYTES_MAX: usize = 4 << 20;
const BODY_READ_MAX: Duration = Duration::from_secs(30);
const EVENTS_MAX: usize = 64;
const BATCH_MAX: usize = 64;
const COMMENT_PERIOD: Duration = Duration::from_secs(15);
/// The supported versions, the preferred one last.
const VERSIONS: [ProtocolVersion; 2] = [ProtocolVersion::V2025_03_26, ProtocolVersion::V2025_06_18];

type DemoRefusal = Box<FaceResponse>;

/// Answers one HTTP request. Never fails: an error is a response, too.
pub(super) async fn answer(shared: &Arc<DemoState>, request: Request<Body>) -> FaceResponse {
    if request.uri().path() != PATH {
        return plain(StatusCode::NOT_FOUND);
    }
    if let Err(refusal) = guard(shared, &request) {
        return *refusal;
    }
    let answered = match *request.method() {
        Method::POST => post(shared, request).await,
        Method::GET => get(shared, request.headers()),
        Method::DELETE => delete(shared, request.headers()),
        _ => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
            Ok(response)
        }
    };
    answered.unwrap_or_else(|refusal| *refusal)
}

/// Refuses a foreign Origin always, and on loopback also a foreign Host, which shows DNS rebinding.
fn guard(shared: &DemoState, request: &Request<Body>) -> Result<(), DemoRefusal> {
    let origin = request.headers().get(ORIGIN).map(|origin| url_host(origin.to_str().unwrap_or_default()));
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().host().map(str::to_owned).or_else(|| url_host(&format!("http://{}", host?)));
    let host_is_ours = !shared.local_addr.ip().is_loopback() || host.as_deref().is_none_or(is_loopback);
    let origin_is_ours = origin.is_none_or(|origin| origin.as_deref().is_some_and(is_loopback));
    if host_is_ours && origin_is_ours { Ok(()) } else { Err(Box::new(plain(StatusCode::FORBIDDEN))) }
}

fn url_host(text: &str) -> Option<String> {
    url::Url::parse(text).ok()?.host_str().map(str::to_owned)
}

async fn post(shared: &Arc<DemoState>, request: Request<Body>) -> Result<FaceResponse, DemoRefusal> {
    let (head, body) = request.into_parts();
    if !accepts(&head.headers, &["application/json", "text/event-stream"]) {
        return Err(Box::new(plain(StatusCode::NOT_ACCEPTABLE)));
    }
    if !header(&head.headers, &CONTENT_TYPE).is_some_and(|kind| kind.starts_with("application/json")) {
        return Err(Box::new(plain(StatusCode::UNSUPPORTED_MEDIA_TYPE)));
    }
    let body = match tokio::time::timeout(BODY_READ_MAX, Limited::new(body, BODY_BYTES_MAX).collect()).await {
        Err(_) => return Err(Box::new(plain(StatusCode::REQUEST_TIMEOUT))),
        Ok(Err(_)) => return Err(Box::new(plain(StatusCode::PAYLOAD_TOO_LARGE))),
        Ok(Ok(body)) => body.to_bytes(),
    };
    let message = serde_json::from_slice(&body).map_err(|_| bad(rpc_error::PARSE_ERROR, "the body is not JSON"))?;
    if let Value::Array(messages) = message {
        let session = session(shared, &head.headers)?;
        return batch(shared, &session, messages);
    }
    let not_rpc = || bad(rpc_error::INVALID_REQUEST, "the body is not a JSON-RPC message");
    match rpc::read(message).ok_or_else(not_rpc)? {
        Incoming::Request(request) if request.method == method::INITIALIZE => initialize(shared, &request),
        // Clients that probe for newer versions have no session yet, and expect that the method is unknown.
        Incoming::Request(request) if !is_known(&request.method) => {
            Ok(json_response(StatusCode::OK, &rpc::answer(&request.id, Err(unknown(&request.method)))))
        }
        Incoming::Request(request) => {
            let session = session(shared, &head.headers)?;
            let (events, answers) = mpsc::channel(EVENTS_MAX);
            start(&shared.tracker, &session, request, events);
            Ok(answer_or_stream(answers, &session).await)
        }
        other @ (Incoming::Notification { .. } | Incoming::Answer { .. }) => {
            take(&*session(shared, &head.headers)?, other);
            Ok(plain(StatusCode::ACCEPTED))
        }
    }
}

fn initialize(shared: &DemoState, request: &rpc::DemoRequest) -> Result<FaceResponse, DemoRefusal> {
    let Some((session, result)) = open(&shared.sessions, request) else {
        return Err(Box::new(plain(StatusCode::SERVICE_UNAVAILABLE)));
    };
    let mut response = json_response(StatusCode::OK, &rpc::answer(&request.id, Ok(result)));
    let id = HeaderValue::from_str(&session.id).expect("a session id is hex digits");
    response.headers_mut().insert(SESSION, id);
    Ok(response)
}

/// Opens a session, with the result for its client. `None` if there are too many.
pub(super) fn open(sessions: &DemoSessions, request: &rpc::DemoRequest) -> Option<(Arc<DemoSession>, Value)> {
    let wanted = request.params["protocolVersion"].as_str().and_then(ProtocolVersion::parse);
    let version = wanted.filter(|version| VERSIONS.contains(version)).unwrap_or(ProtocolVersion::V2025_06_18);
    let capabilities = &request.params["capabilities"];
    let abilities = DemoClientCapabilities {
        elicitation: capabilities["elicitation"].is_object(),
        sampling: capabilities["sampling"].is_object(),
    };
    let session = sessions.open(version, abilities)?;
    let result = json!({
        "protocolVersion": version.as_str(),
        "capabilities": { "tools": {} },
        "serverInfo": { "name": "taskgate-demo", "version": env!("CARGO_PKG_VERSION") },
        "instructions": "Tools that are fast, slow, curious or broken: a playground for task gateways.",
    });
    Some((session, result))
}

/// A batch, which only 2025-03-26 has. Each response is sent on a stream as soon as it is ready.
fn batch(
    shared: &Arc<DemoState>,
    session: &Arc<DemoSession>,
    messages: Vec<Value>,
) -> Result<FaceResponse, DemoRefusal> {
    if !session.version.traits().has_batches || messages.is_empty() || messages.len() > BATCH_MAX {
        return Err(bad(
            rpc_error::INVALID_REQUEST,
            "the batch is empty, too large or of another version than 2025-03-26",
        ));
    }
    let messages: Option<Vec<_>> = messages.into_iter().map(rpc::read).collect();
    let messages =
        messages.ok_or_else(|| bad(rpc_error::INVALID_REQUEST, "the batch has an element that is not a message"))?;
    let (events, answers) = mpsc::channel(EVENTS_MAX);
    let mut asked = false;
    for message in messages {
        match message {
            Incoming::Request(request) => {
                asked = true;
                start(&shared.tracker, session, request, events.clone());
            }
            other @ (Incoming::Notification { .. } | Incoming::Answer { .. }) => take(session, other),
        }
    }
    Ok(if asked { event_stream(stream::empty(), answers, session) } else { plain(StatusCode::ACCEPTED) })
}

pub(super) fn take(session: &DemoSession, message: Incoming) {
    match message {
        Incoming::Notification { method, params } if method == method::CANCELLED => {
            session.cancel(&params["requestId"]);
        }
        Incoming::Answer { id, outcome } => session.answered(&id, outcome),
        Incoming::Notification { .. } | Incoming::Request(_) => (),
    }
}

/// Starts a request. Its messages go to `events`, its response last; none if it is cancelled. It is registered before this
/// returns, so that a cancellation finds it. A client that disconnects does not cancel it in these versions.
pub(super) fn start(
    tracker: &TaskTracker,
    session: &Arc<DemoSession>,
    request: rpc::DemoRequest,
    events: DemoMessages,
) {
    let run = session.begin(&request.id);
    tracker.spawn(async move {
        let outcome = match run {
            Ok(run) => perform(&run, request.method, request.params, &events).await,
            Err(why) => Some(Err(RpcError::new(rpc_error::INVALID_REQUEST, why.to_string()))),
        };
        if let Some(outcome) = outcome {
            // Fails if the client has disconnected and so needs no response.
            let _ = events.send(rpc::answer(&request.id, outcome)).await;
        }
    });
}

/// `None` if the run was cancelled.
async fn perform(
    run: &DemoCall,
    method: String,
    params: Value,
    events: &DemoMessages,
) -> Option<Result<Value, RpcError>> {
    match method.as_str() {
        method::PING => Some(Ok(json!({}))),
        method::TOOLS_LIST => Some(Ok(tools::list())),
        method::TOOLS_CALL => {
            let progress_token = params["_meta"].get("progressToken").cloned();
            let caller = DemoCaller { session: Arc::clone(&run.session), events: events.clone(), progress_token };
            run.cancel.run_until_cancelled(tools::call(params, &caller)).await
        }
        other => Some(Err(unknown(other))),
    }
}

pub(super) fn is_known(method: &str) -> bool {
    [method::INITIALIZE, method::PING, method::TOOLS_LIST, method::TOOLS_CALL].contains(&method)
}

pub(super) fn unknown(method: &str) -> RpcError {
    RpcError::new(rpc_error::METHOD_NOT_FOUND, format!("unknown method: {method}"))
}

/// JSON if the first message is the response, otherwise (progress, a question, the end) a stream.
async fn answer_or_stream(mut answers: mpsc::Receiver<Value>, session: &DemoSession) -> FaceResponse {
    let first = answers.recv().await;
    match first {
        Some(message) if rpc::is_answer(&message) => json_response(StatusCode::OK, &message),
        first => event_stream(stream::iter(first), answers, session),
    }
}

fn get(shared: &DemoState, headers: &HeaderMap) -> Result<FaceResponse, DemoRefusal> {
    if !accepts(headers, &["text/event-stream"]) {
        return Err(Box::new(plain(StatusCode::NOT_ACCEPTABLE)));
    }
    let session = session(shared, headers)?;
    let (events, stream) = mpsc::channel(1);
    session.listen(events);
    Ok(event_stream(stream::empty(), stream, &session))
}

fn delete(shared: &DemoState, headers: &HeaderMap) -> Result<FaceResponse, DemoRefusal> {
    shared.sessions.close(&session(shared, headers)?.id);
    Ok(plain(StatusCode::NO_CONTENT))
}

/// The session of a request: 400 without an id, 404 for an unknown one.
fn session(shared: &DemoState, headers: &HeaderMap) -> Result<Arc<DemoSession>, DemoRefusal> {
    let id = header(headers, &SESSION).ok_or_else(|| bad(rpc_error::INVALID_REQUEST, "Mcp-Session-Id is missing"))?;
    let version = header(headers, &VERSION).map(ProtocolVersion::parse);
    if version.is_some_and(|version| version.is_none_or(|version| !VERSIONS.contains(&version))) {
        return Err(bad(rpc_error::INVALID_REQUEST, "MCP-Protocol-Version names a version that is not spoken here"));
    }
    let gone = RpcError::new(rpc_error::INVALID_REQUEST, "this session is unknown or has ended");
    let gone = || Box::new(json_response(StatusCode::NOT_FOUND, &rpc::refusal(&gone)));
    shared.sessions.find(id).ok_or_else(gone)
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Whether the client accepts one of `kinds`; without `Accept` it accepts all.
fn accepts(headers: &HeaderMap, kinds: &[&str]) -> bool {
    let all: Vec<_> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    all.is_empty() || all.iter().any(|value| value.contains("*/*") || kinds.iter().any(|kind| value.contains(kind)))
}

fn plain(status: StatusCode) -> FaceResponse {
    let mut response = FaceResponse::new(empty_body());
    *response.status_mut() = status;
    response
}

fn bad(code: i64, message: &str) -> DemoRefusal {
    Box::new(json_response(StatusCode::BAD_REQUEST, &rpc::refusal(&RpcError::new(code, message))))
}

fn json_response(status: StatusCode, message: &Value) -> FaceResponse {
    let mut response = FaceResponse::new(full_body(Bytes::from(message.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A stream of `first`, then `rest` until its senders are dropped or the session ends.
fn event_stream<S>(first: S, rest: mpsc::Receiver<Value>, session: &DemoSession) -> FaceResponse
where
    S: Stream<Item = Value> + Send + 'static,
{
    let rest = with_comments(rest, session.ended.clone());
    let frames = first.map(|message| event(&message)).chain(rest).map(|part| Ok(Frame::data(part)));
    let mut response = FaceResponse::new(ResponseBody::new(StreamBody::new(frames)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn with_comments(events: mpsc::Receiver<Value>, ended: CancellationToken) -> impl Stream<Item = BodyPart> + Send {
    let comments = interval_at(Instant::now() + COMMENT_PERIOD, COMMENT_PERIOD);
    stream::unfold((events, ended, comments), |(mut events, ended, mut comments)| async move {
        let part = tokio::select! {
            biased;
            message = events.recv() => event(&message?),
            () = ended.cancelled() => return None,
            _ = comments.tick() => BodyPart::comment(),
        };
        Some((part, (events, ended, comments)))
    })
}

fn event(message: &Value) -> BodyPart {
    BodyPart::message(Bytes::from(message.to_string()))
}
