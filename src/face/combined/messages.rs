//! Marks what one of several servers says in a session with the name of its upstream, and reads the mark in what the client
//! answers: ids of requests, progress tokens, ids of events.
//!
//! Pure. Two servers may give the same id to their requests; a mark keeps them apart, and says who asked. It is kept by the
//! client, so nothing is remembered here. What has no room for a mark goes on as it came: whoever asked knows it again.

use bytes::Bytes;

use crate::wire::envelope::{self, BATCH_READ_MAX, Notification, Request, Response, is_batch, split_batch};
use crate::wire::meta::{META, PROGRESS_TOKEN};
use crate::wire::object::ObjectWriter;
use crate::wire::{Message, MessageText, Object, Payload, RequestId, ScanLimits, method};

/// Stands behind the name of an upstream, which has none in it.
const MARK_END: char = ':';
/// Tells how an id was written: as a text or as a number.
const TEXT: char = 's';
const NUMBER: char = 'n';

/// What a message has that may be a request or a notification, whatever its escapes.
const METHOD_KEY: &[u8] = b"\"method\"";

/// An id of a server's with its upstream's name; `None` where that is too long for an id.
fn marked(upstream: &str, id: &RequestId) -> Option<RequestId> {
    let text = match id.as_text() {
        Some(text) => format!("{upstream}{MARK_END}{TEXT}{text}"),
        None => format!("{upstream}{MARK_END}{NUMBER}{}", id.as_json()),
    };
    RequestId::from_payload(&Payload::text(&text))
}

/// The upstream whose mark an id has, and the id as that knows it.
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

/// What a server says, as the client of several is to see it.
pub(super) fn shown(upstream: &str, text: MessageText) -> MessageText {
    if is_batch(&text) {
        return shown_array(upstream, text);
    }
    // Most of what a server says answers something. A large result need not be read for that.
    if text.message().is_none() && memchr::memmem::find(&text, METHOD_KEY).is_none() {
        return text;
    }
    let Ok(message) = text.read(ScanLimits::UPSTREAM) else { return text };
    let edited = match &*message {
        Message::Request(request) => shown_request(upstream, request),
        Message::Notification(notification) => shown_notification(upstream, notification),
        Message::Response(_) => None,
    };
    edited.map_or(text, MessageText::from)
}

fn shown_array(upstream: &str, text: MessageText) -> MessageText {
    let Ok(items) = split_batch(&text, ScanLimits::UPSTREAM, BATCH_READ_MAX) else { return text };
    let shown: Vec<_> = items.into_iter().map(|item| shown(upstream, item.into()).into_bytes()).collect();
    Bytes::from([b"[", shown.join(&b',').as_slice(), b"]"].concat()).into()
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

/// The params of a server's request under whose token the client may tell how far it is.
fn marked_token(upstream: &str, params: &Object) -> Option<Payload> {
    let meta = params.get_object(META)?;
    let token = marked(upstream, &RequestId::from_payload(&meta.get(PROGRESS_TOKEN)?)?)?;
    let meta = meta.edit().set(PROGRESS_TOKEN, token.payload().clone()).finish();
    Some(params.edit().set(META, meta).finish())
}

fn shown_notification(upstream: &str, notification: &Notification) -> Option<Bytes> {
    let id = marked(upstream, &notification.cancelled()?)?;
    let params = notification.params.object()?.edit().set("requestId", id.payload().clone()).finish();
    Some(envelope::notification(&notification.method, Some(&params)))
}

/// A client's answer, for the upstream that asked; `None` where no mark says which that is.
pub(super) fn answer(response: &Response) -> Option<(String, Bytes)> {
    let (upstream, id) = unmarked(response.id.as_ref()?)?;
    let text = match &response.outcome {
        Ok(result) => envelope::result(&id, result),
        Err(error) => envelope::error(Some(&id), error),
    };
    Some((upstream, text))
}

/// A client's word on how far it is with what an upstream asked; `None` for every other notification.
pub(super) fn progress(notification: &Notification) -> Option<(String, Bytes)> {
    let params = notification.params.object().filter(|_| notification.method == method::PROGRESS)?;
    let (upstream, token) = unmarked(&RequestId::from_payload(&params.get(PROGRESS_TOKEN)?)?)?;
    let params = params.edit().set(PROGRESS_TOKEN, token.payload().clone()).finish();
    Some((upstream, envelope::notification(method::PROGRESS, Some(&params))))
}

/// The kinds of streams that events stand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamKind {
    /// The answer to a request: one upstream's alone.
    Answer,
    /// The session's own, on which all upstreams speak.
    Own,
}

impl StreamKind {
    const fn mark(self) -> char {
        match self {
            Self::Answer => ':',
            Self::Own => '!',
        }
    }

    /// The id of an upstream's event as the client is to see it.
    pub(super) fn event_id(self, upstream: &str, id: &str) -> String {
        // An empty id says that there is none to go on from.
        if id.is_empty() { String::new() } else { format!("{upstream}{}{id}", self.mark()) }
    }

    /// What the id of an event says: on which kind of stream it stood, whose it was, and how that knows it.
    pub(super) fn read_event_id(text: &str) -> Option<(Self, &str, &str)> {
        let at = text.find([Self::Answer.mark(), Self::Own.mark()])?;
        let (upstream, rest) = text.split_at(at);
        let kind = if rest.starts_with(Self::Own.mark()) { Self::Own } else { Self::Answer };
        Some((kind, upstream, &rest[1..]))
    }
}

/// Empty params with the metadata of others, less what belongs to their own request: for what the gateway asks itself.
pub(super) fn metadata_alone(params: Option<&Object>) -> Payload {
    let meta = params.and_then(|params| params.get_object(META));
    match meta {
        Some(meta) => ObjectWriter::new().member(META, &meta.edit().remove(PROGRESS_TOKEN).finish()).finish(),
        None => Payload::empty_object(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> MessageText {
        Bytes::copy_from_slice(text.as_bytes()).into()
    }

    #[track_caller]
    fn check_shown(said: &str, expected: &str) {
        assert_eq!(String::from_utf8_lossy(&shown("reports", text(said))), expected);
    }

    #[test]
    fn what_a_server_asks_bears_the_name_of_its_upstream_and_all_else_stays() {
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
            r#"{"jsonrpc":"2.0","id":7,"result":{"text":"\"method\""}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":2}}"#,
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

    #[test]
    fn an_id_without_room_for_a_mark_stays_as_it_is() {
        let long = "x".repeat(250);
        let asked = format!(r#"{{"jsonrpc":"2.0","id":"{long}","method":"ping"}}"#);
        check_shown(&asked, &asked);
    }

    #[test]
    fn an_answer_finds_who_asked_under_the_id_that_was_asked_with() {
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
        for kind in [StreamKind::Answer, StreamKind::Own] {
            let id = kind.event_id("reports", "1:2!3");
            assert_eq!(StreamKind::read_event_id(&id), Some((kind, "reports", "1:2!3")));
        }
        assert_eq!(StreamKind::Own.event_id("reports", ""), "");
        assert_eq!(StreamKind::read_event_id("17"), None);
    }
}
