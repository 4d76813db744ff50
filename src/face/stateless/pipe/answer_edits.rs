//! Edits responses of a server without sessions: seals states, edits tool lists and the server's description, and
//! replaces errors about the gateway's own request. Removes types of results, event ids, requests and notifications that
//! the protocol version does not have or the client did not ask for (U56, U57, U58). All else is unchanged.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use hyper::body::Body as _;

use super::about_us;
use crate::answer_budget::FREE_BYTES;
use crate::dialect::RequestError;
use crate::dialect::faults::gateway_error;
use crate::dialect::lifecycle::{CacheReaders, names_hints, with_required};
use crate::dialect::negotiate::StatelessRequest;
use crate::dialect::plain;
use crate::dialect::relay_ext_tasks::{StatelessResult, answered};
use crate::dialect::subscriptions::SubscriptionFilter;
use crate::face::call_stream::request_answer::RequestAnswer;
use crate::face::fallback::FallbackListing;
use crate::face::http::{AcceptedTypes, full_body};
use crate::face::pipe::forward::{OpenedAnswer, PipeEra, ResponseEdits};
use crate::face::reachable_tools::ReachableTools;
use crate::face::rewrite;
use crate::face::sealed::{Sealer, StateContent, StateScope, StateToken};
use crate::face::served::Served;
use crate::face::unmatched_rules::UnmatchedRules;
use crate::metric;
use crate::task::{Caller, Clock, Executed, GatewayFault, Principal, Reason};
use crate::upstream::Upstream;
use crate::upstream::body::{PartlyReadBody, edited_events, watched};
use crate::upstream::raw_channel::RawBody;
use crate::upstream::reply;
use crate::wire::framing::{
    BodyPart, EventGate, FramingError, HoldPolicy, MessageClass, MessageClassifier, PrimerPolicy, SseEvent,
};
use crate::wire::{
    Message, MessageText, Notification, Object, Payload, RequestId, RpcError, ScanLimits, envelope, method,
};

/// The part of a response that is searched for questions: a response names them early, so one without a sign of them is
/// forwarded in any size. The state of a question that was missed does not open.
const SNIFF_BYTES_MAX: usize = 256 * 1024;

/// Signs of a question in a large event, of an error about the gateway's own request, or of one that names an address.
const MARKS: [&[u8]; 5] = [b"requestState", b"inputRequests", b"input_required", b"-3202", b"-32042"];

fn asks(result: &Object) -> bool {
    result.get_str("resultType").is_some_and(|kind| kind == "input_required")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EditTarget {
    Discovery,
    ToolList,
    /// Prompts, resources or resource templates, some of which are withheld.
    ItemList,
    /// A result that only its caller may keep.
    Private,
    Other,
}

impl EditTarget {
    pub(super) fn of(name: &str, tools: &ReachableTools, readers: CacheReaders) -> Self {
        match name {
            method::DISCOVER => Self::Discovery,
            method::TOOLS_LIST => Self::ToolList,
            name if tools.narrow_list_of(name) => Self::ItemList,
            _ if readers == CacheReaders::Caller => Self::Private,
            _ => Self::Other,
        }
    }
}

/// Computed on demand: few requests have a state.
pub(super) struct StateBinding {
    pub(super) upstream: Arc<str>,
    pub(super) principal: Principal,
    pub(super) method: Cow<'static, str>,
    pub(super) params: Object,
}

impl StateBinding {
    pub(super) fn scope(&self) -> StateScope {
        StateScope::of(&self.upstream, &self.principal, &self.method, &self.params)
    }
}

/// Outlives the rights at its beginning: each update of a resource is judged by the rights at that moment (SEC-48).
pub(super) struct PipedSubscription {
    pub(super) wishes: SubscriptionFilter,
    pub(super) caller: Caller,
    pub(super) served: Arc<Served>,
}

pub(super) struct AnswerEdits {
    pub(super) id: RequestId,
    pub(super) aim: EditTarget,
    pub(super) readers: CacheReaders,
    pub(super) asker: StateBinding,
    pub(super) server: Arc<dyn Upstream>,
    pub(super) sealer: Arc<Sealer>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metadata: StatelessRequest,
    /// `None` for other requests than `subscriptions/listen`.
    pub(super) subscription: Option<PipedSubscription>,
    pub(super) unmatched_rules: Arc<UnmatchedRules>,
    pub(super) fallback: Option<FallbackListing>,
    pub(super) tools: ReachableTools,
}

pub(super) struct ClassifiedMessage {
    text: Bytes,
    classifier: MessageClassifier,
}

impl ClassifiedMessage {
    pub(super) fn of(text: Bytes) -> Self {
        let mut classifier = MessageClassifier::default();
        classifier.feed(&text);
        Self { text, classifier }
    }
}

impl AnswerEdits {
    /// The message for the client, or the error in its place.
    fn edited(&self, ClassifiedMessage { text, classifier }: ClassifiedMessage) -> Result<Bytes, RpcError> {
        let text = match self.aim {
            EditTarget::Discovery => rewrite::discovery(&text, &self.id).unwrap_or(text),
            EditTarget::ToolList => {
                self.unmatched_rules.look_at_answer(&text);
                let text = rewrite::tool_list(&text, &self.id, None).unwrap_or(text);
                let fallback = self.fallback.as_ref().and_then(|fallback| fallback.listed_in(&text, &self.id));
                let text = fallback.unwrap_or(text);
                self.tools.listed_in(&text).unwrap_or(text)
            }
            EditTarget::ItemList => self.tools.listed_in(&text).unwrap_or(text),
            EditTarget::Private | EditTarget::Other => text,
        };
        if !may_be_edited(&classifier) && (!classifier.is_answer_alone() || self.has_required(&text, &classifier)) {
            return Ok(text);
        }
        let response = match envelope::read(&text, ScanLimits::UPSTREAM) {
            Ok(Message::Response(response)) if response.id.as_ref() == Some(&self.id) => response,
            // Readers may differ about it: some may find a question or a handle.
            Err(_) if classifier.may_ask() && classifier.id().is_none_or(|id| id == self.id) => {
                return Err(malformed(Executed::Yes));
            }
            Ok(_) | Err(_) => return Ok(text),
        };
        if response.result.as_ref().is_some_and(asks) {
            self.server.asked_in_result();
        }
        match (&response.outcome, &response.result) {
            (Err(error), _) => self.error(error).map_or(Ok(text), Err),
            (Ok(_), Some(result)) => {
                let edited = self.result(result)?;
                Ok(edited.map_or(text, |edited| envelope::result(&self.id, &edited)))
            }
            (Ok(_), None) => Err(malformed(Executed::Yes)),
        }
    }

    fn has_required(&self, text: &[u8], classifier: &MessageClassifier) -> bool {
        let is_stated = self.readers == CacheReaders::AsStated;
        is_stated && classifier.is_complete() && names_hints(&self.asker.method, text)
    }

    /// A question that the client did not declare is 400, as from the server itself (MOD-10).
    fn answer(&self, era: &impl PipeEra, message: ClassifiedMessage, original: &[u8]) -> RequestAnswer {
        match self.edited(message) {
            Ok(text) if text.len() > FREE_BYTES => {
                RequestAnswer::Json(full_body(era.read_limits().rehold_edited(text, original)))
            }
            Ok(text) => RequestAnswer::Json(full_body(text)),
            Err(instead) if instead.code == self.metadata.version.traits().missing_capability => {
                RequestAnswer::Refused(StatusCode::BAD_REQUEST, instead)
            }
            Err(instead) => RequestAnswer::Error(instead),
        }
    }

    /// The result that replaces the server's, if it changes. Checked like a result of the gateway's own call (UPC-09).
    fn result(&self, result: &Object) -> Result<Option<Payload>, RpcError> {
        if let Some(instead) = self.unfit(result) {
            let upstream = Arc::clone(&self.asker.upstream);
            metrics::counter!(metric::QUESTIONS, "upstream" => upstream, "result" => "refused").increment(1);
            return Err(instead);
        }
        match answered(&self.asker.method, result.payload()) {
            StatelessResult::Complete => Ok(with_required(&self.asker.method, result, self.readers)),
            StatelessResult::Round(round) if round.requests.is_some() || round.state.is_some() => {
                self.sealed(result).transpose().map_err(|fault| gateway_error(&fault))
            }
            StatelessResult::Round(_) => Err(malformed(Executed::Unknown)),
            StatelessResult::Misplaced if self.has_type_of_extension(result) => Ok(None),
            StatelessResult::Task(_) | StatelessResult::Misplaced | StatelessResult::Malformed => {
                Err(malformed(Executed::Yes))
            }
        }
    }

    /// Whether the type of a result may be of an extension that the client declared (MOD-11).
    fn has_type_of_extension(&self, result: &Object) -> bool {
        let kind = result.get_string("resultType");
        self.metadata.declares_other_extensions()
            && kind.is_some_and(|kind| !["task", "input_required"].contains(&kind.as_str()))
    }

    /// Finds a question behind the part of a response that is searched. The type of an extension is none for its client.
    fn may_ask_late(&self) -> fn(&MessageClassifier) -> bool {
        match self.metadata.declares_other_extensions() {
            true => MessageClassifier::may_ask_beyond_extensions,
            false => MessageClassifier::may_ask,
        }
    }

    pub(super) fn error(&self, error: &RpcError) -> Option<RpcError> {
        plain::unfit(error).or_else(|| about_us(error, &self.metadata))
    }

    /// The error for a question that the client cannot answer (U31, U32): a missing capability (MOD-10), or invalid.
    fn unfit(&self, result: &Object) -> Option<RpcError> {
        let mut undeclared = Vec::new();
        // Some readers ignore the case of a name.
        for (_, requests) in result.entries().filter(|(name, _)| name.eq_ignore_ascii_case("inputRequests")) {
            let Some(requests) = Object::of(&requests) else { continue };
            for (_, question) in requests.entries() {
                match self.judge(&question) {
                    QuestionFitness::Fits => (),
                    QuestionFitness::Undeclared => undeclared.push(question),
                    QuestionFitness::Unfit => return Some(malformed(Executed::Unknown)),
                }
            }
        }
        let missing = self.metadata.missing(&undeclared)?;
        Some(RequestError::Capability(missing).to_error(self.metadata.version))
    }

    fn judge(&self, question: &Payload) -> QuestionFitness {
        let Some(object) = Object::of(question) else { return QuestionFitness::Unfit };
        let Some(name) = object.get_string("method") else { return QuestionFitness::Unfit };
        match plain::forbidden(self.metadata.declared(), &name, object.get("params").as_ref()) {
            None => QuestionFitness::Fits,
            Some(_) if self.metadata.missing([question]).is_some() => QuestionFitness::Undeclared,
            Some(_) => QuestionFitness::Unfit,
        }
    }

    /// A result with questions, its state sealed (T-24); `None` without questions or state.
    fn sealed(&self, result: &Object) -> Option<Result<Payload, GatewayFault>> {
        let own = result.get("requestState").filter(|_| asks(result))?;
        let bytes = own.bytes().len();
        let content = StateContent::Upstream(Some(own));
        let token = StateToken { scope: self.asker.scope(), issued_at: self.clock.now(), content };
        Some(match self.sealer.seal_state(&token) {
            Some(sealed) => Ok(result.edit().set("requestState", Payload::of(&sealed)).finish()),
            None => {
                tracing::warn!(bytes, "the upstream's requestState is too long for the gateway's own");
                Err(GatewayFault::new(Reason::ResultTooLarge, Executed::Unknown))
            }
        })
    }

    /// Whether a message is not for the client: it may be taken for a server's own request, which 2026-07-28 does not
    /// have (MOD-18), or is a notification that this request gets none of. Counts it.
    pub(super) fn is_stray(&self, ClassifiedMessage { text, classifier }: &ClassifiedMessage) -> bool {
        if !classifier.may_be_request() {
            return false;
        }
        let reason = match envelope::read(text, ScanLimits::UPSTREAM) {
            Ok(Message::Response(_)) => return false,
            Ok(Message::Notification(told)) if self.admits(&told) => return !self.may_see(&told),
            Ok(Message::Notification(_)) => "stray_notification",
            Ok(Message::Request(_)) | Err(_) => "stray_request",
        };
        metric::count_dropped(&self.asker.upstream, reason);
        true
    }

    fn admits(&self, told: &Notification) -> bool {
        let params = told.params.object();
        match &self.subscription {
            Some(subscription) => subscription.wishes.admits(&told.method, params),
            None => self.metadata.admits(&told.method, params),
        }
    }

    fn may_see(&self, told: &Notification) -> bool {
        let params = told.params.object();
        self.subscription.as_ref().is_none_or(|own| own.served.may_see(&own.caller, &told.method, params))
    }

    /// For a client without batches: of a batch only the response to its request.
    pub(super) fn alone(&self, message: ClassifiedMessage) -> ClassifiedMessage {
        if !envelope::is_batch(&message.text) {
            return message;
        }
        let Some(answer) = reply::answer_in(&message.text, &self.id) else { return message };
        ClassifiedMessage::of(answer.under(&self.id))
    }

    /// Empty if the event is not for the client. Some clients take an event with any name for a message.
    fn event(&self, event: &SseEvent) -> Vec<MessageText> {
        let message = self.alone(ClassifiedMessage::of(Bytes::clone(&event.data)));
        if self.is_stray(&message) {
            return Vec::new();
        }
        let acknowledged = self.acknowledged(&message);
        let edited = || self.edited(message).unwrap_or_else(|instead| envelope::error(Some(&self.id), &instead));
        vec![acknowledged.unwrap_or_else(edited).into()]
    }

    /// A subscription's acknowledgement with the resources that its client asked for and may use (SEC-48); else `None`.
    fn acknowledged(&self, ClassifiedMessage { text, classifier }: &ClassifiedMessage) -> Option<Bytes> {
        let subscription = self.subscription.as_ref().filter(|_| classifier.may_be_request())?;
        let access = subscription.served.access_of(&subscription.caller);
        if !access.narrows_others() {
            return None;
        }
        let Ok(Message::Notification(notification)) = envelope::read(text, ScanLimits::UPSTREAM) else { return None };
        let params = notification.params.object().filter(|_| notification.method == method::LISTEN_ACKNOWLEDGED)?;
        let granted = params.get_object("notifications")?;
        let uris = granted.get("resourceSubscriptions")?;
        let is_shown = |uri: &String| subscription.wishes.want_updates_of(uri) && access.has_resource(uri);
        let shown: Vec<String> = uris.items().filter_map(|uri| uri.read().ok()).filter(is_shown).collect();
        let granted = granted.edit().set("resourceSubscriptions", Payload::of(&shown)).finish();
        Some(envelope::notification(&notification.method, Some(&params.edit().set("notifications", granted).finish())))
    }

    fn alone_and_edited(&self, era: &impl PipeEra, message: ClassifiedMessage) -> Result<OpenedAnswer, GatewayFault> {
        let original = if message.text.len() > FREE_BYTES { message.text.clone() } else { Bytes::new() };
        let message = self.alone(message);
        if self.is_stray(&message) {
            return Err(GatewayFault::new(Reason::UpstreamMalformed, Executed::Unknown));
        }
        Ok(OpenedAnswer::Whole(self.answer(era, message, &original)))
    }
}

impl<E: PipeEra + Sync> ResponseEdits<E> for Box<AnswerEdits> {
    fn events(self, era: &E, source: RawBody) -> RawBody {
        let limits = era.read_limits();
        let gate = EventGate::new(PrimerPolicy::Unnumbered, HoldPolicy::Messages, limits.bytes_max);
        let gate = match self.aim {
            EditTarget::Discovery | EditTarget::ToolList | EditTarget::ItemList | EditTarget::Private => gate,
            // It yields each notification whole, and so each update of a resource (SEC-48).
            EditTarget::Other => gate.filtering(SNIFF_BYTES_MAX, is_of_interest, self.may_ask_late()),
        };
        edited_events(source, gate, limits.share, move |event| self.event(event))
    }

    async fn open(&self, era: &E, mut body: RawBody, _: AcceptedTypes) -> Result<OpenedAnswer, GatewayFault> {
        let whole = |text| self.alone_and_edited(era, ClassifiedMessage::of(text));
        if self.aim != EditTarget::Other {
            return whole(reply::read_whole(body, &era.read_limits()).await?);
        }
        let (mut pieces, mut classifier, mut length) = (VecDeque::new(), MessageClassifier::default(), 0);
        while length < SNIFF_BYTES_MAX {
            match reply::next_data(&mut body).await? {
                Some(text) if pieces.is_empty() && body.is_end_stream() => {
                    classifier.feed(&text);
                    return self.alone_and_edited(era, ClassifiedMessage { text, classifier });
                }
                Some(piece) => {
                    length += piece.len();
                    classifier.feed(&piece);
                    pieces.push_back(piece);
                }
                None if pieces.len() == 1 => {
                    let text = pieces.pop_front().unwrap_or_default();
                    return self.alone_and_edited(era, ClassifiedMessage { text, classifier });
                }
                None => {
                    let text = era.read_limits().rehold(joined(&pieces));
                    return self.alone_and_edited(era, ClassifiedMessage { text, classifier });
                }
            }
        }
        let is_answer = !classifier.may_be_request() && classifier.shows() != MessageClass::Nothing;
        if is_answer && !may_be_edited(&classifier) {
            // Breaks off if the response asks a question.
            let may_ask = self.may_ask_late();
            let rest = watched(body, move |bytes| {
                classifier.feed(bytes);
                if may_ask(&classifier) { Err(FramingError::AsksTooLate) } else { Ok(()) }
            });
            let parts = pieces.into_iter().map(BodyPart::Bytes).collect();
            return Ok(OpenedAnswer::Through(RawBody::new(PartlyReadBody { parts, rest })));
        }
        let parts = pieces.into_iter().map(BodyPart::Bytes).collect();
        whole(reply::read_whole(PartlyReadBody { parts, rest: body }, &era.read_limits()).await?)
    }

    fn whole(&self, era: &E, text: Bytes, _: AcceptedTypes) -> Result<RequestAnswer, GatewayFault> {
        Ok(self.answer(era, ClassifiedMessage::of(text.clone()), &text))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuestionFitness {
    Fits,
    /// The client would have to declare more.
    Undeclared,
    /// No client can.
    Unfit,
}

/// Whether a message is an error, or a result that may have a question, a state or another type.
const fn may_be_edited(classifier: &MessageClassifier) -> bool {
    let may_be_other = classifier.may_ask() && !classifier.has_method();
    !matches!(classifier.shows(), MessageClass::Harmless) || classifier.has_state() || may_be_other
}

fn malformed(executed: Executed) -> RpcError {
    gateway_error(&GatewayFault::new(Reason::UpstreamMalformed, executed))
}

fn is_of_interest(text: &[u8]) -> bool {
    MARKS.iter().any(|mark| memchr::memmem::find(text, mark).is_some())
}

fn joined(pieces: &VecDeque<Bytes>) -> Bytes {
    let mut whole = Vec::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
    whole.into()
}
