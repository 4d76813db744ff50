//! Filters questions that a session client cannot handle (U31, U32): those that it did not declare or its version
//! lacks, and unsafe URLs. The server gets the same answer as for a task's question.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Body as _;

use crate::dialect::faults::gateway_error;
use crate::dialect::plain;
use crate::dialect::session_results::{client_capabilities, question_params};
use crate::face::session::SessionFaceState;
use crate::face::session::session_cache::ClientSession;
use crate::metric;
use crate::task::{Answer, Executed, GatewayFault, Reason};
use crate::upstream::body::{PartlyReadBody, watched};
use crate::upstream::raw_channel::RawBody;
use crate::upstream::reply;
use crate::wire::envelope::{EnvelopeError, Params, Request, Response, is_batch, split_batch};
use crate::wire::framing::{BodyPart, FramingError, MessageClass, MessageClassifier};
use crate::wire::{
    Message, MessageText, Object, Payload, RequestId, RpcError, ScanLimits, envelope, method, rpc_error,
};

#[derive(Clone, Debug)]
pub(super) struct ClientFilter {
    shared: Arc<SessionFaceState>,
    session: ClientSession,
    tool: Option<Arc<str>>,
}

enum FilteredMessage {
    Same,
    Other(Bytes),
    Nothing,
}

impl ClientFilter {
    pub(super) const fn new(shared: Arc<SessionFaceState>, session: ClientSession) -> Self {
        Self { shared, session, tool: None }
    }

    pub(super) fn of_call(self, tool: Option<Arc<str>>) -> Self {
        Self { tool, ..self }
    }

    pub(super) fn record_tools(&self, message: &MessageText) {
        if let Some(Message::Response(Response { result: Some(list), .. })) =
            message.read(ScanLimits::UPSTREAM).ok().as_deref()
        {
            self.shared.record_tools(&self.session, list);
        }
    }

    /// Usually unchanged; `None` if nothing remains.
    pub(super) fn text(&self, text: MessageText) -> Option<MessageText> {
        let is_read = text.message().is_some();
        if !is_read
            && matches!(MessageClassifier::default().feed(&text), MessageClass::Harmless | MessageClass::Nothing)
        {
            return Some(text);
        }
        if is_read || !is_batch(&text) {
            return match self.message(&text) {
                FilteredMessage::Same => Some(text),
                FilteredMessage::Other(other) => Some(other.into()),
                FilteredMessage::Nothing => None,
            };
        }
        let Ok(messages) = split_batch(&text, ScanLimits::UPSTREAM, envelope::BATCH_READ_MAX) else {
            self.unreadable(None);
            return None;
        };
        let (mut is_same, mut left) = (true, Vec::with_capacity(messages.len()));
        for message in messages.into_iter().map(MessageText::from) {
            match self.message(&message) {
                FilteredMessage::Same => left.push(message.into_bytes()),
                FilteredMessage::Other(other) => {
                    is_same = false;
                    left.push(other);
                }
                FilteredMessage::Nothing => is_same = false,
            }
        }
        if is_same { Some(text) } else { envelope::batch(&left).map(MessageText::from) }
    }

    pub(super) fn withholds_updates(&self) -> bool {
        self.shared.served.access_of(&self.session.own.caller).narrows_others()
    }

    /// The message without updates of resources that the session's caller may not use now; `None` if nothing remains.
    pub(super) fn without_updates(&self, text: MessageText) -> Option<MessageText> {
        let is_withheld = |text: &MessageText| {
            text.read(ScanLimits::UPSTREAM).is_ok_and(|message| match &*message {
                Message::Notification(notification) => {
                    let (caller, params) = (&self.session.own.caller, notification.params.object());
                    !self.shared.served.may_see(caller, &notification.method, params)
                }
                Message::Request(_) | Message::Response(_) => false,
            })
        };
        if !is_batch(&text) {
            return Some(text).filter(|text| !is_withheld(text));
        }
        let messages = split_batch(&text, ScanLimits::UPSTREAM, envelope::BATCH_READ_MAX).ok()?;
        let count = messages.len();
        let left = messages.into_iter().map(MessageText::from).filter(|message| !is_withheld(message));
        let left: Vec<_> = left.map(MessageText::into_bytes).collect();
        if left.len() == count { Some(text) } else { envelope::batch(&left).map(MessageText::from) }
    }

    fn message(&self, text: &MessageText) -> FilteredMessage {
        match text.read(ScanLimits::UPSTREAM) {
            Ok(message) => self.filtered(&message),
            Err(EnvelopeError::Scan { id, .. } | EnvelopeError::Shape { id, .. }) => {
                let mut look = MessageClassifier::default();
                let is_fault = look.feed(text) == MessageClass::Failing;
                if is_fault && memchr::memmem::find(text, b"elicitation").is_none() {
                    return FilteredMessage::Same;
                }
                if look.is_answer_alone() {
                    return self.unreadable_answer(id);
                }
                self.unreadable(id)
            }
            // No version allows a batch within a batch.
            Err(EnvelopeError::Batch) => self.unreadable(None),
        }
    }

    fn filtered(&self, message: &Message) -> FilteredMessage {
        match message {
            Message::Request(request) => self.request(request),
            // Some readers check only the method.
            Message::Notification(notification) if is_question(&notification.method) => {
                self.shared.own.dropped("question_without_id");
                FilteredMessage::Nothing
            }
            Message::Response(Response { id: Some(id), outcome: Err(error), .. }) => match plain::unfit(error) {
                Some(instead) => {
                    self.shared.own.dropped("question_refused");
                    FilteredMessage::Other(envelope::error(Some(id), &instead))
                }
                None => FilteredMessage::Same,
            },
            Message::Notification(_) | Message::Response(_) => FilteredMessage::Same,
        }
    }

    fn request(&self, request: &Request) -> FilteredMessage {
        if !is_question(&request.method) {
            return FilteredMessage::Same;
        }
        let filtered = self.request_within(request, &self.session.token.capabilities);
        if matches!(filtered, FilteredMessage::Same) {
            self.shared.open.forwarded_questions.note(&self.session, &request.id, self.tool.as_ref());
            return self.in_clients_version(request);
        }
        filtered
    }

    /// A newer server's question as the client's version has it (GW-05); unchanged if that has no such form.
    fn in_clients_version(&self, request: &Request) -> FilteredMessage {
        let (client, server) = (self.session.token.client_version, self.session.token.upstream_version);
        let Some(params) = request.params.object().filter(|_| client < server) else { return FilteredMessage::Same };
        match question_params(&request.method, params, client, "") {
            Some(older) if older.as_str() != params.payload().as_str() => {
                FilteredMessage::Other(envelope::request(&request.id, &request.method, Some(&older)))
            }
            Some(_) | None => FilteredMessage::Same,
        }
    }

    /// Refuses the questions in a text for a client that accepts no stream.
    pub(super) fn refuse_questions(&self, text: &MessageText) {
        for message in text.read_all(ScanLimits::UPSTREAM, envelope::BATCH_READ_MAX).into_iter().flatten().flatten() {
            if let Message::Request(request) = message
                && is_question(&request.method)
            {
                self.request_within(&request, &Payload::empty_object());
            }
        }
    }

    /// Refuses a question that a client with these capabilities may not be asked.
    fn request_within(&self, request: &Request, capabilities: &Payload) -> FilteredMessage {
        let declared = client_capabilities(capabilities, self.session.token.client_version);
        let declared = Object::of(&declared).expect("a written object is one");
        let params = match &request.params {
            Params::Absent => None,
            Params::Object(object) => Some(object.payload()),
            Params::Other(payload) => Some(payload),
        };
        let Some(refused) = plain::forbidden(&declared, &request.method, params) else {
            return FilteredMessage::Same;
        };
        let upstream = Arc::clone(self.shared.served.channel.name());
        if self.shared.refusals_logged.is_due() {
            tracing::warn!(%upstream, method = &*request.method, "a server's question was refused: the session client cannot answer it");
        }
        metrics::counter!(metric::QUESTIONS, "upstream" => upstream, "result" => "refused").increment(1);
        let answer = match refused {
            Answer::Result(result) => envelope::result(&request.id, &result),
            Answer::Error(error) => envelope::error(Some(&request.id), &error),
        };
        self.shared.own.reply(&self.session.own, answer);
        FilteredMessage::Nothing
    }

    /// A response that readers interpret differently: the request ends with an error, so that the client does not wait.
    fn unreadable_answer(&self, id: Option<RequestId>) -> FilteredMessage {
        self.shared.own.dropped("answer_unreadable");
        let Some(id) = id else { return FilteredMessage::Nothing };
        let fault = GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes);
        FilteredMessage::Other(envelope::error(Some(&id), &gateway_error(&fault)))
    }

    /// An unreadable text, which some readers may take for a question.
    fn unreadable(&self, id: Option<RequestId>) -> FilteredMessage {
        self.shared.own.dropped("question_unreadable");
        if let Some(id) = id {
            let error = RpcError::new(rpc_error::INVALID_REQUEST, "this cannot be read as one message");
            self.shared.own.reply(&self.session.own, envelope::error(Some(&id), &error));
        }
        FilteredMessage::Nothing
    }
}

fn is_question(name: &str) -> bool {
    matches!(name, method::ELICIT | method::SAMPLE | method::ROOTS)
}

pub(super) enum PeekedAnswer {
    Whole(Bytes),
    Plain(RawBody),
    /// Must be read as a whole first.
    Odd(RawBody),
}

/// The most bytes of a JSON body before the member that shows its kind.
const LEAD_BYTES_MAX: usize = 64 * 1024;

/// Reads a JSON body until its kind is known. An error if it breaks off before, or exceeds [`LEAD_BYTES_MAX`].
pub(super) async fn opened(mut body: RawBody) -> Result<PeekedAnswer, GatewayFault> {
    let (mut parts, mut classifier, mut length) = (VecDeque::new(), MessageClassifier::default(), 0);
    let mut shows = MessageClass::Nothing;
    while shows == MessageClass::Nothing {
        let Some(piece) = reply::next_data(&mut body).await? else { break };
        length += piece.len();
        shows = classifier.feed(&piece);
        if shows == MessageClass::Harmless && parts.is_empty() && body.is_end_stream() {
            return Ok(PeekedAnswer::Whole(piece));
        }
        parts.push_back(BodyPart::Bytes(piece));
        if shows == MessageClass::Nothing && length > LEAD_BYTES_MAX {
            return Err(GatewayFault::new(Reason::ResultTooLarge, Executed::Yes));
        }
    }
    if shows != MessageClass::Harmless {
        return Ok(PeekedAnswer::Odd(RawBody::new(PartlyReadBody { parts, rest: body })));
    }
    // Breaks off if the body is more than a response.
    let rest = watched(body, move |bytes| match classifier.feed(bytes) {
        MessageClass::Harmless => Ok(()),
        MessageClass::Nothing | MessageClass::Failing | MessageClass::Asking => Err(FramingError::TwoMessagesInOne),
    });
    Ok(PeekedAnswer::Plain(RawBody::new(PartlyReadBody { parts, rest })))
}
