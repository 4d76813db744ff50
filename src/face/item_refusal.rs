//! Refuses requests about tools, prompts and resources that their caller may not use.

use std::sync::Arc;

use super::answer::Addressee;
use super::http::FaceResponse;
use crate::audit::{AuditAct, AuditEvent};
use crate::dialect::RequestError;
use crate::engine::Engine;
use crate::task::{AccessDecision, AccessItem, AccessVerdict, Caller, DecisionArguments, ToolAccess};
use crate::wire::{Object, method};

/// Why a request is refused. Nothing was sent to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ItemRefusal {
    /// The item gets the answer for one that does not exist.
    Unknown(RequestError),
    /// A token with these scopes would be accepted.
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

/// Whether requests of a method name a prompt or a resource that may be withheld. The end of a subscription is never refused.
pub(super) fn names_item(method: &str) -> bool {
    matches!(
        method,
        method::PROMPTS_GET | method::RESOURCES_READ | method::RESOURCES_SUBSCRIBE | method::COMPLETE | method::LISTEN
    )
}

/// Decides which items of an upstream a caller may use. Its refusals are events of the audit.
pub(super) struct AskedAccess<'a> {
    engine: &'a Engine,
    caller: &'a Caller,
    upstream: &'a str,
    pub(super) access: ToolAccess,
}

impl<'a> AskedAccess<'a> {
    pub(super) fn new(engine: &'a Engine, caller: &'a Caller, upstream: &'a str) -> Self {
        Self { engine, caller, upstream, access: engine.access().tools_of(caller, upstream) }
    }

    /// The refusal of a request, if its caller may not use an item that it names.
    pub(super) fn refusal_of(&self, method: &str, params: Option<&Object>) -> Option<ItemRefusal> {
        let params = params?;
        let text = |member| params.get_str(member).unwrap_or_default();
        let prompt = |name: &str| self.refusal_of_item(AccessItem::Prompt(name), no_prompt);
        let resource = |uri: &str| self.refusal_of_item(AccessItem::Resource(uri), no_resource);
        match method {
            method::TOOLS_CALL => self.refusal_of_call(&params.get_str("name")?, params),
            _ if !self.access.narrows_others() => None,
            method::PROMPTS_GET => prompt(&text("name")),
            method::RESOURCES_READ | method::RESOURCES_SUBSCRIBE => resource(&text("uri")),
            method::COMPLETE => {
                // A server might read another value, or a member in another spelling (B85), as the name of an item.
                let reference = params.get_object("ref").filter(|reference| {
                    let is_text = |member: &&str| reference.get_str(member).is_some();
                    reference.case_variant(&["type", "name", "uri"]).is_none()
                        && ["name", "uri"].iter().any(is_text)
                        && ["name", "uri"].iter().filter(|member| reference.contains(member)).all(is_text)
                });
                let Some(reference) = reference else { return Some(ItemRefusal::Unknown(no_reference())) };
                let refused = reference.get_str("name").and_then(|name| prompt(&name));
                refused.or_else(|| reference.get_str("uri").and_then(|uri| resource(&uri)))
            }
            method::LISTEN => {
                let wanted = params.get_object("notifications")?.get("resourceSubscriptions")?;
                match wanted.read::<Vec<String>>() {
                    Ok(uris) => uris.iter().find_map(|uri| resource(uri)),
                    Err(_) => Some(ItemRefusal::Unknown(no_resource())),
                }
            }
            _ => None,
        }
    }

    /// The refusal of a call of `tool`, by its name at the upstream; the client may have named it in another way.
    pub(super) fn refusal_of_call(&self, tool: &str, params: &Object) -> Option<ItemRefusal> {
        let decision = self.decision_of_call(tool, params)?;
        self.refusal(AccessItem::Tool(tool), decision, || RequestError::unknown_tool(Some(params)))
    }

    /// Whether a request gets the answer of an unknown item. A later check refuses and records one that needs scopes.
    pub(super) fn withholds(&self, item: AccessItem<'_>, params: &Object) -> bool {
        self.decision_of(item, params).is_some_and(|decision| {
            let is_denied = decision.verdict == AccessVerdict::Denied;
            if is_denied {
                self.record(item, &decision);
            }
            is_denied
        })
    }

    pub(super) fn allows(&self, item: AccessItem<'_>, params: &Object) -> bool {
        self.decision_of(item, params).is_none_or(|decision| decision.verdict == AccessVerdict::Allowed)
    }

    /// Whether the request lacks nothing but scopes.
    pub(super) fn needs_scopes(&self, item: AccessItem<'_>, params: &Object) -> bool {
        let decision = self.decision_of(item, params);
        decision.is_some_and(|decision| matches!(decision.verdict, AccessVerdict::NeedsScopes(_)))
    }

    fn decision_of(&self, item: AccessItem<'_>, params: &Object) -> Option<AccessDecision> {
        match item {
            AccessItem::Tool(tool) => self.decision_of_call(tool, params),
            AccessItem::Prompt(_) | AccessItem::Resource(_) if !self.access.narrows_others() => None,
            AccessItem::Prompt(_) | AccessItem::Resource(_) => {
                Some(self.access.decision(item, DecisionArguments::These(None)))
            }
        }
    }

    fn decision_of_call(&self, tool: &str, params: &Object) -> Option<AccessDecision> {
        if !self.access.is_narrowed() {
            return None;
        }
        // Large arguments are read only for a rule about them.
        let arguments = params.get("arguments").filter(|_| self.access.reads_arguments());
        let arguments = arguments.as_ref().and_then(Object::of);
        Some(self.access.decision(AccessItem::Tool(tool), DecisionArguments::These(arguments.as_ref())))
    }

    fn refusal_of_item(&self, item: AccessItem<'_>, unknown: fn() -> RequestError) -> Option<ItemRefusal> {
        self.refusal(item, self.access.decision(item, DecisionArguments::These(None)), unknown)
    }

    fn refusal(
        &self,
        item: AccessItem<'_>,
        decision: AccessDecision,
        unknown: impl FnOnce() -> RequestError,
    ) -> Option<ItemRefusal> {
        if decision.verdict != AccessVerdict::Allowed {
            self.record(item, &decision);
        }
        match decision.verdict {
            AccessVerdict::Allowed => None,
            AccessVerdict::Denied => Some(ItemRefusal::Unknown(unknown())),
            AccessVerdict::NeedsScopes(scopes) => Some(ItemRefusal::NeedsScopes(scopes.into_iter().collect())),
        }
    }

    fn record(&self, item: AccessItem<'_>, decision: &AccessDecision) {
        let Some(audit) = self.engine.audit() else { return };
        let (tool, item) = match item {
            AccessItem::Tool(name) => (Some(name), None),
            AccessItem::Prompt(name) | AccessItem::Resource(name) => (None, Some(name)),
        };
        let outcome = if decision.verdict == AccessVerdict::Denied { "denied" } else { "insufficient_scope" };
        audit.record(&AuditEvent {
            who: Some(&self.caller.principal),
            upstream: Some(self.upstream),
            tool,
            item,
            outcome: Some(outcome),
            rule: decision.by.line(),
            ..AuditEvent::new(AuditAct::RuleDenied)
        });
    }
}

/// The `ref` of a completion is no object.
pub(super) fn no_reference() -> RequestError {
    RequestError::params("ref must be an object")
}

pub(super) fn no_prompt() -> RequestError {
    RequestError::params("no prompt has this name")
}

fn no_resource() -> RequestError {
    RequestError::params("no resource has this URI")
}
