//! Reaches a call's or task's server through the gateway's own upstream code.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::AUTHORIZATION;
use serde_json::json;
use tokio::sync::OnceCell;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::CallMode;
use super::dialog::NoResultError;
use super::question;
use super::server_address::ServerAddress;
use super::tool_schema::ToolSchema;
use crate::cause::CauseChain;
use crate::dialect::faults::session_failure_error;
use crate::dialect::relay_core_2025_11_25::ToolTaskSupport;
use crate::task::{Failure, GatewayFault, Principal, Reason};
use crate::upstream::TaskScope;
use crate::upstream::header_annotations;
use crate::upstream::http::{
    HttpTransport, HttpUpstreamSettings, ProxySettings, SessionUpstream, UpstreamTlsFiles, stateless_task_token,
};
use crate::upstream::transport::credential::{Credential, CredentialSource};
use crate::upstream::{
    BeginError, CallContext, Exchange, Handshake, NoResult, Timeouts, Upstream, UpstreamRequest, UpstreamTaskMode,
    result_of,
};
use crate::wire::object::ObjectWriter;
use crate::wire::{ListPages, Object, PagedList, Payload, RpcError, meta, method};

const PAGES_MAX: usize = 100;
const CONNECT_MAX: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 128 << 20;
/// The time limit of a request that is no call.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// How long a server may take to answer `server/discover`. A silent one is taken for a server with sessions (UPC-22).
const DISCOVER_MAX: Duration = Duration::from_secs(10);
/// How long the session's GET stream may take to open before the call is sent without it.
const LISTEN_MAX: Duration = Duration::from_secs(2);

/// A server, reached in a session and without one.
#[derive(Debug)]
pub(super) struct CalledServer {
    sessions: Arc<SessionUpstream>,
    stateless: Arc<dyn Upstream>,
    scope: TaskScope,
    pub(super) address: ServerAddress,
    /// The tool that was looked up, and whether it was in a session.
    tool: OnceCell<(bool, Option<Arc<Tool>>)>,
}

impl Drop for CalledServer {
    fn drop(&mut self) {
        self.scope.stop.cancel();
    }
}

impl CalledServer {
    /// Connects to nothing yet. Fails if the address is no HTTP URI, or there are no trusted roots.
    pub(super) fn new(address: &ServerAddress) -> Result<Self, NoResultError> {
        let address = address.clone();
        let credential = address.authorization.clone();
        let credential =
            credential.map(|value| Credential { header: AUTHORIZATION, source: CredentialSource::Known(value) });
        let settings = HttpUpstreamSettings {
            transport: HttpTransport::Streamable,
            event_bytes_max: ANSWER_BYTES_MAX,
            connect_max: CONNECT_MAX,
            tls: UpstreamTlsFiles { ca: address.ca.clone(), identity: None },
            credential,
            proxy: ProxySettings::Environment,
            ..HttpUpstreamSettings::new(Arc::from("server"), address.url.clone())
        };
        let scope = TaskScope { tracker: TaskTracker::new(), stop: CancellationToken::new() };
        let sessions = SessionUpstream::new(settings, scope.clone())
            .map_err(|error| NoResultError(CauseChain(&error).to_string()))?;
        let sessions = Arc::new(sessions);
        let stateless = sessions.for_stateless_clients().stateless();
        Ok(Self { sessions, stateless, scope, address, tool: OnceCell::new() })
    }

    pub(super) fn upstream(&self, in_session: bool) -> &dyn Upstream {
        if in_session { &*self.sessions } else { &*self.stateless }
    }

    /// The handshake in 2026-07-28; `None` for a server with sessions only: any error response, or silence (UPC-22).
    pub(super) async fn discover(&self) -> Result<Option<Arc<Handshake>>, NoResultError> {
        match timeout(DISCOVER_MAX, self.stateless.handshake(&context(UpstreamTaskMode::Undeclared, false))).await {
            Ok(Ok(handshake)) => Ok(Some(handshake)),
            Ok(Err(BeginError::Gateway(fault)))
                if matches!(fault.reason, Reason::UpstreamUnreachable | Reason::UpstreamTls) =>
            {
                Err(self.lost(&fault))
            }
            Ok(Err(BeginError::Gateway(_) | BeginError::Refused(_))) | Err(_) => Ok(None),
        }
    }

    /// Initializes the session and waits until its GET stream is open, so that no question is missed.
    pub(super) async fn open_session(&self) -> Result<Arc<Handshake>, NoResultError> {
        let context = context(UpstreamTaskMode::Never, false);
        self.sessions.listened(&context, LISTEN_MAX).await.map_err(|error| self.unbegun(error))?;
        self.sessions.handshake(&context).await.map_err(|error| self.unbegun(error))
    }

    pub(super) async fn end_session(&self) {
        self.sessions.close().await;
    }

    /// Looks a tool up, once; `None` if the server does not list it: it may have it, and checks the call itself.
    pub(super) async fn tool(&self, mode: CallMode, name: &str) -> Result<Option<Arc<Tool>>, NoResultError> {
        if let Some((in_session, tool)) = self.tool.get()
            && *in_session == mode.in_session
        {
            return Ok(tool.clone());
        }
        let mut found = None;
        // An error counts as an empty list.
        let _ = self
            .pages(mode, PagedList::Tools, |page| match Tool::on_page(page, name) {
                Some(tool) => {
                    found = Some(Arc::new(tool));
                    ControlFlow::Break(())
                }
                None => ControlFlow::Continue(()),
            })
            .await?;
        // Set if the lookup in the other mode came first.
        let _ = self.tool.set((mode.in_session, found.clone()));
        Ok(found)
    }

    /// Reads a list, page by page; the inner result is the server's own error.
    pub(super) async fn pages(
        &self,
        mode: CallMode,
        list: PagedList,
        mut look: impl FnMut(&Object) -> ControlFlow<()>,
    ) -> Result<Result<(), RpcError>, NoResultError> {
        let mut pages = ListPages::new(list, PAGES_MAX);
        while pages.end().is_none() {
            let params = pages.params().unwrap_or_else(Payload::empty_object);
            let page = match self.ask(mode, list.method(), params).await? {
                Ok(page) => page,
                Err(error) => return Ok(Err(error)),
            };
            if pages.read(&page) && look(&page).is_break() {
                break;
            }
        }
        Ok(Ok(()))
    }

    /// Sends a request that is no call; the inner result is the server's own error.
    pub(super) async fn ask(
        &self,
        mode: CallMode,
        method: &str,
        params: Payload,
    ) -> Result<Result<Object, RpcError>, NoResultError> {
        let request = UpstreamRequest { method: Arc::from(method), params: Some(params) };
        let context = context(mode.native_task(), false);
        let late = || NoResultError(format!("no answer within {}", humantime::format_duration(REQUEST_MAX)));
        timeout(REQUEST_MAX, self.answer(mode.in_session, request, context)).await.map_err(|_| late())?
    }

    async fn answer(
        &self,
        in_session: bool,
        request: UpstreamRequest,
        context: CallContext,
    ) -> Result<Result<Object, RpcError>, NoResultError> {
        let begun = self.upstream(in_session).begin(request, context).await;
        let mut exchange = begun.map_err(|error| self.unbegun(error))?;
        match result_of(&mut *exchange).await {
            Ok(result) => object(&result).map(Ok),
            Err(NoResult::Faulted(error)) => Ok(Err(error)),
            Err(NoResult::Lost(fault)) => Err(self.lost(&fault)),
            Err(NoResult::Cancelled) => Err(NoResultError::unintelligible("it cancelled a request")),
        }
    }

    /// Starts a call; returns once it has been sent.
    pub(super) async fn begin(
        &self,
        mode: CallMode,
        tool: &str,
        arguments: &Payload,
        idempotency_key: Option<&str>,
    ) -> Result<Box<dyn Exchange>, NoResultError> {
        let params = ObjectWriter::new().text("name", tool).member("arguments", arguments);
        let params = idempotency_key.iter().fold(params, |params, key| {
            params.member(meta::META, &Payload::of(&json!({ (meta::IDEMPOTENCY_KEY): key })))
        });
        let request = UpstreamRequest { method: Arc::from(method::TOOLS_CALL), params: Some(params.finish()) };
        let begun = self.upstream(mode.in_session).begin(request, context(mode.native_task(), true)).await;
        begun.map_err(|error| self.unbegun(error))
    }

    /// Resumes a task by its id. The events show whether the server has it.
    pub(super) async fn take_up(&self, mode: CallMode, id: &str) -> Result<Box<dyn Exchange>, NoResultError> {
        let context = context(mode.native_task(), true);
        let taken = async {
            let token = if mode.in_session {
                self.sessions.task_token(id, &context).await?
            } else {
                stateless_task_token(id, &[])
            };
            self.upstream(mode.in_session).resume(token, context).await
        };
        taken.await.map_err(|error| self.unbegun(error))
    }

    fn unbegun(&self, error: BeginError) -> NoResultError {
        match error {
            BeginError::Gateway(fault) => self.lost(&fault),
            BeginError::Refused(error) if error.is_gateways() => {
                NoResultError(format!("the gateway reports: {}", error.message))
            }
            BeginError::Refused(RpcError { code, message, .. }) => {
                NoResultError(format!("the server refused the handshake: error {code}: {message}"))
            }
        }
    }

    pub(super) fn lost(&self, fault: &GatewayFault) -> NoResultError {
        let trouble = self.sessions.health().last().filter(|trouble| trouble.reason == fault.reason);
        let cause = trouble.map(|trouble| format!(": {}", trouble.cause)).unwrap_or_default();
        let status = fault.http_status.and_then(|status| StatusCode::from_u16(status).ok());
        let is = |reason| fault.reason == reason;
        NoResultError(if is(Reason::UpstreamUnreachable) || is(Reason::UpstreamTls) {
            format!("the server cannot be reached{cause}")
        } else if let Some(status) = status {
            format!("the server answered {status}{}", advice(status, self.address.authorization.is_some()))
        } else if is(Reason::UpstreamClosed) {
            "the connection broke before the answer was complete".to_owned()
        } else if is(Reason::UpstreamTimeout) {
            format!("no answer within {}", humantime::format_duration(REQUEST_MAX))
        } else if is(Reason::UpstreamRefused) {
            return NoResultError::unintelligible("it names no version that has sessions");
        } else if is(Reason::UpstreamMalformed) {
            format!("the server's answer cannot be understood{cause}")
        } else {
            session_failure_error(&Failure::Gateway(*fault)).message
        })
    }
}

fn advice(status: StatusCode, has_key: bool) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED if has_key => "; it refuses the key in TASKGATE_KEY",
        StatusCode::UNAUTHORIZED => "; it asks for a key: put one into TASKGATE_KEY",
        StatusCode::FORBIDDEN => "; it does not allow the key in TASKGATE_KEY, or the Host header, at this address",
        StatusCode::PAYLOAD_TOO_LARGE => "; the arguments are larger than it takes",
        _ => "",
    }
}

/// Whether a repeated request may succeed after this fault.
pub(super) fn may_pass(fault: &GatewayFault) -> bool {
    matches!(fault.reason, Reason::UpstreamUnreachable | Reason::UpstreamClosed | Reason::UpstreamTimeout)
        || fault.http_status.is_some_and(|status| status >= 500 || status == StatusCode::TOO_MANY_REQUESTS)
}

pub(super) fn object(result: &Payload) -> Result<Object, NoResultError> {
    Object::of(result).ok_or_else(|| NoResultError::unintelligible("the result is not an object"))
}

/// The context of a caller that answers questions.
fn context(native_task: UpstreamTaskMode, progress: bool) -> CallContext {
    let capabilities = Payload::of(&json!({ "elicitation": question::capability() }));
    let context = CallContext::new(Principal::local(), capabilities, Timeouts::default(), ANSWER_BYTES_MAX);
    CallContext { progress, native_task, ..context }
}

#[derive(Debug)]
pub(super) struct Tool {
    pub(super) is_callable: bool,
    /// Whether a call may become a task of 2025-11-25, which both `optional` and `required` allow.
    pub(super) takes_tasks: bool,
    pub(super) schema: ToolSchema,
}

impl Tool {
    pub(super) fn on_page(page: &Object, name: &str) -> Option<Self> {
        let tools = page.get("tools").filter(|tools| tools.as_str().starts_with('['));
        let mut tools = tools.iter().flat_map(Payload::items).filter_map(|tool| Object::of(&tool));
        let tool = tools.find(|tool| tool.get_str("name").as_deref() == Some(name))?;
        Some(Self {
            is_callable: header_annotations::are_valid(&tool),
            takes_tasks: ToolTaskSupport::of(&tool) != ToolTaskSupport::Forbidden,
            schema: ToolSchema::of(&tool),
        })
    }
}
