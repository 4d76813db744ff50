//! Checks messages of session clients before they are processed.

use std::borrow::Cow;

use crate::dialect::RequestError;
use crate::upstream::own_ids::is_own;
use crate::wire::envelope::Request;
use crate::wire::{Message, Object};

/// Members of `params` that affect a request's processing (B85).
const KNOWN_MEMBERS: [&str; 7] = ["name", "arguments", "task", "taskId", "cursor", "uri", "_meta"];

pub(in crate::face) fn vet(message: &Message) -> Result<(), RequestError> {
    match message {
        Message::Request(request) => vet_request(request),
        Message::Notification(notification) if !notification.method.starts_with("notifications/") => {
            Err(RequestError::NotARequest(Cow::Borrowed("this method needs an id")))
        }
        Message::Notification(_) => Ok(()),
        Message::Response(response) if response.id.is_none() => {
            Err(RequestError::NotARequest(Cow::Borrowed("a response needs the id of its request")))
        }
        Message::Response(_) => Ok(()),
    }
}

pub(super) fn vet_request(request: &Request) -> Result<(), RequestError> {
    if is_own(&request.id) {
        return Err(RequestError::NotARequest(Cow::Borrowed("this id is one of the gateway's own requests")));
    }
    let params = request.params.object();
    match params.and_then(|params| params.case_variant(&KNOWN_MEMBERS)) {
        Some(name) => Err(RequestError::Params(Cow::Owned(format!("{name} is spelt in another case")))),
        None => Ok(()),
    }
}

/// The name of the called tool; an error if it is missing or ambiguous (B81, B98).
pub(super) fn tool_of(params: Option<&Object>) -> Result<String, RequestError> {
    let invalid = |what| RequestError::Params(Cow::Borrowed(what));
    let params = params.ok_or_else(|| invalid("params must be an object"))?;
    if params.contains("arguments") && !params.has_object("arguments") {
        return Err(invalid("arguments must be an object"));
    }
    let name = params.get_string("name").filter(|name| !name.contains('\0'));
    name.ok_or_else(|| invalid("name must be a string without null characters"))
}
