//! Marks the ids and tokens in servers' messages with the upstream's name, since two servers may use equal ones, and
//! removes the marks from clients' messages. [`admitted`] is a server's only path to the client: it drops responses to,
//! and progress on, requests of others. Pure.

use std::borrow::Cow;

use bytes::Bytes;

use crate::dialect::faults::gateway_error;
use crate::task::digest::{digest, hex};
use crate::task::{Executed, GatewayFault, Reason};
use crate::wire::envelope::{self, BATCH_READ_MAX, Notification, Request, Response, is_batch, split_batch};
use crate::wire::framing::MessageClassifier;
use crate::wire::id::ID_BYTES_MAX;
use crate::wire::meta::{CLIENT_CAPABILITIES, META, PROGRESS_TOKEN, PROTOCOL_VERSION};
use crate::wire::object::ObjectWriter;
use crate::wire::{Message, MessageText, Object, Payload, RequestId, ScanLimits, method};

/// Ends the upstream's name, which never contains it.
const MARK_END: char = ':';
/// Whether the id was a string or a number.
const TEXT: char = 's';
const NUMBER: char = 'n';

/// `None` if the mark makes the id too long.
fn marked(upstream: &str, id: &RequestId) -> Option<RequestId> {
    let text = match id.as_text() {
        Some(text) => format!("{upstream}{MARK_END}{TEXT}{text}"),
        None => format!("{upstream}{MARK_END}{NUMBER}{}", id.as_json()),
    };
    RequestId::from_payload(&Payload::text(&text))
}

/// The upstream of the mark, and the id without it.
pub(super) fn unmarked(id: &RequestId) -> Option<(String, RequestId)> {
    let text = id.as_text()?;
    let (upstream, rest) = text.split_once(MARK_END)?;
    let own = match rest.chars().next()? {
        TEXT => RequestId::text(&rest[1..]),
        NUMBER => RequestId::number(rest[1..].parse().ok()?),
        _ => return None,
    };
    Some((upstream.to_owned(), own))
}

/// The longest id of a server, as JSON text, that leaves room for the mark.
pub(super) const fn request_id_bytes_max(upstream: &str) -> usize {
    ID_BYTES_MAX - upstream.len() - MARK_END.len_utf8() - TEXT.len_utf8()
}

/// The requests that a server has received, for the messages of one stream.
pub(super) trait SentRequests {
    fn may_answer(&self, id: &RequestId) -> bool;

    fn may_report(&self, token: &RequestId, params: &Object) -> bool;

    /// The request that the stream answers, if its id is known.
    fn asked(&self) -> Option<&RequestId>;
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum RefusedMessage {
    /// It is about a request that this server did not receive, or some clients would read it so.
    Unrequested,
    /// A strict reader does not read it as one message. The request that it may have answered ends with an error.
    Unreadable(Option<RequestId>),
    LongId(RequestId),
}

/// Admits a server's message with the client's ids and names; `None` if all of its parts are `refused`.
pub(super) fn admitted(
    upstream: &str,
    sent: &impl SentRequests,
    text: MessageText,
    refused: &mut Vec<RefusedMessage>,
) -> Option<MessageText> {
    if is_batch(&text) {
        return admitted_array(upstream, sent, &text, refused);
    }
    match judged(upstream, sent, &text) {
        Ok(None) => Some(text),
        Ok(Some(edited)) => Some(edited.into()),
        Err(why) => {
            let instead = unreadable_answer(&why);
            refused.push(why);
            instead.map(MessageText::from)
        }
    }
}

/// The response is the same at the server's own path.
fn unreadable_answer(why: &RefusedMessage) -> Option<Bytes> {
    let RefusedMessage::Unreadable(Some(id)) = why else { return None };
    let fault = GatewayFault::new(Reason::UpstreamMalformed, Executed::Yes);
    Some(envelope::error(Some(id), &gateway_error(&fault)))
}

/// Whether `look` has seen a response to a request that this server received, and no request.
pub(super) fn answers_sent_request(sent: &impl SentRequests, look: &MessageClassifier) -> bool {
    !look.may_be_request()
        && !look.has_odd_id()
        && (!look.names_request() || look.id().is_some_and(|id| sent.may_answer(&id)))
}

/// `None` if the message needs no change.
fn judged(upstream: &str, sent: &impl SentRequests, text: &MessageText) -> Result<Option<Bytes>, RefusedMessage> {
    let mut look = MessageClassifier::default();
    if !matches!(text.message(), Some(Message::Request(_) | Message::Notification(_))) {
        // Avoids a full parse of a large result: most messages are responses.
        look.feed(text);
        if answers_sent_request(sent, &look) {
            return Ok(None);
        }
    }
    let unreadable = |_| {
        let named = || look.id().filter(|id| sent.may_answer(id));
        let is_answer = look.is_answer_alone();
        RefusedMessage::Unreadable(is_answer.then(|| sent.asked().cloned().or_else(named)).flatten())
    };
    match &*text.read(ScanLimits::UPSTREAM).map_err(unreadable)? {
        // Some clients check only the method, and would handle the request as a notification.
        Message::Request(request) if request.method.starts_with("notifications/") => Err(RefusedMessage::Unrequested),
        Message::Request(request) => {
            let marked = shown_request(upstream, request);
            marked.map(Some).ok_or_else(|| RefusedMessage::LongId(request.id.clone()))
        }
        Message::Notification(notification) if notification.method == method::PROGRESS => {
            let params = notification.params.object();
            let params = params.filter(|params| params.case_variant(&[PROGRESS_TOKEN]).is_none());
            let token = |params: &Object| RequestId::from_payload(&params.get(PROGRESS_TOKEN)?);
            let is_of_sent_request =
                params.is_some_and(|params| token(params).is_some_and(|token| sent.may_report(&token, params)));
            if is_of_sent_request { Ok(None) } else { Err(RefusedMessage::Unrequested) }
        }
        Message::Notification(notification) if notification.method == method::CANCELLED => {
            shown_cancellation(upstream, notification).map(Some).ok_or(RefusedMessage::Unrequested)
        }
        Message::Notification(_) => Ok(None),
        Message::Response(Response { id: Some(id), .. }) if sent.may_answer(id) => Ok(None),
        Message::Response(_) => Err(RefusedMessage::Unrequested),
    }
}

fn admitted_array(
    upstream: &str,
    sent: &impl SentRequests,
    text: &MessageText,
    refused: &mut Vec<RefusedMessage>,
) -> Option<MessageText> {
    let Ok(items) = split_batch(text, ScanLimits::UPSTREAM, BATCH_READ_MAX) else {
        let why = RefusedMessage::Unreadable(sent.asked().cloned());
        let instead = unreadable_answer(&why);
        refused.push(why);
        return instead.map(MessageText::from);
    };
    let admit = |item: Bytes| admitted(upstream, sent, item.into(), refused).map(MessageText::into_bytes);
    let shown: Vec<_> = items.into_iter().filter_map(admit).collect();
    envelope::batch(&shown).map(MessageText::from)
}

fn shown_request(upstream: &str, request: &Request) -> Option<Bytes> {
    let id = marked(upstream, &request.id)?;
    let params = request.params.object();
    let token = params.and_then(|params| marked_token(upstream, params));
    let written = match (params, token) {
        (Some(_), Some(edited)) => Some(edited),
        (Some(params), None) => Some(params.payload().clone()),
        (None, _) => None,
    };
    Some(envelope::request(&id, &request.method, written.as_ref()))
}

/// `None` without a progress token.
fn marked_token(upstream: &str, params: &Object) -> Option<Payload> {
    let meta = params.get_object(META)?;
    let token = marked(upstream, &RequestId::from_payload(&meta.get(PROGRESS_TOKEN)?)?)?;
    let meta = meta.edit().set(PROGRESS_TOKEN, token.payload()).finish();
    Some(params.edit().set(META, meta).finish())
}

fn shown_cancellation(upstream: &str, notification: &Notification) -> Option<Bytes> {
    let id = marked(upstream, &notification.cancelled()?)?;
    let params = notification.params.object().filter(|params| params.case_variant(&["requestId"]).is_none())?;
    let params = params.edit().set("requestId", id.payload()).finish();
    Some(envelope::notification(&notification.method, Some(&params)))
}

/// A client's response without the mark, and its upstream; `None` without a mark.
pub(super) fn answer(response: &Response) -> Option<(String, Bytes)> {
    let (upstream, id) = unmarked(response.id.as_ref()?)?;
    Some((upstream, response.under(&id)))
}

/// A client's progress without the mark; `None` for other notifications.
pub(super) fn progress(notification: &Notification) -> Option<(String, Bytes)> {
    let params = notification.params.object().filter(|_| notification.method == method::PROGRESS)?;
    let (upstream, token) = unmarked(&RequestId::from_payload(&params.get(PROGRESS_TOKEN)?)?)?;
    let params = params.edit().set(PROGRESS_TOKEN, token.payload()).finish();
    Some((upstream, envelope::notification(method::PROGRESS, Some(&params))))
}

/// Digests of a stream's request and progress token, for its event ids: a resumed stream admits the same messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestMark(String);

impl RequestMark {
    const DIGITS: usize = 16;

    pub(super) fn of(id: &RequestId, token: Option<&RequestId>) -> Self {
        Self([Self::digits(id), token.map(Self::digits).unwrap_or_default()].concat())
    }

    fn read(text: &str) -> Option<Self> {
        let is_mark =
            [Self::DIGITS, 2 * Self::DIGITS].contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
        is_mark.then(|| Self(text.to_owned()))
    }

    fn digits(id: &RequestId) -> String {
        hex(&digest([plain(id).as_bytes()]).0[..Self::DIGITS / 2])
    }

    pub(super) fn names(&self, id: &RequestId) -> bool {
        self.0[..Self::DIGITS] == Self::digits(id)
    }

    pub(super) fn names_token(&self, token: &RequestId) -> bool {
        self.0[Self::DIGITS..] == Self::digits(token)
    }
}

/// Without quotes and escapes: some servers return a number as a string, and some clients accept that.
pub(super) fn plain(id: &RequestId) -> Cow<'_, str> {
    id.as_text().unwrap_or(Cow::Borrowed(id.as_json()))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MarkedEvent<'t> {
    /// The stream of a response, which belongs to one upstream.
    Answer(RequestMark, &'t str),
    /// The session's own stream, which all upstreams share.
    Own(&'t str),
}

const ANSWER: char = ':';
const OWN: char = '!';

impl<'t> MarkedEvent<'t> {
    pub(super) fn event_id(&self, upstream: &str) -> String {
        match self {
            // An empty id resets the position.
            Self::Answer(_, "") | Self::Own("") => String::new(),
            Self::Answer(mark, id) => format!("{upstream}{ANSWER}{}{ANSWER}{id}", mark.0),
            Self::Own(id) => format!("{upstream}{OWN}{id}"),
        }
    }

    pub(super) fn read(text: &'t str) -> Option<(&'t str, Self)> {
        let at = text.find([ANSWER, OWN])?;
        let (upstream, rest) = (&text[..at], &text[at + 1..]);
        if text[at..].starts_with(OWN) {
            return Some((upstream, Self::Own(rest)));
        }
        let (mark, id) = rest.split_once(ANSWER)?;
        Some((upstream, Self::Answer(RequestMark::read(mark)?, id)))
    }
}

/// A request's metadata without its progress token, for requests of the gateway itself.
pub(super) fn metadata_alone(params: Option<&Object>) -> Payload {
    let meta = params.and_then(|params| params.get_object(META));
    match meta {
        Some(meta) => ObjectWriter::new().member(META, &meta.edit().remove(PROGRESS_TOKEN).finish()).finish(),
        None => Payload::empty_object(),
    }
}

/// The most bytes of a subscription's params, beside its filter, that are kept with its stream.
const KEPT_PARAMS_BYTES_MAX: usize = 32 << 10;

/// The params of a subscription without its filter: of larger ones, only the metadata that every request has.
pub(super) fn kept_params(params: &Object) -> Payload {
    let kept = params.edit().remove("notifications").finish();
    if kept.len() <= KEPT_PARAMS_BYTES_MAX {
        return kept.detached();
    }
    let meta = params.get_object(META);
    let members =
        [PROTOCOL_VERSION, CLIENT_CAPABILITIES].map(|key| (key, meta.as_ref().and_then(|meta| meta.get(key))));
    let present = members.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
    let meta = present.fold(ObjectWriter::new(), |writer, (key, value)| writer.member(key, value));
    ObjectWriter::new().member(META, &meta.finish()).finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn text(text: &str) -> MessageText {
        Bytes::copy_from_slice(text.as_bytes()).into()
    }

    #[test]
    fn of_a_subscription_a_bounded_part_is_kept() {
        let params = |more: &str| {
            let meta = json!({ PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: { "roots": {} }, "more": more });
            let wanted = json!({ "toolsListChanged": true });
            Object::of(&Payload::of(&json!({ META: meta, "notifications": wanted, "other": 1 }))).unwrap()
        };
        let kept = |more: &str| kept_params(&params(more));
        let small = json!({ PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: { "roots": {} } });
        let mut whole = json!({ META: small, "other": 1 });
        whole[META]["more"] = json!("x");
        assert_eq!(kept("x").read::<Value>().unwrap(), whole);
        let large = kept(&"x".repeat(1 << 20));
        assert_eq!(large.read::<Value>().unwrap(), json!({ META: small }));
        assert!(kept("x").is_exact() && large.len() < KEPT_PARAMS_BYTES_MAX);
    }

    /// A server that received request 7 with progress token "t".
    struct Seven;

    impl SentRequests for Seven {
        fn may_answer(&self, id: &RequestId) -> bool {
            plain(id) == "7"
        }

        fn may_report(&self, token: &RequestId, _: &Object) -> bool {
            plain(token) == "t"
        }

        fn asked(&self) -> Option<&RequestId> {
            None
        }
    }

    #[track_caller]
    fn check_shown(said: &str, expected: &str) {
        let mut refused = Vec::new();
        let shown = admitted("reports", &Seven, text(said), &mut refused).unwrap_or_default();
        assert_eq!((&*String::from_utf8_lossy(&shown), refused.len()), (expected, 0), "{said}: {refused:?}");
    }

    #[track_caller]
    fn check_refused(said: &str, left: &str) {
        check_left(said, left, &RefusedMessage::Unrequested);
    }

    #[track_caller]
    fn check_left(said: &str, left: &str, why: &RefusedMessage) {
        for text in [text(said), read_text(said)] {
            let mut refused = Vec::new();
            let shown = admitted("reports", &Seven, text, &mut refused).unwrap_or_default();
            assert_eq!(&*String::from_utf8_lossy(&shown), left, "{said}");
            assert_eq!(refused, std::slice::from_ref(why), "{said}");
        }
    }

    /// The text with its message parsed, as over stdio; only the text if it is not exactly one message.
    fn read_text(said: &str) -> MessageText {
        let bytes = Bytes::copy_from_slice(said.as_bytes());
        match envelope::read(&bytes, ScanLimits::UPSTREAM) {
            Ok(message) => MessageText::with_message(bytes, std::sync::Arc::new(message)),
            Err(_) => bytes.into(),
        }
    }

    #[test]
    fn a_servers_question_gets_the_name_of_its_upstream_and_other_messages_stay() {
        check_shown(
            r#"{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{ "n":1.10}}"#,
            r#"{"jsonrpc":"2.0","id":"reports:n7","method":"elicitation/create","params":{ "n":1.10}}"#,
        );
        check_shown(
            r#"{"jsonrpc":"2.0","id":"a\"b","method":"roots/list"}"#,
            r#"{"jsonrpc":"2.0","id":"reports:sa\"b","method":"roots/list"}"#,
        );
        check_shown(
            r#"{"jsonrpc":"2.0","id":-1,"method":"sampling/createMessage","params":{"_meta":{"progressToken":1},"x":[]}}"#,
            r#"{"jsonrpc":"2.0","id":"reports:n-1","method":"sampling/createMessage","params":{"_meta":{"progressToken":"reports:n1"},"x":[]}}"#,
        );
        check_shown(
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q","reason":"r"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"reports:sq","reason":"r"}}"#,
        );
        for same in [
            r#"{"jsonrpc":"2.0","id":7, "result":{"content":[], "n":1.10}}"#,
            r#"{"jsonrpc":"2.0","id":"7","result":{"text":"\"method\""}}"#,
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"m"}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{},"error":null}"#,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"m"}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":2}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
            "no JSON with a \"method\" in it",
            "",
        ] {
            check_shown(same, same);
        }
        check_shown(
            r#"[{"jsonrpc":"2.0","id":7,"result":{}},{"jsonrpc":"2.0","id":8,"method":"ping"}]"#,
            r#"[{"jsonrpc":"2.0","id":7,"result":{}},{"jsonrpc":"2.0","id":"reports:n8","method":"ping"}]"#,
        );
    }

    /// A server cannot refer to another server's request, however the message is spelled.
    #[test]
    fn an_answer_or_progress_of_a_request_that_a_server_was_not_sent_is_dropped() {
        for said in [
            r#"{"jsonrpc":"2.0","id":8,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"8","error":{"code":-1,"message":"m"}}"#,
            r#"{"jsonrpc":"2.0","result":{},"id":8}"#,
            r#"{"jsonrpc":"2.0","\u0069d":8,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":8.0,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":8,"result":{},"error":null}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":7,"progress":2}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","ProgressToken":7}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"notifications/progress","params":{"progressToken":"t"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"notifications/cancelled","params":{"requestId":8}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q","RequestId":8}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"RequestId":8}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":[8]}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#,
        ] {
            check_refused(said, "");
        }
        check_refused(
            r#"[{"jsonrpc":"2.0","id":8,"result":{}},{"jsonrpc":"2.0","id":7,"result":{}}]"#,
            r#"[{"jsonrpc":"2.0","id":7,"result":{}}]"#,
        );
        check_refused(r#"[{"jsonrpc":"2.0","id":8,"result":{}}]"#, "");
    }

    #[test]
    fn a_message_that_cannot_be_read_is_dropped_for_that_and_ends_the_request_that_it_may_have_answered() {
        let error = r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"The upstream server's answer is not valid MCP","data":{"source":"gateway","reason":"upstream_malformed","executed":"yes"}}}"#;
        for (said, is_answer) in [
            (r#"{"jsonrpc":"2.0","id":7,"result":{},"error":{"code":1,"message":"m"}}"#, true),
            (r#"{"jsonrpc":"2.0","id":7,"result":{},"id":8}"#, true),
            (r#"{"jsonrpc":"2.0","id":7,"result":{},"ID":8}"#, true),
            (r#"{"jsonrpc":"2.0","id":7,"result":{}} {"jsonrpc":"2.0","id":8,"result":{}}"#, true),
            (r#"{"id":8e0,"result":{}}"#, false),
            (r#"{"id":8,"result":{},"extra":1}"#, false),
            (r#"{"jsonrpc":"2.0","id":7,"method":"x","result":{}}"#, false),
            (r#"{"jsonrpc":"2.0","id":7,"method":"ping","x":1}"#, false),
            (r#"{"jsonrpc":"2.0","method":"notifications/x""#, false),
            (r#"[{"jsonrpc":"2.0","id":8,"result":{}}"#, false),
        ] {
            let id = is_answer.then(|| RequestId::number(7));
            check_left(said, if is_answer { error } else { "" }, &RefusedMessage::Unreadable(id));
        }
    }

    #[test]
    fn a_request_whose_id_has_no_room_for_a_mark_is_refused() {
        let max = request_id_bytes_max("reports");
        for (length, is_shown) in [(max - 2, true), (max - 1, false)] {
            let long = "x".repeat(length);
            let mut refused = Vec::new();
            let asked = format!(r#"{{"jsonrpc":"2.0","id":"{long}","method":"ping"}}"#);
            assert_eq!(admitted("reports", &Seven, text(&asked), &mut refused).is_some(), is_shown, "{length}");
            let expected = if is_shown { vec![] } else { vec![RefusedMessage::LongId(RequestId::text(&long))] };
            assert_eq!(refused, expected);
        }
    }

    #[test]
    fn an_answer_goes_to_the_server_that_asked_under_its_own_id() {
        for (asked, again) in
            [("7", "7"), ("-9", "-9"), (r#""7""#, r#""7""#), (r#""a:b\"c""#, r#""a:b\"c""#), (r#""""#, r#""""#)]
        {
            let id = RequestId::from_payload(
                &Payload::parse(&Bytes::copy_from_slice(asked.as_bytes()), ScanLimits::UPSTREAM).unwrap(),
            )
            .unwrap();
            let marked = marked("re-ports_1", &id).unwrap();
            let answered = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{"n":1.10}}}}"#, marked.as_json());
            let Ok(Message::Response(response)) = envelope::read(&answered.into(), ScanLimits::CLIENT) else {
                panic!()
            };
            let (upstream, text) = answer(&response).unwrap();
            assert_eq!(upstream, "re-ports_1");
            assert_eq!(
                String::from_utf8_lossy(&text),
                format!(r#"{{"jsonrpc":"2.0","id":{again},"result":{{"n":1.10}}}}"#)
            );
        }
        for foreign in [r#""reports""#, r#""reports:x7""#, r#""reports:nseven""#, "7", r#""reports:""#] {
            let answered = format!(r#"{{"jsonrpc":"2.0","id":{foreign},"result":{{}}}}"#);
            let Ok(Message::Response(response)) = envelope::read(&answered.into(), ScanLimits::CLIENT) else {
                panic!()
            };
            assert!(answer(&response).is_none(), "{foreign}");
        }
    }

    #[test]
    fn events_are_found_again_by_their_stream() {
        let (id, token) = (RequestId::number(7), RequestId::text("a:b\n"));
        for mark in [RequestMark::of(&id, None), RequestMark::of(&id, Some(&token))] {
            let event = MarkedEvent::Answer(mark.clone(), "1:2!3");
            let shown = event.event_id("reports");
            assert_eq!(MarkedEvent::read(&shown), Some(("reports", event)));
            assert!(mark.names(&id) && mark.names(&RequestId::text("7")) && !mark.names(&token));
            assert!(!mark.names_token(&id));
        }
        assert!(RequestMark::of(&id, Some(&token)).names_token(&token));
        let own = MarkedEvent::Own("1:2!3").event_id("reports");
        assert_eq!(
            (own.as_str(), MarkedEvent::read(&own)),
            ("reports!1:2!3", Some(("reports", MarkedEvent::Own("1:2!3"))))
        );
        assert_eq!(MarkedEvent::Own("").event_id("reports"), "");
        for none in ["17", "reports:e-7", "reports:short:e-7", "reports:g123456789012345:e", ""] {
            assert_eq!(MarkedEvent::read(none), None, "{none}");
        }
    }
}
