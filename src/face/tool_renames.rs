//! Translates tool names between clients and an upstream, and edits listed tools. Faces, policies, tasks and tokens use
//! a tool's client-facing name; the upstream uses its own. A tool with split calls is listed without its output schema,
//! which cannot describe both results. Absent if no tool is hidden, renamed or split.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

use super::headers;
use super::http::full_body;
use super::unmatched_rules::UnmatchedRules;
use crate::dialect::RequestError;
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::task::{Executed, GatewayFault, Principal, PublishedName, Reason, ToolNames, ToolRules};
use crate::upstream::answer_body::BodyKind;
use crate::upstream::body::edited_events;
use crate::upstream::exchange::{EraLookup, NotificationResult, SubscriptionResult};
use crate::upstream::header_annotations::encode;
use crate::upstream::raw_channel::{RawChannel, RawMethod, RawRequest, RawResponse};
use crate::upstream::reply::{self, ReadLimits};
use crate::upstream::upstream_health::UpstreamHealth;
use crate::upstream::{
    Answer, BeginError, CallContext, Era, Exchange, ExchangeError, ExchangeEvent, ForwardedHeaders, Handshake,
    OwnSessionChannel, ResumeToken, SessionLease, Upstream, UpstreamRequest,
};
use crate::wire::envelope::{Request, is_batch, split_batch};
use crate::wire::framing::{EventGate, HoldPolicy, PrimerPolicy};
use crate::wire::{
    Message, MessageText, Object, Payload, ProtocolVersion, RequestId, RpcError, ScanLimits, envelope, method,
};

const OUTPUT_SCHEMA: &str = "outputSchema";

#[derive(Debug)]
pub struct ToolRenamer {
    names: ToolNames,
    /// Rules by the client-facing names.
    rules: ToolRules,
    upstream: Arc<str>,
    /// Rules by the server's names.
    unmatched_rules: UnmatchedRules,
    bytes_max: usize,
    /// Whether a name conflict of two tools was logged.
    has_warned: AtomicBool,
}

enum RenamedCall {
    As(String, Payload),
    Unknown,
    /// The name is the upstream's, or missing, which the upstream reports.
    AsItIs,
}

impl ToolRenamer {
    /// `None` if every tool is listed unchanged.
    pub fn new(names: ToolNames, rules: &ToolRules, upstream: Arc<str>, bytes_max: usize) -> Option<Arc<Self>> {
        let is_needed = !names.are_kept() || rules.any_is_split();
        is_needed.then(|| {
            let unmatched_rules = UnmatchedRules::new(&upstream, names.patterns());
            let rules = rules.clone();
            Arc::new(Self { names, rules, upstream, unmatched_rules, bytes_max, has_warned: AtomicBool::new(false) })
        })
    }

    pub fn upstream(renamer: Option<&Arc<Self>>, inner: Arc<dyn Upstream>) -> Arc<dyn Upstream> {
        match renamer {
            Some(renamer) => Arc::new(RenamingUpstream { inner, renamer: Arc::clone(renamer) }),
            None => inner,
        }
    }

    /// The channel for forwarded messages as clients see it.
    pub fn channel(renamer: Option<&Arc<Self>>, inner: Arc<dyn OwnSessionChannel>) -> Arc<dyn OwnSessionChannel> {
        match renamer {
            Some(renamer) => Arc::new(RenamingChannel { inner, renamer: Arc::clone(renamer) }),
            None => inner,
        }
    }

    fn called(&self, params: Option<&Object>) -> RenamedCall {
        let Some((params, name)) = params.and_then(|params| Some((params, params.get_string("name")?))) else {
            return RenamedCall::AsItIs;
        };
        match self.names.own(&name) {
            Some(own) if *own == *name => RenamedCall::AsItIs,
            Some(own) => {
                let renamed = params.edit().set("name", Payload::of(&*own)).finish();
                RenamedCall::As(own.into_owned(), renamed)
            }
            None => RenamedCall::Unknown,
        }
    }

    /// The list for clients; `None` if nothing changes.
    fn listed(&self, result: &Object) -> Option<Payload> {
        self.unmatched_rules.look_at(result);
        let tools = result.get("tools")?;
        let mut changed = false;
        let mut shown = Vec::new();
        for tool in tools.items() {
            let object = Object::of(&tool);
            let own = object.as_ref().and_then(|object| object.get_string("name"));
            match (object, own.as_deref().map(|own| self.names.shown(own))) {
                (Some(object), Some(PublishedName::Name(name)))
                    if own.as_deref() != Some(&*name) || self.loses_schema(&object, &name) =>
                {
                    changed = true;
                    let edit = object.edit().set("name", Payload::of(&*name));
                    let edit = if self.loses_schema(&object, &name) { edit.remove(OUTPUT_SCHEMA) } else { edit };
                    shown.push(edit.finish());
                }
                (_, Some(PublishedName::Nothing)) => changed = true,
                (_, Some(PublishedName::Taken(name))) => {
                    changed = true;
                    self.warn(own.as_deref().unwrap_or_default(), &name);
                }
                (_, Some(PublishedName::Name(_)) | None) => shown.push(tool),
            }
        }
        changed.then(|| result.edit().set("tools", Payload::of(&shown)).finish())
    }

    fn loses_schema(&self, tool: &Object, name: &str) -> bool {
        self.rules.split_of(name).is_some() && tool.contains(OUTPUT_SCHEMA)
    }

    /// Warns once per upstream: lists are read often.
    fn warn(&self, tool: &str, name: &str) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(upstream = %self.upstream, tool, name, "a tool is hidden: another tool has its name");
        }
    }

    /// A message for clients, edited if it is a tool list.
    fn message(&self, text: Bytes) -> Bytes {
        if is_batch(&text) {
            let Ok(messages) = split_batch(&text, ScanLimits::UPSTREAM, envelope::BATCH_READ_MAX) else { return text };
            let edited: Vec<Bytes> = messages.iter().map(|message| self.message(message.clone())).collect();
            return if edited == messages { text } else { envelope::batch(&edited).unwrap_or(text) };
        }
        let Ok(Message::Response(response)) = envelope::read(&text, ScanLimits::UPSTREAM) else { return text };
        match (response.id, response.result.as_ref().and_then(|result| self.listed(result))) {
            (Some(id), Some(listed)) => envelope::result(&id, &listed),
            (Some(_) | None, _) => text,
        }
    }

    async fn answer(self: Arc<Self>, response: RawResponse) -> Result<RawResponse, GatewayFault> {
        if !response.status.is_success() {
            return Ok(response);
        }
        match response.content {
            BodyKind::Json => {
                let text = reply::read_whole(response.body, &ReadLimits::of_bytes(self.bytes_max)).await?;
                Ok(RawResponse { body: full_body(self.message(text)), ..response })
            }
            BodyKind::Events => {
                let gate = EventGate::new(PrimerPolicy::Pass, HoldPolicy::Messages, self.bytes_max);
                let body = edited_events(response.body, gate, None, move |event| match event.is_message() {
                    true => vec![self.message(Bytes::clone(&event.data)).into()],
                    false => vec![event.data.clone()],
                });
                Ok(RawResponse { body, ..response })
            }
            BodyKind::Other => Ok(response),
        }
    }
}

fn unknown_tool(params: Option<&Object>) -> RpcError {
    RequestError::unknown_tool(params).to_error(ProtocolVersion::NEWEST_SESSION)
}

#[derive(Debug)]
struct RenamingUpstream {
    inner: Arc<dyn Upstream>,
    renamer: Arc<ToolRenamer>,
}

#[async_trait]
impl Upstream for RenamingUpstream {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    async fn handshake(&self, context: &CallContext) -> Result<Arc<Handshake>, BeginError> {
        self.inner.handshake(context).await
    }

    async fn begin(&self, request: UpstreamRequest, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        match &*request.method {
            method::TOOLS_CALL => {
                let params = request.params.as_ref().and_then(Object::of);
                match self.renamer.called(params.as_ref()) {
                    RenamedCall::As(_, params) => {
                        self.inner.begin(UpstreamRequest { params: Some(params), ..request }, context).await
                    }
                    RenamedCall::AsItIs => self.inner.begin(request, context).await,
                    RenamedCall::Unknown => Ok(Box::new(UnknownToolExchange(unknown_tool(params.as_ref())))),
                }
            }
            method::TOOLS_LIST => {
                let inner = self.inner.begin(request, context).await?;
                Ok(Box::new(ToolListExchange { inner, renamer: Arc::clone(&self.renamer) }))
            }
            _ => self.inner.begin(request, context).await,
        }
    }

    async fn resume(&self, token: ResumeToken, context: CallContext) -> Result<Box<dyn Exchange>, BeginError> {
        self.inner.resume(token, context).await
    }

    /// Stores the upstream's name of the tool, which remains the called one if the rules change.
    fn stored(&self, params: &Payload) -> Payload {
        match self.renamer.called(Object::of(params).as_ref()) {
            RenamedCall::As(_, own) => own.detached(),
            RenamedCall::AsItIs | RenamedCall::Unknown => params.detached(),
        }
    }

    fn restored(&self, tool: &str, params: &Payload) -> Option<Payload> {
        let named = Object::of(params).and_then(|params| Some((params.get_string("name")?, params)));
        let Some((own, object)) = named else { return Some(params.clone()) };
        let is_same = self.renamer.names.own(tool).is_some_and(|now| *now == *own);
        is_same.then(|| object.edit().set("name", Payload::of(tool)).finish())
    }

    async fn notifications(&self, context: &CallContext) -> NotificationResult {
        self.inner.notifications(context).await
    }

    async fn listen(&self, context: &CallContext, wishes: &SubscriptionFilter) -> SubscriptionResult {
        self.inner.listen(context, wishes).await
    }

    fn era(&self, forwarded: &ForwardedHeaders) -> EraLookup<'_> {
        self.inner.era(forwarded)
    }

    async fn era_for(&self, context: &CallContext) -> Era {
        self.inner.era_for(context).await
    }

    fn asked_in_result(&self) {
        self.inner.asked_in_result();
    }

    fn discard_era(&self) {
        self.inner.discard_era();
    }

    fn end_idle(&self) {
        self.inner.end_idle();
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// The call of a tool that clients do not know: nothing is sent.
struct UnknownToolExchange(RpcError);

#[async_trait]
impl Exchange for UnknownToolExchange {
    async fn next(&mut self) -> ExchangeEvent {
        ExchangeEvent::Faulted(self.0.clone())
    }

    async fn answer(&mut self, _: &Payload, _: Answer) -> Result<(), ExchangeError> {
        Ok(())
    }

    async fn cancel(&mut self, _: &str) {}

    fn resume_token(&self) -> Option<ResumeToken> {
        None
    }
}

struct ToolListExchange {
    inner: Box<dyn Exchange>,
    renamer: Arc<ToolRenamer>,
}

#[async_trait]
impl Exchange for ToolListExchange {
    async fn next(&mut self) -> ExchangeEvent {
        let event = self.inner.next().await;
        let ExchangeEvent::Returned(result) = &event else { return event };
        let listed = Object::of(result).and_then(|object| self.renamer.listed(&object));
        listed.map_or(event, ExchangeEvent::Returned)
    }

    async fn answer(&mut self, ask: &Payload, answer: Answer) -> Result<(), ExchangeError> {
        self.inner.answer(ask, answer).await
    }

    async fn cancel(&mut self, reason: &str) {
        self.inner.cancel(reason).await;
    }

    fn resume_token(&self) -> Option<ResumeToken> {
        self.inner.resume_token()
    }
}

#[derive(Debug)]
struct RenamingChannel {
    inner: Arc<dyn OwnSessionChannel>,
    renamer: Arc<ToolRenamer>,
}

enum RenamedMessage {
    On(MessageText),
    Renamed(String, Bytes),
    /// The call of an unknown tool.
    Nowhere(RequestId, RpcError),
    ForList(MessageText),
}

impl RenamingChannel {
    fn going(&self, text: MessageText) -> Result<RenamedMessage, GatewayFault> {
        // Every message sent here has been parsed before.
        let unreadable = |_| GatewayFault::new(Reason::Internal, Executed::No);
        let message = text.read(ScanLimits::CLIENT).map_err(unreadable)?;
        let Message::Request(request) = &*message else { return Ok(RenamedMessage::On(text)) };
        Ok(match &*request.method {
            method::TOOLS_LIST => RenamedMessage::ForList(text),
            method::TOOLS_CALL => self.call(request, text),
            _ => RenamedMessage::On(text),
        })
    }

    fn call(&self, request: &Request, text: MessageText) -> RenamedMessage {
        match self.renamer.called(request.params.object()) {
            RenamedCall::As(own, params) => {
                RenamedMessage::Renamed(own, envelope::request(&request.id, &request.method, Some(&params)))
            }
            RenamedCall::AsItIs => RenamedMessage::On(text),
            RenamedCall::Unknown => RenamedMessage::Nowhere(request.id.clone(), unknown_tool(request.params.object())),
        }
    }
}

/// Sets the only `Mcp-Name`, at the place of the first one.
fn rename(all: &mut Vec<(HeaderName, HeaderValue)>, own: HeaderValue) {
    let mut own = Some(own);
    all.retain_mut(|(name, value)| *name != headers::NAME || own.take().map(|own| *value = own).is_some());
    all.extend(own.map(|own| (headers::NAME, own)));
}

#[async_trait]
impl RawChannel for RenamingChannel {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn version_for(&self, client: ProtocolVersion) -> ProtocolVersion {
        self.inner.version_for(client)
    }

    fn version_after(&self, asked: ProtocolVersion, refusal: &BeginError) -> Option<ProtocolVersion> {
        self.inner.version_after(asked, refusal)
    }

    async fn send(&self, request: RawRequest) -> Result<RawResponse, GatewayFault> {
        let (message, mut all) = match request.verb {
            RawMethod::Post(message) => (message, None),
            RawMethod::PostWith { message, headers, principal } => (message, Some((headers, principal))),
            // The rest of a stream may contain a list.
            RawMethod::Get { last_event: Some(event) } => {
                let verb = RawMethod::Get { last_event: Some(event) };
                let response = self.inner.send(RawRequest { verb, ..request }).await?;
                return Arc::clone(&self.renamer).answer(response).await;
            }
            verb @ (RawMethod::Note(_) | RawMethod::Get { last_event: None } | RawMethod::Delete) => {
                return self.inner.send(RawRequest { verb, ..request }).await;
            }
        };
        let verb = |message: MessageText, all: Option<(Vec<(HeaderName, HeaderValue)>, Principal)>| match all {
            Some((headers, principal)) => RawMethod::PostWith { message, headers, principal },
            None => RawMethod::Post(message),
        };
        match self.going(message)? {
            RenamedMessage::On(message) => self.inner.send(RawRequest { verb: verb(message, all), ..request }).await,
            RenamedMessage::Renamed(own, message) => {
                // The routed name must be the executed one.
                if let Some(((all, _), own)) = all.as_mut().zip(encode(&own)) {
                    rename(all, own);
                }
                self.inner.send(RawRequest { verb: verb(message.into(), all), ..request }).await
            }
            RenamedMessage::Nowhere(id, error) => Ok(refusal(&id, &error)),
            RenamedMessage::ForList(message) => {
                let response = self.inner.send(RawRequest { verb: verb(message, all), ..request }).await?;
                Arc::clone(&self.renamer).answer(response).await
            }
        }
    }

    fn health(&self) -> Option<&UpstreamHealth> {
        self.inner.health()
    }

    fn makes_streams(&self) -> bool {
        self.inner.makes_streams()
    }

    /// It reads the names of called tools.
    fn reads_messages(&self) -> bool {
        true
    }

    fn hides_tools(&self) -> bool {
        self.renamer.names.hide_some()
    }
}

impl OwnSessionChannel for RenamingChannel {
    fn calls_in(&self, lease: SessionLease) -> Arc<dyn Upstream> {
        ToolRenamer::upstream(Some(&self.renamer), self.inner.calls_in(lease))
    }
}

fn refusal(id: &RequestId, error: &RpcError) -> RawResponse {
    RawResponse {
        status: StatusCode::OK,
        content: BodyKind::Json,
        retry_after: None,
        session: None,
        body: full_body(envelope::error(Some(id), error)),
    }
}
