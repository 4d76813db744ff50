//! Maps request ids between both sides of the adapter. Pure.

use bytes::Bytes;

use crate::wire::envelope::{Notification, Params, Request};
use crate::wire::{Object, Payload, RequestId, ScanLimits, envelope, meta, method};

/// Prefix of question ids from processes for one call.
const DEDICATED: &str = "process:";

/// A request under the adapter's own id, which is its progress token too.
pub(super) fn renumbered(request: &Request, id: &RequestId) -> (Request, Bytes, OriginalRequest) {
    let metadata = request.params.object().and_then(|params| params.get_object(meta::META));
    let token = metadata.as_ref().and_then(|metadata| metadata.get(meta::PROGRESS_TOKEN));
    let wants_logs = metadata.as_ref().is_some_and(|metadata| metadata.contains(meta::LOG_LEVEL));
    let is_probe = request.method == method::DISCOVER;
    let is_subscription = request.method == method::LISTEN;
    let outer = OriginalRequest { id: request.id.clone(), token, wants_logs, is_probe, is_subscription };
    let mut request = Request { id: id.clone(), ..request.clone() };
    if let (Some(metadata), Some(params), Some(_)) = (metadata, request.params.object(), &outer.token) {
        let metadata = metadata.edit().set(meta::PROGRESS_TOKEN, id.payload()).finish();
        request.params = params_of(&params.edit().set(meta::META, metadata).finish());
    }
    let text = text_of(&request);
    (request, text, outer)
}

/// A subscription's notification, under the listener's id.
pub(super) fn notification_for(notification: &Notification, id: &RequestId) -> Bytes {
    let edited = notification.params.object().and_then(|params| {
        let metadata = params.get_object(meta::META)?;
        let metadata = metadata.edit().set(meta::SUBSCRIPTION_ID, id.payload()).finish();
        Some(params.edit().set(meta::META, metadata).finish())
    });
    edited.map_or_else(|| verbatim(notification), |params| envelope::notification(&notification.method, Some(&params)))
}

pub(super) fn progress_of(notification: &Notification, token: &Payload) -> Bytes {
    let params = notification.params.object();
    let params = params.map(|params| params.edit().set(meta::PROGRESS_TOKEN, token.clone()).finish());
    envelope::notification(&notification.method, params.as_ref())
}

pub(super) fn verbatim(notification: &Notification) -> Bytes {
    envelope::notification(&notification.method, notification.params.object().map(Object::payload))
}

pub(super) fn cancelled(id: &RequestId) -> Bytes {
    let params = Payload::of(&serde_json::json!({ "requestId": id, "reason": "the response is no longer awaited" }));
    envelope::notification(method::CANCELLED, Some(&params))
}

/// Without the tasks extension: the process ends with the response, so the server must make no task.
pub(super) fn without_tasks(request: &Request) -> Request {
    let edited = request.params.object().and_then(|params| {
        let metadata = params.get_object(meta::META)?;
        let declared = metadata.get_object(meta::CLIENT_CAPABILITIES)?;
        let extensions = declared.get_object("extensions")?;
        let extensions = extensions.edit().remove(meta::TASKS_EXTENSION).finish();
        let declared = declared.edit().set("extensions", extensions).finish();
        let metadata = metadata.edit().set(meta::CLIENT_CAPABILITIES, declared).finish();
        Some(params.edit().set(meta::META, metadata).finish())
    });
    let mut request = request.clone();
    edited.iter().for_each(|params| request.params = params_of(params));
    request
}

/// A question's id, or its token, for the session's client.
pub(super) fn outward(process: &str, id: &RequestId) -> RequestId {
    RequestId::text(&format!("{DEDICATED}{process}:{}", id.as_json()))
}

/// The asking process and the id or token there; `None` for the session's own process.
pub(super) fn inward(id: &RequestId) -> Option<(String, RequestId)> {
    let text = id.as_text()?;
    let (process, own) = text.strip_prefix(DEDICATED)?.split_once(':')?;
    let own = Payload::parse(&Bytes::copy_from_slice(own.as_bytes()), ScanLimits::CLIENT).ok()?;
    Some((process.to_owned(), RequestId::from_payload(&own)?))
}

/// A question under an id and a progress token that lead back to its process.
pub(super) fn question(request: &Request, process: &str) -> (Request, Bytes) {
    let mut request = Request { id: outward(process, &request.id), ..request.clone() };
    let marked = request.params.object().and_then(|params| {
        let metadata = params.get_object(meta::META)?;
        let token = RequestId::from_payload(&metadata.get(meta::PROGRESS_TOKEN)?)?;
        let metadata = metadata.edit().set(meta::PROGRESS_TOKEN, outward(process, &token).payload()).finish();
        Some(params.edit().set(meta::META, metadata).finish())
    });
    if let Some(params) = marked {
        request.params = params_of(&params);
    }
    let text = text_of(&request);
    (request, text)
}

pub(super) fn withdrawal(notification: &Notification, id: &RequestId) -> (Notification, Bytes) {
    let params = notification.params.object();
    let params = params.map(|params| params.edit().set("requestId", id.payload()).finish());
    let params = params.as_ref().map_or(Params::Absent, params_of);
    let notification = Notification { params, ..notification.clone() };
    let text = verbatim(&notification);
    (notification, text)
}

pub(super) fn text_of(request: &Request) -> Bytes {
    envelope::request(&request.id, &request.method, request.params.object().map(Object::payload))
}

fn params_of(params: &Payload) -> Params {
    Object::of(params).map_or(Params::Absent, Params::Object)
}

/// The client's names of a request.
#[derive(Clone, Debug)]
pub(super) struct OriginalRequest {
    pub(super) id: RequestId,
    pub(super) token: Option<Payload>,
    pub(super) wants_logs: bool,
    pub(super) is_probe: bool,
    pub(super) is_subscription: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::Message;

    fn read(message: &Value) -> Message {
        envelope::read(&Bytes::from(message.to_string()), ScanLimits::UPSTREAM).unwrap()
    }

    fn request(message: &Value) -> Request {
        let Message::Request(request) = read(message) else { panic!("{message}") };
        request
    }

    fn value(text: &Bytes) -> Value {
        serde_json::from_slice(text).unwrap()
    }

    #[test]
    fn a_request_travels_under_the_stands_own_id_and_its_answers_under_its_makers() {
        let made = json!({ "jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": { "name": "t",
            "_meta": { "progressToken": "p", "io.modelcontextprotocol/logLevel": "info" } } });
        let (renamed, text, outer) = renumbered(&request(&made), &RequestId::number(7));
        let sent = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": { "name": "t",
            "_meta": { "progressToken": 7, "io.modelcontextprotocol/logLevel": "info" } } });
        assert_eq!((value(&text), renamed.id.as_json()), (sent, "7"));
        assert_eq!((outer.id.as_json(), outer.token.as_ref().map(Payload::as_str)), ("\"a\"", Some("\"p\"")));
        assert!(outer.wants_logs);
        let Message::Response(response) = read(&json!({ "jsonrpc": "2.0", "id": 7, "result": { "x": 1 } })) else {
            panic!("no response")
        };
        assert_eq!(value(&response.under(&outer.id)), json!({ "jsonrpc": "2.0", "id": "a", "result": { "x": 1 } }));
        let plain = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": { "_meta": {} } });
        let (_, text, outer) = renumbered(&request(&plain), &RequestId::number(8));
        assert_eq!(value(&text)["params"], json!({ "_meta": {} }));
        assert!(outer.token.is_none() && !outer.wants_logs);
    }

    #[test]
    fn t_62_questions_of_several_processes_have_different_ids_that_lead_back() {
        for own in [RequestId::number(0), RequestId::text("0"), RequestId::text("a:\"b\" \u{e4}")] {
            let (one, other) = (outward("1", &own), outward("2", &own));
            assert_ne!(one, other);
            assert_eq!(inward(&one), Some(("1".to_owned(), own.clone())));
            assert_eq!(inward(&own), None);
        }
        let asked = json!({ "jsonrpc": "2.0", "id": 0, "method": "elicitation/create",
            "params": { "message": "?", "_meta": { "progressToken": 0, "x": 1 } } });
        let (question, text) = question(&request(&asked), "2");
        let token = value(&text)["params"]["_meta"]["progressToken"].clone();
        assert_eq!((token, question.id.as_json()), (json!("process:2:0"), r#""process:2:0""#));
        for foreign in ["process:", "process:1", "process:1:", "process:1:x", "other:1:0"] {
            assert_eq!(inward(&RequestId::text(foreign)), None, "{foreign}");
        }
    }

    #[test]
    fn a_call_in_a_process_of_its_own_declares_no_tasks() {
        let declared = json!({ "elicitation": {}, "extensions": { meta::TASKS_EXTENSION: {}, "x": {} } });
        let made = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "t", "_meta": { meta::CLIENT_CAPABILITIES: declared } } });
        let text = value(&text_of(&without_tasks(&request(&made))));
        let expected = json!({ "elicitation": {}, "extensions": { "x": {} } });
        assert_eq!(text["params"]["_meta"][meta::CLIENT_CAPABILITIES], expected);
    }
}
