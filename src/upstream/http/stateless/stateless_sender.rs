//! Sends one request to a server without sessions, with all that it must say, and reads its answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc;

use crate::task::{Executed, GatewayFault, Principal, Reason};
use crate::upstream::era::{EraCache, contradicts};
use crate::upstream::header_annotations::{self, HeaderAnnotations, HeaderArgument};
use crate::upstream::http::drive::response_reader::{MALFORMED_MAX, drain, is_unreadable_answer};
use crate::upstream::outgoing::{HandedOver, OutgoingRequest, SessionHeaders};
use crate::upstream::own_ids;
use crate::upstream::reply::{
    self, AcceptedResponse, BodyReadError, ErrorAddressee, EventStream, ReadLimits, ResponseRefusal,
};
use crate::upstream::session::{UpstreamLink, route};
use crate::upstream::{CallContext, ExchangeError, ExchangeEvent, ForwardedHeaders, UpstreamTaskMode};
use crate::wire::envelope::EnvelopeError;
use crate::wire::meta::{
    CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, META, PROGRESS_TOKEN, PROTOCOL_VERSION, TASKS_EXTENSION,
};
use crate::wire::rpc_error::HEADER_MISMATCH;
use crate::wire::{
    ListPages, Message, Object, PagedList, Payload, ProtocolVersion, RequestId, RpcError, ScanLimits, envelope, method,
};

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Pages of a tool list that are read to learn what is repeated in headers (U35).
const PAGES_MAX: usize = 200;
/// Tools whose annotations are remembered.
const ANNOTATED_MAX: usize = 10_000;

/// Tools that want arguments repeated in headers, as far as their lists went by here. Others are not in it.
#[derive(Debug, Default)]
pub(super) struct AnnotatedTools(Mutex<HashMap<String, Arc<[HeaderArgument]>>>);

impl AnnotatedTools {
    /// Learns from one page of a list.
    fn learn(&self, page: &Object) {
        let mut known = self.0.lock();
        for tool in page.get("tools").iter().flat_map(Payload::items).filter_map(|tool| Object::of(&tool)) {
            let Some(name) = tool.get_string("name") else { continue };
            match tool.get("inputSchema").as_ref().map(header_annotations::read) {
                Some(HeaderAnnotations::Valid(mirrored)) if !mirrored.is_empty() => {
                    if known.len() < ANNOTATED_MAX || known.contains_key(&name) {
                        known.insert(name, mirrored.into());
                    }
                }
                Some(HeaderAnnotations::Valid(_) | HeaderAnnotations::Stripped { .. }) | None => {
                    known.remove(&name);
                }
            }
        }
    }

    fn of(&self, tool: &str) -> Option<Arc<[HeaderArgument]>> {
        self.0.lock().get(tool).cloned()
    }
}

/// How a request ends without a result.
#[derive(Clone, Debug)]
pub(super) enum RequestFailure {
    /// The upstream's own error.
    Faulted(RpcError),
    Lost(GatewayFault),
}

impl From<RequestFailure> for ExchangeEvent {
    fn from(ending: RequestFailure) -> Self {
        match ending {
            RequestFailure::Faulted(error) => Self::Faulted(error),
            RequestFailure::Lost(fault) => Self::Lost(ExchangeError(fault)),
        }
    }
}

/// A request before it has an id and metadata.
#[derive(Clone, Debug)]
pub(super) struct DraftRequest {
    method: Arc<str>,
    params: Option<Payload>,
    /// Where what is said before the answer goes; asking for progress without is of no use.
    progress: bool,
}

impl DraftRequest {
    pub(super) fn new(method: &str, params: Option<Payload>) -> Self {
        Self { method: Arc::from(method), params, progress: false }
    }

    /// Whether it asks how a task stands.
    pub(super) fn is_poll(&self) -> bool {
        &*self.method == method::TASKS_GET
    }

    /// Whether it goes on with a call that the server knows: a question that was answered, a task that was made.
    fn is_under_way(&self) -> bool {
        let answers =
            || self.params.as_ref().and_then(Object::of).is_some_and(|params| params.contains("inputResponses"));
        matches!(&*self.method, method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL) || answers()
    }

    /// The same with progress wanted.
    pub(super) const fn with_progress(mut self, progress: bool) -> Self {
        self.progress = progress;
        self
    }
}

/// Events on their way to whoever owns the exchange. A queue has room for dozens at once: of pointers, so that a request
/// that has nothing to say takes little.
pub(super) type ExchangeEventSender = mpsc::Sender<Box<ExchangeEvent>>;

/// The way to the server for one client's exchange.
#[derive(Clone, Debug)]
pub(super) struct StatelessSender {
    pub(super) link: Arc<UpstreamLink>,
    eras: Arc<EraCache>,
    annotated: Arc<AnnotatedTools>,
    /// What the client can be asked, plus the extension, which the gateway itself has (UPC-21).
    capabilities: Payload,
    /// Whether the extension is declared, without which the server may make no task.
    pub(super) takes_tasks: bool,
    /// Whether the owner of the exchange hears how the server's task goes.
    pub(super) is_watched: bool,
    log_level: Option<Arc<str>>,
    first_byte: Option<Duration>,
    forwarded: ForwardedHeaders,
    principal: Principal,
    limits: ReadLimits,
}

impl StatelessSender {
    pub(super) fn new(
        link: Arc<UpstreamLink>,
        eras: Arc<EraCache>,
        annotated: Arc<AnnotatedTools>,
        context: &CallContext,
    ) -> Self {
        let (takes_tasks, capabilities) = match context.native_task {
            UpstreamTaskMode::Undeclared => (false, context.client.capabilities.clone()),
            UpstreamTaskMode::Never | UpstreamTaskMode::WhereServed { .. } | UpstreamTaskMode::Watched => {
                (true, with_extension(&context.client.capabilities))
            }
        };
        Self {
            link,
            eras,
            annotated,
            capabilities,
            takes_tasks,
            is_watched: context.native_task.is_watched(),
            log_level: context.log_level.clone(),
            first_byte: context.timeouts.first_byte,
            forwarded: context.forwarded.clone(),
            principal: context.principal.clone(),
            limits: ReadLimits::of_call(context),
        }
    }

    /// The server asks its clients by results.
    pub(super) fn asked_in_result(&self) {
        self.eras.asked_in_result();
    }

    /// Whether a request failed since the client's credential is good no more: it never will be again, and the gateway has no
    /// other.
    pub(super) fn outlives_credential(&self, fault: &GatewayFault) -> bool {
        fault.reason == Reason::UpstreamAuth && self.forwarded.credential().is_clients()
    }

    /// Sends a request and reads up to its answer. Dropping the future ends the request at the upstream,
    /// which is how it is cancelled.
    ///
    /// # Errors
    /// If the answer is an error, or does not come.
    pub(super) async fn answer(
        &self,
        draft: &DraftRequest,
        hear: Option<&ExchangeEventSender>,
    ) -> Result<Payload, RequestFailure> {
        self.call(draft, hear, &HandedOver::default()).await
    }

    /// The same; `handed_over` is set once a connection has taken the request. A mismatch of headers is
    /// taken for a tool that changed: its list is read again and the call sent once more, since the one
    /// before was refused (UPC-16).
    pub(super) async fn call(
        &self,
        draft: &DraftRequest,
        hear: Option<&ExchangeEventSender>,
        handed_over: &HandedOver,
    ) -> Result<Payload, RequestFailure> {
        match self.once(draft, hear, handed_over).await {
            Err(RequestFailure::Faulted(error))
                if error.code == HEADER_MISMATCH && *draft.method == *method::TOOLS_CALL =>
            {
                Box::pin(self.refresh()).await?;
                self.once(draft, hear, handed_over).await
            }
            answer => answer,
        }
    }

    /// Reads the tool list anew for what it says of headers.
    async fn refresh(&self) -> Result<(), RequestFailure> {
        let mut pages = ListPages::new(PagedList::Tools, PAGES_MAX);
        while pages.end().is_none() {
            let draft = DraftRequest::new(method::TOOLS_LIST, pages.params());
            let page = self.once(&draft, None, &HandedOver::default()).await?;
            let Some(page) = Object::of(&page) else { break };
            pages.read(&page);
        }
        Ok(())
    }

    async fn once(
        &self,
        draft: &DraftRequest,
        hear: Option<&ExchangeEventSender>,
        handed_over: &HandedOver,
    ) -> Result<Payload, RequestFailure> {
        let id = own_ids::mint();
        let post = self.post(draft, &id);
        let post = match draft.is_under_way() {
            true => post.under_way().forwarding(self.forwarded.apart()),
            false => post,
        };
        let head = self.link.transport.send(&post, handed_over);
        let response = match self.first_byte {
            None => head.await,
            Some(max) => tokio::time::timeout(max, head).await.unwrap_or_else(|_| {
                let executed = if handed_over.initialized() { Executed::Unknown } else { Executed::No };
                Err(GatewayFault::new(Reason::UpstreamTimeout, executed))
            }),
        };
        let response = response.map_err(RequestFailure::Lost)?;
        let result = match reply::open(response, ErrorAddressee::Alone(&id), &self.limits).await {
            Ok(AcceptedResponse::Json(body)) => {
                let text = reply::read_whole(body, &self.limits).await.map_err(RequestFailure::Lost)?;
                reply::answer_in(&text, &id).ok_or_else(|| malformed(Executed::Yes))?.outcome
            }
            Ok(AcceptedResponse::Events(events)) => {
                self.follow(events, &id, hear).await.map_err(RequestFailure::Lost)?
            }
            Err(ResponseRefusal::Rpc(error)) => {
                if contradicts(Some(400), Some(&error)) {
                    self.eras.doubt();
                }
                Err(error)
            }
            Err(ResponseRefusal::Gateway(fault)) => {
                if contradicts(fault.http_status, None) {
                    self.eras.doubt();
                }
                return Err(RequestFailure::Lost(fault));
            }
            Err(ResponseRefusal::SessionLost) => {
                return Err(RequestFailure::Lost(GatewayFault::new(Reason::UpstreamSessionLost, Executed::No)));
            }
        };
        match result {
            Ok(result) => {
                if *draft.method == *method::TOOLS_LIST
                    && let Some(page) = Object::of(&result)
                {
                    self.annotated.learn(&page);
                }
                Ok(result)
            }
            Err(error) => Err(RequestFailure::Faulted(error)),
        }
    }

    /// The request under this id, with all that it must say.
    pub(super) fn post(&self, draft: &DraftRequest, id: &RequestId) -> OutgoingRequest {
        let params = self.params(draft, id);
        let headers = self.headers(&draft.method, &params);
        let message = envelope::request(id, &draft.method, Some(params.payload()));
        let version = Some(ProtocolVersion::STATELESS);
        let post = SessionHeaders { version, ..SessionHeaders::default() }.post_with(message, Box::new(headers));
        post.forwarding(self.forwarded.clone()).on_behalf_of(self.principal.clone())
    }

    /// The params with the metadata that every request carries. What the other hop said is gone already.
    fn params(&self, draft: &DraftRequest, id: &RequestId) -> Object {
        let own = draft.params.as_ref().and_then(Object::of);
        let kept = own.as_ref().and_then(|params| params.get_object(META));
        let base = kept.unwrap_or_else(empty);
        let info = json!({ "name": "taskgate", "version": env!("CARGO_PKG_VERSION") });
        let mut meta = base
            .edit()
            .set(PROTOCOL_VERSION, Payload::of(ProtocolVersion::STATELESS.as_str()))
            .set(CLIENT_INFO, Payload::of(&info))
            .set(CLIENT_CAPABILITIES, self.capabilities.clone());
        if let Some(level) = &self.log_level {
            meta = meta.set(LOG_LEVEL, Payload::of(&**level));
        }
        meta = match draft.progress {
            true => meta.set(PROGRESS_TOKEN, id.payload().clone()),
            false => meta.remove(PROGRESS_TOKEN),
        };
        let meta = meta.finish();
        let params = own.unwrap_or_else(empty).edit().set(META, meta).finish();
        Object::of(&params).unwrap_or_else(empty)
    }

    /// The headers that repeat what the body says (UPC-10, UPC-15).
    fn headers(&self, name: &str, params: &Object) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Ok(method) = HeaderValue::from_str(name) {
            headers.insert(METHOD, method);
        }
        let member = match name {
            method::TOOLS_CALL | method::PROMPTS_GET => "name",
            method::RESOURCES_READ => "uri",
            method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL => "taskId",
            _ => return headers,
        };
        let Some(named) = params.get_string(member) else { return headers };
        if let Some(value) = header_annotations::encode(&named) {
            headers.insert(NAME, value);
        }
        if name == method::TOOLS_CALL
            && let Some(annotated) = self.annotated.of(&named)
        {
            headers.extend(header_annotations::headers_of(&annotated, params.get_object("arguments").as_ref()));
        }
        headers
    }

    /// Follows the request's stream to its answer. One that ends before is lost: nothing takes it up, and
    /// nothing is sent again (T-30, UPC-18).
    async fn follow(
        &self,
        mut events: EventStream,
        id: &RequestId,
        hear: Option<&ExchangeEventSender>,
    ) -> Result<Result<Payload, RpcError>, GatewayFault> {
        let mut strange = 0;
        loop {
            let event = match events.next().await {
                Ok(Some(event)) => event,
                Ok(None) | Err(BodyReadError::Closed) if strange > 0 => {
                    return Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown));
                }
                Ok(None) => return Err(BodyReadError::Closed.into_fault()),
                Err(broken) => return Err(broken.into_fault()),
            };
            let Some(text) = reply::message_in(&event) else { continue };
            match text.read(ScanLimits::UPSTREAM).map(Arc::unwrap_or_clone) {
                Ok(Message::Response(response)) if response.id.as_ref() == Some(id) => {
                    drain(&self.link, events);
                    return Ok(response.outcome);
                }
                Ok(Message::Notification(notification)) => match (route::about_call(&notification, id), hear) {
                    // Nobody left to hear it is as good as heard.
                    (Some(event), Some(hear)) => drop(hear.send(Box::new(event)).await),
                    (Some(_), None) => (),
                    (None, _) => self.link.dropped("stray_notification"),
                },
                // Servers of this version ask nothing in the middle of a request.
                Ok(Message::Request(_)) => self.link.dropped("stray_request"),
                Ok(Message::Response(_)) => self.link.dropped("foreign_response"),
                Err(EnvelopeError::Batch) if reply::answer_in(text, id).is_some() => {
                    drain(&self.link, events);
                    let answer = reply::answer_in(text, id);
                    return answer.map(|answer| answer.outcome).ok_or(BodyReadError::Closed.into_fault());
                }
                Err(_) if is_unreadable_answer(text, id) => {
                    return Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes));
                }
                Err(_) => {
                    strange += 1;
                    self.link.dropped("malformed_event");
                    if strange > MALFORMED_MAX {
                        return Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown));
                    }
                }
            }
        }
    }
}

fn empty() -> Object {
    Object::of(&Payload::empty_object()).expect("an empty object is an object")
}

pub(super) const fn malformed(executed: Executed) -> RequestFailure {
    RequestFailure::Lost(GatewayFault::new(Reason::UpstreamMalformed, executed))
}

fn with_extension(capabilities: &Payload) -> Payload {
    let all = Object::of(capabilities).unwrap_or_else(empty);
    let extensions = all.get_object("extensions").unwrap_or_else(empty);
    let extensions = extensions.edit().set(TASKS_EXTENSION, Payload::empty_object()).finish();
    all.edit().set("extensions", extensions).finish()
}
