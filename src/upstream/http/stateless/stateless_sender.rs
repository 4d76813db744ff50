//! Sends one request with its metadata to a stateless server, and reads the response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use moka::policy::EvictionPolicy;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::answer_budget::AnswerShare;
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

/// Most pages of a tool list read for header annotations, and bytes of the names on them (U35).
const PAGES_MAX: usize = 200;
const NAME_BYTES_MAX: usize = 4 << 20;
/// Bytes of all annotations that are kept; the least recently called tools lose theirs.
const ANNOTATION_BYTES_MAX: u64 = 16 << 20;
/// Memory of an entry, and of one annotation, beside their text.
const OVERHEAD_BYTES: usize = 128;

#[derive(Debug)]
pub(super) struct AnnotatedTools {
    known: moka::sync::Cache<String, Arc<[HeaderArgument]>>,
    /// Most servers have none, and their calls need no lookup.
    are_any: AtomicBool,
}

impl Default for AnnotatedTools {
    fn default() -> Self {
        let weigh = |name: &String, annotated: &Arc<[HeaderArgument]>| {
            let of_each = annotated.iter().map(|one| one.text_bytes() + OVERHEAD_BYTES).sum::<usize>();
            u32::try_from(name.len() + of_each + OVERHEAD_BYTES).unwrap_or(u32::MAX)
        };
        // LRU: a new tool must be admitted, however often the others are called.
        let known = moka::sync::Cache::builder().max_capacity(ANNOTATION_BYTES_MAX);
        let known = known.eviction_policy(EvictionPolicy::lru()).weigher(weigh).build();
        Self { known, are_any: AtomicBool::new(false) }
    }
}

impl AnnotatedTools {
    fn insert(&self, page: &Object) {
        for tool in page.get("tools").iter().flat_map(Payload::items).filter_map(|tool| Object::of(&tool)) {
            let Some(name) = tool.get_string("name") else { continue };
            match tool.get("inputSchema").as_ref().map(header_annotations::read) {
                Some(HeaderAnnotations::Valid(mirrored)) if !mirrored.is_empty() => {
                    self.known.insert(name, mirrored.into());
                    self.are_any.store(true, Ordering::Relaxed);
                }
                Some(HeaderAnnotations::Valid(_) | HeaderAnnotations::Stripped { .. }) | None => {
                    if self.are_any.load(Ordering::Relaxed) {
                        self.known.invalidate(&name);
                    }
                }
            }
        }
    }

    fn of(&self, tool: &str) -> Option<Arc<[HeaderArgument]>> {
        self.are_any.load(Ordering::Relaxed).then(|| self.known.get(tool)).flatten()
    }
}

#[derive(Clone, Debug)]
pub(super) enum RequestFailure {
    Faulted(RpcError),
    Lost(GatewayFault),
}

impl RequestFailure {
    /// The failure of a later request of a call that the server has begun: the call may have run, even if this was not sent.
    pub(super) fn of_begun_call(self) -> Self {
        match self {
            Self::Lost(fault) if fault.executed == Executed::No => {
                Self::Lost(GatewayFault { executed: Executed::Unknown, ..fault })
            }
            Self::Lost(_) | Self::Faulted(_) => self,
        }
    }
}

impl From<RequestFailure> for ExchangeEvent {
    fn from(ending: RequestFailure) -> Self {
        match ending {
            RequestFailure::Faulted(error) => Self::Faulted(error),
            RequestFailure::Lost(fault) => Self::Lost(ExchangeError(fault)),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct DraftRequest {
    pub(super) method: Arc<str>,
    pub(super) params: Option<Payload>,
    /// Whether progress is requested: only if it has a recipient.
    pub(super) progress: bool,
}

impl DraftRequest {
    pub(super) fn new(method: &str, params: Option<Payload>) -> Self {
        Self { method: Arc::from(method), params, progress: false }
    }

    /// Whether the server knows the call already, by a task or a question.
    fn is_under_way(&self) -> bool {
        let answers =
            || self.params.as_ref().and_then(Object::of).is_some_and(|params| params.contains("inputResponses"));
        matches!(&*self.method, method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL) || answers()
    }
}

/// The queue holds pointers: it has dozens of slots, and most requests send no event.
pub(super) type ExchangeEventSender = mpsc::Sender<Box<ExchangeEvent>>;

#[derive(Clone, Debug)]
pub(super) struct StatelessSender {
    pub(super) link: Arc<UpstreamLink>,
    eras: Arc<EraCache>,
    annotated: Arc<AnnotatedTools>,
    /// The client's capabilities plus the tasks extension, which the gateway supports (UPC-21).
    capabilities: Payload,
    /// Whether the tasks extension is declared; without it the server may make no task.
    pub(super) takes_tasks: bool,
    /// Whether the owner receives events of the server's task.
    pub(super) is_watched: bool,
    /// When a resumed call began, perhaps in an earlier process.
    pub(super) began: Instant,
    /// Until when the owner of a call that may be the server's task waits.
    pub(super) deadline: Option<Instant>,
    log_level: Option<Arc<str>>,
    first_byte: Option<Duration>,
    forwarded: ForwardedHeaders,
    pub(super) principal: Principal,
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
        let (began, deadline) = context.span();
        Self {
            link,
            eras,
            annotated,
            capabilities,
            takes_tasks,
            is_watched: context.native_task.is_watched(),
            began,
            deadline,
            log_level: context.log_level.clone(),
            first_byte: context.timeouts.first_byte,
            forwarded: context.forwarded.clone(),
            principal: context.principal.clone(),
            limits: ReadLimits::of_call(context),
        }
    }

    /// The account for bytes of its principal's streams.
    pub(super) fn answers(&self) -> AnswerShare {
        self.link.limits.answers_to(&self.principal)
    }

    pub(super) fn asked_in_result(&self) {
        self.eras.asked_in_result();
    }

    /// Whether the client's credential is no longer valid, which is permanent: the gateway has no other.
    pub(super) fn outlives_credential(&self, fault: &GatewayFault) -> bool {
        let is_refused = matches!(
            fault.reason,
            Reason::UpstreamAuth | Reason::CredentialMissing | Reason::CredentialBound | Reason::CredentialRefused
        );
        is_refused && self.forwarded.credential().is_clients()
    }

    /// Sends a request and reads its response. Dropping the future cancels the request at the upstream.
    pub(super) async fn answer(
        &self,
        draft: &DraftRequest,
        hear: Option<&ExchangeEventSender>,
    ) -> Result<Payload, RequestFailure> {
        self.call(draft, hear, &HandedOver::default()).await
    }

    /// As [`Self::answer`]; sets `handed_over`. A header mismatch rereads the tool list and resends the call (UPC-16).
    pub(super) async fn call(
        &self,
        draft: &DraftRequest,
        hear: Option<&ExchangeEventSender>,
        handed_over: &HandedOver,
    ) -> Result<Payload, RequestFailure> {
        let has_progress = AtomicBool::new(false);
        match self.once(draft, hear, handed_over, &has_progress).await {
            Err(RequestFailure::Faulted(error))
                if error.code == HEADER_MISMATCH && *draft.method == *method::TOOLS_CALL =>
            {
                // A server checks headers before it runs a call. This call has sent progress, so it must not be sent again.
                if has_progress.load(Ordering::Relaxed) {
                    return Err(malformed(Executed::Unknown));
                }
                match Box::pin(self.refresh()).await {
                    Ok(()) => self.once(draft, hear, handed_over, &has_progress).await,
                    // Without the list, the call is still refused for its headers.
                    Err(_) => Err(RequestFailure::Faulted(error)),
                }
            }
            answer => answer,
        }
    }

    async fn refresh(&self) -> Result<(), RequestFailure> {
        let mut pages = ListPages::new(PagedList::Tools, PAGES_MAX);
        while pages.end().is_none() && pages.kept_bytes() <= NAME_BYTES_MAX {
            let draft = DraftRequest::new(method::TOOLS_LIST, pages.params());
            let page = self.once(&draft, None, &HandedOver::default(), &AtomicBool::default()).await?;
            let Some(page) = Object::of(&page) else { break };
            pages.read(&page);
        }
        Ok(())
    }

    /// Sends a request once; `has_progress` is set by a message about it before its response.
    async fn once(
        &self,
        draft: &DraftRequest,
        hear: Option<&ExchangeEventSender>,
        handed_over: &HandedOver,
        has_progress: &AtomicBool,
    ) -> Result<Payload, RequestFailure> {
        let id = own_ids::mint();
        let post = self.post(draft, &id);
        let post = if draft.is_under_way() { post.under_way().forwarding(self.forwarded.detached()) } else { post };
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
                self.follow(events, &id, hear, has_progress).await.map_err(RequestFailure::Lost)?
            }
            Err(ResponseRefusal::Rpc(error)) => {
                if contradicts(Some(400), Some(&error)) {
                    self.eras.discard_verdict();
                }
                Err(error)
            }
            Err(ResponseRefusal::Gateway(fault)) => {
                if contradicts(fault.http_status, None) {
                    self.eras.discard_verdict();
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
                    self.annotated.insert(&page);
                }
                Ok(result)
            }
            Err(error) => Err(RequestFailure::Faulted(error.bounded())),
        }
    }

    pub(super) fn post(&self, draft: &DraftRequest, id: &RequestId) -> OutgoingRequest {
        let params = self.params(draft, id);
        let headers = self.headers(&draft.method, &params);
        let message = envelope::request(id, &draft.method, Some(params.payload()));
        let version = Some(ProtocolVersion::STATELESS);
        let post = SessionHeaders { version, ..SessionHeaders::default() }.post_with(message, headers);
        let post = post.forwarding(self.forwarded.clone()).on_behalf_of(self.principal.clone());
        post.kept_if(self.limits.is_kept())
    }

    /// The params with the gateway's metadata; metadata of the client's hop is removed already.
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
        meta = if draft.progress { meta.set(PROGRESS_TOKEN, id.payload()) } else { meta.remove(PROGRESS_TOKEN) };
        let meta = meta.finish();
        let params = own.unwrap_or_else(empty).edit().set(META, meta).finish();
        Object::of(&params).unwrap_or_else(empty)
    }

    fn headers(&self, name: &str, params: &Object) -> Vec<(HeaderName, HeaderValue)> {
        let tool = if name == method::TOOLS_CALL { params.get_str("name") } else { None };
        let annotated = tool.and_then(|tool| self.annotated.of(&tool));
        header_annotations::repeating(name, params, annotated.as_deref().unwrap_or_default())
    }

    /// Reads the stream to the response. A broken stream is lost: neither resumed nor requested again (T-30, UPC-18).
    async fn follow(
        &self,
        mut events: EventStream,
        id: &RequestId,
        hear: Option<&ExchangeEventSender>,
        has_progress: &AtomicBool,
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
                Ok(Message::Notification(about)) => match (route::about_call(&about, id, &self.limits), hear) {
                    (Some(event), Some(hear)) => {
                        has_progress.store(true, Ordering::Relaxed);
                        let event = Box::new(event);
                        if event.is_large() {
                            let _ = hear.reserve_many(hear.max_capacity()).await;
                        }
                        drop(hear.send(event).await);
                    }
                    (Some(_), None) => (),
                    (None, _) => self.link.dropped("stray_notification"),
                },
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

#[cfg(test)]
mod tests {
    use super::*;

    fn page(names: impl Iterator<Item = String>) -> Object {
        let schema = json!({ "properties": { "n": { "type": "string", "x-mcp-header": "N" } } });
        let tools: Vec<_> = names.map(|name| json!({ "name": name, "inputSchema": schema })).collect();
        Object::of(&Payload::of(&json!({ "tools": tools }))).unwrap()
    }

    #[test]
    fn u51_the_annotations_of_new_tools_are_known_however_many_there_were() {
        let tools = AnnotatedTools::default();
        tools.insert(&page((0..20_000).map(|n| format!("tool-{n}"))));
        assert!(tools.of("tool-19999").is_some());
        for n in 0..40 {
            let large = format!("{n}-{}", "x".repeat(1 << 20));
            tools.insert(&page([large.clone()].into_iter()));
            tools.known.run_pending_tasks();
            assert!(tools.of(&large).is_some(), "{n}");
            assert!(tools.known.weighted_size() <= ANNOTATION_BYTES_MAX);
        }
        let plain = json!({ "tools": [{ "name": "tool-0", "inputSchema": {} }] });
        tools.insert(&page(["tool-0".to_owned()].into_iter()));
        tools.insert(&Object::of(&Payload::of(&plain)).unwrap());
        assert!(tools.of("tool-0").is_none(), "it has none any more");
    }
}
