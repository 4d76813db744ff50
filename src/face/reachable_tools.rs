//! Removes tools that a client may not use from its lists, after all other edits.

use std::sync::Arc;

use bytes::Bytes;

use super::fallback::FallbackToolService;
use crate::task::ToolAccess;
use crate::wire::{Message, Object, Payload, ScanLimits, envelope};

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

    pub(super) const fn are_narrowed(&self) -> bool {
        self.access.is_narrowed()
    }

    fn has(&self, tool: &str) -> bool {
        self.access.has(tool) || self.own.as_ref().is_some_and(|own| own.named(tool).is_some())
    }

    /// The list without unreachable tools and tools without a name; `None` if nothing changes.
    pub(super) fn listed(&self, result: &Object) -> Option<Payload> {
        if !self.are_narrowed() {
            return None;
        }
        let tools = result.get("tools")?;
        let is_shown = |tool: &Payload| {
            Object::of(tool).is_some_and(|tool| tool.get_str("name").is_some_and(|name| self.has(&name)))
        };
        let (shown, hidden): (Vec<Payload>, Vec<Payload>) = tools.items().partition(is_shown);
        (!hidden.is_empty()).then(|| result.edit().set("tools", Payload::of(&shown)).finish())
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
    use crate::task::{Caller, Principal, PrincipalAccess, PrincipalAccessTable, ToolPatterns};

    fn reachable(pattern: &str) -> ReachableTools {
        let tools = Some(Arc::new(ToolPatterns::new(BTreeSet::from([Arc::from(pattern)]))));
        let (ada, access) = (Principal::holding("ada"), PrincipalAccess { tools, ..PrincipalAccess::default() });
        let table = PrincipalAccessTable { own: HashMap::from([(ada.clone(), access)]) };
        ReachableTools::new(table.tools_of(&Caller::of(ada), "reports"), None)
    }

    #[test]
    fn a_list_loses_what_is_out_of_reach_and_nothing_else() {
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
