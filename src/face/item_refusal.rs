//! Refuses requests about tools, prompts and resources that their caller may not use.

use std::borrow::Cow;
use std::sync::Arc;

use super::answer::Addressee;
use super::http::FaceResponse;
use crate::dialect::RequestError;
use crate::task::{AccessItem, AccessVerdict, DecisionArguments, ToolAccess};
use crate::wire::{Object, method};

/// Why a request is refused. Nothing was sent to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ItemRefusal {
    /// The answer for an item that does not exist.
    Unknown(RequestError),
    /// A token with these scopes would be served.
    NeedsScopes(Vec<Arc<str>>),
}

impl ItemRefusal {
    /// A missing scope is refused with HTTP 403 in every protocol version (RFC 6750, 3.1); an unknown item by `refuse`.
    pub(super) fn answer(
        &self,
        addressee: &Addressee,
        refuse: impl FnOnce(&RequestError) -> FaceResponse,
    ) -> FaceResponse {
        match self {
            Self::Unknown(complaint) => refuse(complaint),
            Self::NeedsScopes(scopes) => addressee.insufficient_scope(scopes),
        }
    }
}

/// Whether requests of a method name a prompt or a resource that may be withheld. Ends of subscriptions never are refused.
pub(super) fn names_item(method: &str) -> bool {
    matches!(
        method,
        method::PROMPTS_GET | method::RESOURCES_READ | method::RESOURCES_SUBSCRIBE | method::COMPLETE | method::LISTEN
    )
}

/// The refusal of a request, if its caller may not use an item that it names.
pub(super) fn refusal_of(access: &ToolAccess, method: &str, params: Option<&Object>) -> Option<ItemRefusal> {
    let params = params?;
    let decided = |item: AccessItem<'_>| access.decision(item, DecisionArguments::These(None)).verdict;
    let text = |member| params.get_str(member).unwrap_or_default();
    match method {
        method::TOOLS_CALL => refusal_of_call(access, &params.get_str("name")?, params),
        _ if !access.narrows_others() => None,
        method::PROMPTS_GET => refusal(decided(AccessItem::Prompt(&text("name"))), no_prompt),
        method::RESOURCES_READ | method::RESOURCES_SUBSCRIBE => {
            refusal(decided(AccessItem::Resource(&text("uri"))), no_resource)
        }
        method::COMPLETE => {
            let reference = params.get_object("ref")?;
            let prompt = reference.get_str("name").map(|name| decided(AccessItem::Prompt(&name)));
            let resource = reference.get_str("uri").map(|uri| decided(AccessItem::Resource(&uri)));
            let refused = prompt.and_then(|verdict| refusal(verdict, no_prompt));
            refused.or_else(|| resource.and_then(|verdict| refusal(verdict, no_resource)))
        }
        method::LISTEN => {
            let wanted = params.get_object("notifications")?.get("resourceSubscriptions")?;
            match wanted.read::<Vec<String>>() {
                Ok(uris) => uris.iter().find_map(|uri| refusal(decided(AccessItem::Resource(uri)), no_resource)),
                Err(_) => Some(ItemRefusal::Unknown(no_resource())),
            }
        }
        _ => None,
    }
}

/// The refusal of a call of `tool`, by its name at the upstream; the client may have named it in another way.
pub(super) fn refusal_of_call(access: &ToolAccess, tool: &str, params: &Object) -> Option<ItemRefusal> {
    if !access.is_narrowed() {
        return None;
    }
    // Large arguments are read only for a rule about them.
    let arguments = params.get("arguments").filter(|_| access.reads_arguments());
    let arguments = arguments.as_ref().and_then(Object::of);
    let decision = access.decision(AccessItem::Tool(tool), DecisionArguments::These(arguments.as_ref()));
    refusal(decision.verdict, || RequestError::unknown_tool(Some(params)))
}

fn refusal(verdict: AccessVerdict, unknown: impl FnOnce() -> RequestError) -> Option<ItemRefusal> {
    match verdict {
        AccessVerdict::Allowed => None,
        AccessVerdict::Denied => Some(ItemRefusal::Unknown(unknown())),
        AccessVerdict::NeedsScopes(scopes) => Some(ItemRefusal::NeedsScopes(scopes.into_iter().collect())),
    }
}

pub(super) fn no_prompt() -> RequestError {
    RequestError::Params(Cow::Borrowed("no prompt has this name"))
}

fn no_resource() -> RequestError {
    RequestError::Params(Cow::Borrowed("no resource has this URI"))
}
