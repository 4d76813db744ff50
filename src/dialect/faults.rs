//! Gives every error its JSON-RPC code and its public text; no other file does. A refusal is a [`RequestError`] (the
//! request) or a [`GatewayFault`] (its handling). Texts quote no client or upstream but for names of methods, headers,
//! members and tools; clients' names are bounded and printable.

use std::borrow::Cow;

use serde_json::json;

use crate::task::{Executed, Failure, GatewayFault, ProcessExit, RateRefusal, Reason};
use crate::wire::{Object, Payload, ProtocolVersion, RpcError, method, one_line, rpc_error};

const CAPABILITIES_NAMED_MAX: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    NotJson(String),
    /// JSON, but no JSON-RPC request that is accepted here.
    NotARequest(Cow<'static, str>),
    /// It names a session of another client, or one that has ended. Hosts initialise again on this code.
    UnknownSession,
    /// A JSON document that is unsafe to forward; `reason` is its machine-readable name.
    UnsafeDocument {
        what: String,
        reason: &'static str,
    },
    /// `_meta` lacks a member that a stateless request requires.
    InvalidMetadata(Cow<'static, str>),
    /// A wrong parameter of a known method.
    Params(Cow<'static, str>),
    UnknownMethod(Cow<'static, str>),
    /// The requested name, sanitised; see [`RequestError::unknown_tool`].
    UnknownTool(String),
    UnknownTask,
    /// A `requestState` that was issued for another request or not at all, or has expired (B135).
    InvalidRequestState,
    /// The idempotency key belongs to another call (B135).
    IdempotencyMismatch,
    /// The tool runs only as a task, and the client asked for none (L25-05).
    NeedsTask,
    /// The tool never runs as a task, and the client asked for one (L25-04).
    TakesNoTask,
    Header(Cow<'static, str>),
    /// The request needs capabilities that its client did not declare: a `ClientCapabilities` object.
    Capability(Payload),
    Version {
        requested: String,
    },
}

impl RequestError {
    pub const fn params(what: &'static str) -> Self {
        Self::Params(Cow::Borrowed(what))
    }

    pub const fn not_a_request(what: &'static str) -> Self {
        Self::NotARequest(Cow::Borrowed(what))
    }

    pub const fn header(what: &'static str) -> Self {
        Self::Header(Cow::Borrowed(what))
    }

    pub fn unknown_tool(params: Option<&Object>) -> Self {
        Self::UnknownTool(
            params.and_then(|params| params.get_str("name")).map(|tool| one_line::name(&tool)).unwrap_or_default(),
        )
    }

    /// 2026-07-28's draft name has another code for missing capabilities (T-80).
    pub fn to_error(&self, version: ProtocolVersion) -> RpcError {
        match self {
            Self::NotJson(what) => RpcError::new(rpc_error::PARSE_ERROR, format!("Parse error: {what}")),
            Self::NotARequest(what) => RpcError::new(rpc_error::INVALID_REQUEST, format!("Invalid request: {what}")),
            Self::UnknownSession => RpcError::new(
                rpc_error::SESSION_NOT_FOUND,
                "Session not found: it is unknown or has ended; begin with initialize",
            ),
            Self::UnsafeDocument { what, reason } => {
                RpcError::new(rpc_error::INVALID_REQUEST, format!("Invalid request: {what}"))
                    .with_data(&json!({ "reason": reason }))
            }
            Self::InvalidMetadata(what) | Self::Params(what) => {
                RpcError::new(rpc_error::INVALID_PARAMS, format!("Invalid params: {what}"))
            }
            Self::UnknownMethod(method) => {
                // Task methods differ between versions.
                let elsewhere = match &**method {
                    _ if !version.is_stateless() => "",
                    method::TASKS_RESULT => "; in 2026-07-28 `tasks/get` has the result",
                    method::TASKS_LIST => "; 2026-07-28 has no list of tasks",
                    _ => "",
                };
                let words = format!("Method not found: {method}{elsewhere}");
                let error = RpcError::new(rpc_error::METHOD_NOT_FOUND, words);
                // The error to `initialize` lists the stateless versions (B100).
                if method == method::INITIALIZE {
                    error.with_data(&json!({ "supported": ProtocolVersion::advertised_stateless() }))
                } else {
                    error
                }
            }
            Self::UnknownTool(name) if name.is_empty() => RpcError::new(rpc_error::INVALID_PARAMS, "Unknown tool"),
            Self::UnknownTool(name) => RpcError::new(rpc_error::INVALID_PARAMS, format!("Unknown tool: {name}")),
            Self::UnknownTask => RpcError::new(rpc_error::INVALID_PARAMS, "Task not found"),
            Self::InvalidRequestState => {
                RpcError::new(rpc_error::INVALID_PARAMS, "Invalid params: requestState is not valid here")
                    .with_data(&json!({ "reason": "invalid_request_state" }))
            }
            Self::IdempotencyMismatch => {
                RpcError::new(rpc_error::INVALID_PARAMS, "Invalid params: the idempotency key belongs to another call")
                    .with_data(&json!({ "reason": "idempotency_mismatch" }))
            }
            Self::NeedsTask => RpcError::new(rpc_error::METHOD_NOT_FOUND, "This tool can only be called as a task"),
            Self::TakesNoTask => RpcError::new(rpc_error::METHOD_NOT_FOUND, "This tool cannot be called as a task"),
            Self::Header(what) => RpcError::new(rpc_error::HEADER_MISMATCH, format!("Header mismatch: {what}")),
            Self::Capability(required) => RpcError {
                code: version.traits().missing_capability,
                message: "Missing required client capability".to_owned(),
                data: Some(Payload::of(&RequiredCapabilities { required_capabilities: required })),
            },
            Self::Version { requested } => RpcError::new(rpc_error::UNSUPPORTED_VERSION, unsupported_version())
                .with_data(&SupportedVersions { supported: &ProtocolVersion::advertised_stateless(), requested }),
        }
    }
}

#[derive(serde::Serialize)]
struct RequiredCapabilities<'a> {
    #[serde(rename = "requiredCapabilities")]
    required_capabilities: &'a Payload,
}

/// The data lists only the stateless versions, so the text lists the session versions.
fn unsupported_version() -> String {
    let in_sessions = ProtocolVersion::ALL.into_iter().filter(|version| !version.is_stateless());
    let in_sessions: Vec<_> = in_sessions.map(ProtocolVersion::as_str).collect();
    format!(
        "Unsupported protocol version; requests without a session are served in {}, sessions (`initialize`) in {}",
        ProtocolVersion::advertised_stateless().join(", "),
        in_sessions.join(", ")
    )
}

#[derive(serde::Serialize)]
struct SupportedVersions<'a> {
    supported: &'a [&'static str],
    requested: &'a str,
}

/// The error for a fault of the gateway itself: always −32603, with machine-readable data (GW-38).
pub fn gateway_error(fault: &GatewayFault) -> RpcError {
    let words = match fault.exit {
        None => match fault.http_status {
            Some(status) => format!("{} (HTTP {status})", sentence(fault.reason)),
            // The upstream was not called.
            None if fault.reason == Reason::UpstreamAuth => CREDENTIAL_GONE.to_owned(),
            None => sentence(fault.reason).to_owned(),
        },
        Some(ProcessExit::Code(code)) => {
            format!("{} (its process ended with exit status {code})", sentence(fault.reason))
        }
        Some(ProcessExit::Signal(signal)) => {
            format!("{} (its process was ended by signal {signal})", sentence(fault.reason))
        }
    };
    let (exit_status, exit_signal) = match fault.exit {
        None => (None, None),
        Some(ProcessExit::Code(code)) => (Some(code), None),
        Some(ProcessExit::Signal(signal)) => (None, Some(signal)),
    };
    RpcError::new(rpc_error::INTERNAL_ERROR, words).with_data(&GatewayData {
        source: "gateway",
        reason: fault.reason.key(),
        executed: fault.executed.key(),
        http_status: fault.http_status,
        retry_after_ms: fault.retry_after.map(crate::task::time::millis),
        exit_status,
        exit_signal,
    })
}

/// The error for a token without a scope that the operation needs. Nothing was done.
pub fn insufficient_scope_error() -> RpcError {
    let data = json!({ "source": "gateway", "reason": "insufficient_scope", "executed": "no" });
    RpcError::new(rpc_error::INVALID_REQUEST, INSUFFICIENT_SCOPE).with_data(&data)
}

/// The error for a request over a rate limit: names the limit and its scope.
pub fn rate_error(refusal: &RateRefusal) -> RpcError {
    RpcError { message: refusal.to_string(), ..gateway_error(&refusal.fault()) }
}

/// The error for a request that is refused because buffered responses have reached their limit in bytes: names the limit.
pub fn bound_error(fault: &GatewayFault, bytes_max: usize) -> RpcError {
    let bound = bytesize::ByteSize(bytes_max as u64);
    let error = gateway_error(fault);
    RpcError { message: format!("{}: {bound}", error.message), ..error }
}

#[derive(serde::Serialize)]
struct GatewayData {
    source: &'static str,
    reason: &'static str,
    executed: &'static str,
    #[serde(rename = "httpStatus", skip_serializing_if = "Option::is_none")]
    http_status: Option<u16>,
    #[serde(rename = "retryAfterMs", skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(rename = "exitStatus", skip_serializing_if = "Option::is_none")]
    exit_status: Option<i32>,
    #[serde(rename = "exitSignal", skip_serializing_if = "Option::is_none")]
    exit_signal: Option<i32>,
}

/// The error of a failed call, for clients of 2026-07-28.
pub fn failure_error(failure: &Failure) -> RpcError {
    match failure {
        Failure::Upstream(error) => stateless_error(error),
        Failure::Gateway(fault) => gateway_error(fault),
    }
}

/// The error of a failed call, for session clients: an upstream's own is verbatim (L25-25), unless its code is one for the
/// gateway's own request (GW-29).
pub fn session_failure_error(failure: &Failure) -> RpcError {
    match failure {
        Failure::Upstream(error) => about_own_request(error, Executed::Unknown).unwrap_or_else(|| error.clone()),
        Failure::Gateway(fault) => gateway_error(fault),
    }
}

/// Replaces an error about the gateway's own request, which session clients do not know (GW-29). `refused_early`: whether
/// the call ran, for codes of a request that a stateless server did not take.
pub(super) fn about_own_request(error: &RpcError, refused_early: Executed) -> Option<RpcError> {
    let refused = |executed| gateway_error(&GatewayFault::new(Reason::UpstreamRefused, executed));
    match error.code {
        rpc_error::HEADER_MISMATCH | rpc_error::UNSUPPORTED_VERSION => Some(refused(refused_early)),
        // A tool may have begun before its server found that it cannot ask the client.
        rpc_error::MISSING_CLIENT_CAPABILITY => {
            let required = error.required_capabilities().as_ref().and_then(Object::of);
            let names: Vec<_> = required
                .iter()
                .flat_map(Object::keys)
                .take(CAPABILITIES_NAMED_MAX)
                .map(|name| one_line::name(&name))
                .collect();
            let named = if names.is_empty() { "(none are named)".to_owned() } else { names.join(", ") };
            let message = format!("The server needs capabilities that the gateway's request did not declare: {named}");
            Some(RpcError { message, ..refused(Executed::Unknown) })
        }
        _ => None,
    }
}

/// The error for a call if the upstream did not answer the gateway's own requests in time, which precede the call.
pub fn handshake_late(fault: &GatewayFault) -> RpcError {
    let message = "The upstream server did not answer the handshake or `tools/list`, which come before the call, within the \
                   call's deadline (`deadline`) and 60 s";
    RpcError { message: message.to_owned(), ..gateway_error(fault) }
}

/// The error for cancelling a settled task (L25-37).
pub fn already_settled() -> RpcError {
    RpcError::new(rpc_error::INVALID_PARAMS, "The task has ended and cannot be cancelled")
}

/// The error for a call of a caller that may not use all tools, if the upstream refused to list them.
pub fn list_refused(fault: &GatewayFault) -> RpcError {
    let message = "The upstream server refused `tools/list`, without which the gateway cannot decide whether the caller may \
                   use the tool";
    RpcError { message: message.to_owned(), ..gateway_error(fault) }
}

const CANCELLED: &str = "The task was cancelled";

/// A cancelled task's status message, which ends with its last one: progress, or the reason for which its server cancelled it.
pub fn cancelled_words(last: Option<&str>) -> Cow<'static, str> {
    match last {
        None => Cow::Borrowed(CANCELLED),
        // Another gateway behind this one wrote it.
        Some(last) if last.starts_with(CANCELLED) => Cow::Owned(last.to_owned()),
        Some(last) => Cow::Owned(format!("{CANCELLED}; last message: {last}")),
    }
}

/// The outcome of a cancelled task: an error (T-08).
pub fn was_cancelled() -> RpcError {
    RpcError::new(rpc_error::INTERNAL_ERROR, CANCELLED)
}

/// The error of a cancelled call for a client that does not know its task: the call may have run (GW-38).
pub fn call_cancelled() -> RpcError {
    let data = json!({ "source": "gateway", "reason": "cancelled", "executed": "unknown" });
    was_cancelled().with_data(&data)
}

/// The outcome of an unsettled task; the engine waits first, so no client sees it.
pub fn not_settled() -> RpcError {
    RpcError::new(rpc_error::INTERNAL_ERROR, "The task has not ended")
}

/// The error for fetching the result of a task that is not `completed` (D86-15).
pub fn not_completed(status: &str) -> RpcError {
    RpcError::new(rpc_error::INVALID_PARAMS, format!("The task has no result: its status is {status}"))
}

/// The error for deleting an unsettled task (D86-24).
pub fn not_deletable() -> RpcError {
    RpcError::new(rpc_error::INVALID_REQUEST, "The task has not ended: cancel it first")
}

/// The error for a reply that a dialect cannot write; its own methods never lead there.
pub fn not_in_flavour() -> RpcError {
    RpcError::new(rpc_error::INTERNAL_ERROR, "This flavour of tasks has no such answer")
}

pub fn unusable_answer() -> RpcError {
    RpcError::new(rpc_error::INTERNAL_ERROR, "The client's answer is not an object")
}

/// Session codes for stateless clients (T-50, MOD-30): −32002 becomes −32602; −32042 and own requests' codes −32603.
fn stateless_error(error: &RpcError) -> RpcError {
    let code = match error.code {
        rpc_error::RESOURCE_NOT_FOUND => rpc_error::INVALID_PARAMS,
        -32042 | rpc_error::UNSUPPORTED_VERSION..=rpc_error::HEADER_MISMATCH => rpc_error::INTERNAL_ERROR,
        other => other,
    };
    RpcError { code, ..error.clone() }
}

/// Adds the requested URI to the error for a missing resource (T-50). Data of the server stay as they are.
pub fn with_uri(mut error: RpcError, uri: &str) -> RpcError {
    if error.code != rpc_error::INVALID_PARAMS {
        return error;
    }
    match &error.data {
        None => return error.with_data(&json!({ "uri": uri })),
        Some(data) => {
            let unnamed = Object::of(data).filter(|data| !data.contains("uri"));
            if let Some(unnamed) = unnamed {
                error.data = Some(unnamed.edit().set("uri", Payload::text(uri)).finish());
            }
        }
    }
    error
}

const INSUFFICIENT_SCOPE: &str =
    "Forbidden: the access token lacks a scope; the WWW-Authenticate header lists all that are needed";

/// Why a later process does not resume a call that used its client's credential.
const CREDENTIAL_GONE: &str = "The gateway restarted while the tool was running, and does not store clients' credentials; log in \
                               and call again";

macro_rules! sentences {
    ($($reason:ident: $sentence:literal;)*) => {
        const fn sentence(reason: Reason) -> &'static str {
            match reason {
                $(Reason::$reason => $sentence,)*
            }
        }
    };
}

sentences! {
    UpstreamUnreachable: "The upstream server cannot be reached";
    UpstreamTls: "The upstream server does not speak TLS, or its certificate was not accepted";
    UpstreamHttpStatus: "The upstream server answered with an HTTP error";
    UpstreamAuth: "The upstream server did not accept the credentials";
    CredentialMissing:
        "The upstream server's credential is exchanged for an access token, and the request came without one: log in";
    CredentialBound:
        "The upstream server's credential is exchanged for an access token, and the request's token is bound to its \
        client's key: log in without DPoP or a certificate";
    CredentialRefused: "The authorization server refused a credential for the upstream server";
    CredentialUnavailable:
        "The gateway cannot get a credential for the upstream server now: its issuer does not answer";
    CredentialMalformed:
        "The gateway cannot get a credential for the upstream server: its issuer's answer cannot be used";
    UpstreamRedirect: "The upstream server points to another address; configure that one";
    UpstreamMalformed: "The upstream server's answer is not valid MCP";
    UpstreamClosed: "The upstream server ended the connection before it answered";
    UpstreamSessionLost: "The upstream server ended the session before it answered";
    UpstreamTimeout: "The upstream server was silent for too long";
    UpstreamRefused: "The upstream server refused the handshake";
    UpstreamCircuitOpen: "The upstream server failed too often a moment ago";
    DeadlineExceeded: "The call ran longer than its deadline (`deadline` of the tool or its server)";
    ResultTooLarge: "The result is larger than the gateway keeps (`result_bytes_max`)";
    InitializeResultTooLarge: "The upstream server's answer to `initialize` is larger than 1 MiB: shorten its instructions";
    TtlExpired: "The task's time to live ended before its call did";
    GatewayRestart: "The gateway restarted while the tool was running; it may or may not have completed";
    ReplicaLost:
        "The gateway that ran the tool was lost, and no other could resume the call; it may or may not have completed";
    Poison: "The gateway ended several times in a row while the tool was running; the call is not resumed any more";
    TooManyWaiters: "Too many requests wait for this task (64)";
    TooMuchStored: "Your tasks and their results have reached their limit in bytes (`stored_bytes_per_principal_max`)";
    TooMuchUnread: "Your unread responses have reached their limit in bytes (`answer_bytes_per_principal_max`)";
    AnswersFull: "Unread responses have reached their limit in bytes (`answer_bytes_max`)";
    RateLimited: "There are too many requests; wait before the next one";
    TooManyTasks: "There are too many unfinished tasks (`tasks_per_principal_max`, or `tasks_max` for all)";
    TooManyListeners: "There are too many open streams of notifications (`streams_per_principal_max`)";
    StoreFull: "The task store is full (`stored_bytes_max`, or its disk)";
    StoreFailed: "The task store failed";
    StoreCorrupt: "The task's stored record is damaged";
    QueueFull:
        "Too many calls wait for this upstream server (`queue_max`, or `processes_max` of a program; one principal has \
        `permits_percent_max` of either)";
    QueueDeadline: "The call waited too long for a permit at the upstream server (`queue_deadline`)";
    Draining: "The gateway is shutting down";
    StoreLost: "The task store lost acknowledged writes; the tool may or may not have completed";
    AuditUnavailable: "The gateway cannot record the request in its audit file, which is required";
    ReplicaUnavailable: "The gateway that has this session or call did not answer";
    Internal: "The gateway failed; its log has the cause";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(complaint: &RequestError, json: &str) {
        assert_eq!(Payload::of(&complaint.to_error(ProtocolVersion::V2026_07_28)).as_str(), json);
    }

    #[test]
    fn complaints_have_the_code_and_data_of_the_specification() {
        check(&RequestError::UnknownTask, r#"{"code":-32602,"message":"Task not found"}"#);
        check(
            &RequestError::Version { requested: "v9".to_owned() },
            r#"{"code":-32022,"message":"Unsupported protocol version; requests without a session are served in 2026-07-28, sessions (`initialize`) in 2024-11-05, 2025-03-26, 2025-06-18, 2025-11-25","data":{"supported":["2026-07-28"],"requested":"v9"}}"#,
        );
        check(
            &RequestError::Capability(Payload::empty_object()),
            r#"{"code":-32021,"message":"Missing required client capability","data":{"requiredCapabilities":{}}}"#,
        );
        check(
            &RequestError::UnsafeDocument { what: "too deep".to_owned(), reason: "too_deep" },
            r#"{"code":-32600,"message":"Invalid request: too deep","data":{"reason":"too_deep"}}"#,
        );
        check(
            &RequestError::InvalidRequestState,
            r#"{"code":-32602,"message":"Invalid params: requestState is not valid here","data":{"reason":"invalid_request_state"}}"#,
        );
        check(
            &RequestError::IdempotencyMismatch,
            r#"{"code":-32602,"message":"Invalid params: the idempotency key belongs to another call","data":{"reason":"idempotency_mismatch"}}"#,
        );
        let params = Object::of(&Payload::of(&json!({ "name": "re\u{1b}port" })));
        check(&RequestError::unknown_tool(params.as_ref()), r#"{"code":-32602,"message":"Unknown tool: report"}"#);
        check(&RequestError::unknown_tool(None), r#"{"code":-32602,"message":"Unknown tool"}"#);
        check(&RequestError::UnknownMethod(Cow::Borrowed("x")), r#"{"code":-32601,"message":"Method not found: x"}"#);
    }

    /// T-80.
    #[test]
    fn the_draft_name_of_the_version_keeps_the_draft_code_for_capabilities() {
        let error = RequestError::Capability(Payload::empty_object()).to_error(ProtocolVersion::V2026_06_30);
        assert_eq!(error.code, -32003);
    }

    #[test]
    fn gateway_faults_say_whether_the_call_may_have_run() {
        let mut fault = GatewayFault::new(Reason::UpstreamHttpStatus, Executed::Unknown);
        fault.http_status = Some(502);
        assert_eq!(
            Payload::of(&gateway_error(&fault)).as_str(),
            r#"{"code":-32603,"message":"The upstream server answered with an HTTP error (HTTP 502)","data":{"source":"gateway","reason":"upstream_http_status","executed":"unknown","httpStatus":502}}"#
        );
    }

    #[test]
    fn a_call_that_a_lost_replica_may_have_run_is_not_asked_for_again() {
        let lost = gateway_error(&GatewayFault::new(Reason::ReplicaUnavailable, Executed::Unknown));
        assert_eq!(
            Payload::of(&lost).as_str(),
            r#"{"code":-32603,"message":"The gateway that has this session or call did not answer","data":{"source":"gateway","reason":"replica_unavailable","executed":"unknown"}}"#
        );
    }

    #[test]
    fn a_cancelled_task_shows_the_cancel_once_and_its_last_status_text() {
        for (last, words) in [
            (None, "The task was cancelled"),
            (Some("page 2"), "The task was cancelled; last message: page 2"),
            (Some("The task was cancelled; last message: page 2"), "The task was cancelled; last message: page 2"),
        ] {
            assert_eq!(cancelled_words(last), words);
        }
    }

    /// T-50, T-14.
    #[test]
    fn an_error_for_a_resource_gains_its_uri_and_loses_nothing() {
        let data = |text: &'static str| Payload::parse(&text.into(), crate::wire::ScanLimits::UPSTREAM).unwrap();
        for (code, before, after) in [
            (-32602, None, Some(r#"{"uri":"a:b"}"#)),
            (-32602, Some(r#"{"field":1.10}"#), Some(r#"{"field":1.10,"uri":"a:b"}"#)),
            (-32602, Some(r#"{"uri":"c:d"}"#), Some(r#"{"uri":"c:d"}"#)),
            (-32602, Some(r#""why""#), Some(r#""why""#)),
            (-32000, None, None),
            (-32000, Some(r#"{"field":1}"#), Some(r#"{"field":1}"#)),
        ] {
            let error = RpcError { data: before.map(data), ..RpcError::new(code, "m") };
            assert_eq!(with_uri(error, "a:b").data.as_ref().map(Payload::as_str), after, "{code} {before:?}");
        }
    }

    /// MOD-30, MOD-31, T-50.
    #[test]
    fn codes_of_session_versions_do_not_reach_stateless_clients() {
        for (upstream, client) in [
            (-32002, -32602),
            (-32042, -32603),
            (-32020, -32603),
            (-32022, -32603),
            (-32000, -32000),
            (7, 7),
            (-32602, -32602),
        ] {
            let failure = Failure::Upstream(RpcError::new(upstream, "m"));
            assert_eq!(failure_error(&failure).code, client, "{upstream}");
        }
    }
}
