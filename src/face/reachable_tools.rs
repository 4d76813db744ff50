//! Removes tools, prompts and resources that a client may not use from its lists, after all other edits.

use std::sync::Arc;

use bytes::Bytes;

use super::fallback::FallbackToolService;
use crate::task::ToolAccess;
use crate::wire::{Message, Object, Payload, ScanLimits, envelope, method};

/// The lists of results, each with the member that names an item.
const LISTS: [(&str, &str); 4] =
    [("tools", "name"), ("prompts", "name"), ("resources", "uri"), ("resourceTemplates", "uriTemplate")];

#[derive(Clone)]
pub(super) struct ReachableTools {
    access: ToolAccess,
    /// The gateway's own tools, which are never removed.
    own: Option<Arc<FallbackToolService>>,
}

impl ReachableTools {
    pub(super) const fn new(access: ToolAccess, own: Option<Arc<FallbackToolService>>) -> Self {
        Self { access, own }
    }

    pub(super) fn are_narrowed(&self) -> bool {
        self.access.is_narrowed()
    }

    /// Whether a method's list of prompts, resources or resource templates may lose items.
    pub(super) fn narrow_list_of(&self, method: &str) -> bool {
        let is_list =
            matches!(method, method::PROMPTS_LIST | method::RESOURCES_LIST | method::RESOURCES_TEMPLATES_LIST);
        is_list && self.access.narrows_others()
    }

    fn has(&self, list: &str, name: &str) -> bool {
        match list {
            "tools" => self.access.has(name) || self.own.as_ref().is_some_and(|own| own.named(name).is_some()),
            "prompts" => self.access.has_prompt(name),
            _ => self.access.has_resource(name),
        }
    }

    /// The list without unreachable items and items without a name; `None` if nothing changes.
    pub(super) fn listed(&self, result: &Object) -> Option<Payload> {
        if !self.are_narrowed() {
            return None;
        }
        let lists = if self.access.narrows_others() { &LISTS[..] } else { &LISTS[..1] };
        let mut edited = None;
        for (list, key) in lists {
            let Some(items) = result.get(list) else { continue };
            let is_shown = |item: &Payload| {
                Object::of(item).is_some_and(|item| item.get_str(key).is_some_and(|name| self.has(list, &name)))
            };
            let (shown, hidden): (Vec<Payload>, Vec<Payload>) = items.items().partition(is_shown);
            if !hidden.is_empty() {
                edited = Some(edited.unwrap_or_else(|| result.edit()).set(list, Payload::of(&shown)));
            }
        }
        Some(edited?.finish())
    }

    /// Edits a message that may answer any request: a request of another stream may be resumed on this one.
    pub(super) fn listed_in(&self, message: &Bytes) -> Option<Bytes> {
        if !self.are_narrowed() {
            return None;
        }
        let Ok(Message::Response(response)) = envelope::read(message, ScanLimits::UPSTREAM) else { return None };
        let listed = self.listed(response.result.as_ref()?)?;
        Some(envelope::result(response.id.as_ref()?, &listed))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;
    use crate::task::{AccessRules, Caller, ItemPatterns, Principal, PrincipalAccess, PrincipalAccessTable, ToolLists};

    fn reachable(pattern: &str) -> ReachableTools {
        let tools = Some(ToolLists::Everywhere(ItemPatterns::new(BTreeSet::from([Arc::from(pattern)]))));
        let (ada, access) = (Principal::holding("ada"), PrincipalAccess { tools, ..PrincipalAccess::default() });
        let own = HashMap::from([(ada.clone(), access)]);
        let table = PrincipalAccessTable::new(own, AccessRules::default(), HashMap::new());
        ReachableTools::new(table.tools_of(&Caller::of(ada), "reports"), None)
    }

    #[test]
    fn a_list_loses_unreachable_items_alone() {
        let list = |tools: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"x":1.10,"tools":[{tools}],"nextCursor":"c"}}}}"#)
        };
        for (tools, expected) in [
            (r#"{"name":"a"},{"name":"ab","n":1.0}"#, None),
            ("", None),
            (r#"{"name":"a"},{"name":"b"},{ "name":"ab","n":1.0}"#, Some(r#"{"name":"a"},{ "name":"ab","n":1.0}"#)),
            (r#"{"name":"b"},7,{"title":"a"},{"name":1},{"name":" a"}"#, Some("")),
        ] {
            let message = Bytes::from(list(tools));
            let listed = reachable("a*").listed_in(&message);
            let listed = listed.as_deref().map(|listed| std::str::from_utf8(listed).unwrap());
            assert_eq!(listed, expected.map(list).as_deref(), "{tools}");
            assert!(ReachableTools::new(ToolAccess::default(), None).listed_in(&message).is_none());
        }
        for other in [
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"","data":{"tools":[{"name":"b"}]}}}"#,
            r#"{"jsonrpc":"2.0","method":"x","params":{"tools":[{"name":"b"}]}}"#,
        ] {
            assert!(reachable("a*").listed_in(&Bytes::from_static(other.as_bytes())).is_none(), "{other}");
        }
    }
}
