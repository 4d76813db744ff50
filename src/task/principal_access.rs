//! Defines which upstreams and tools a principal may use.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use wildmatch::WildMatch;

use super::{Caller, Principal};

/// One principal's upstreams and tools. `None` allows all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrincipalAccess {
    pub upstreams: Option<BTreeSet<Arc<str>>>,
    pub tools: Option<Arc<ToolPatterns>>,
}

impl PrincipalAccess {
    fn has(&self, upstream: &str) -> bool {
        self.upstreams.as_ref().is_none_or(|names| names.contains(upstream))
    }
}

/// Patterns with `*` and `?` for client-visible tool names. A name has to match one.
#[derive(Clone, Debug)]
pub struct ToolPatterns {
    texts: BTreeSet<Arc<str>>,
    patterns: Vec<WildMatch>,
}

impl ToolPatterns {
    #[must_use]
    pub fn new(texts: BTreeSet<Arc<str>>) -> Self {
        let patterns = texts.iter().map(|text| WildMatch::new(text)).collect();
        Self { texts, patterns }
    }
}

impl PartialEq for ToolPatterns {
    fn eq(&self, other: &Self) -> bool {
        self.texts == other.texts
    }
}

impl Eq for ToolPatterns {}

#[derive(Clone, Debug, Default)]
pub struct ToolAccess(Option<Arc<ToolPatterns>>);

impl ToolAccess {
    #[must_use]
    pub const fn is_narrowed(&self) -> bool {
        self.0.is_some()
    }

    #[must_use]
    pub fn has(&self, tool: &str) -> bool {
        self.0.as_ref().is_none_or(|tools| tools.patterns.iter().any(|pattern| pattern.matches(tool)))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrincipalAccessTable {
    pub own: HashMap<Principal, PrincipalAccess>,
}

impl PrincipalAccessTable {
    #[must_use]
    pub fn has_upstream(&self, caller: &Caller, upstream: &str) -> bool {
        self.own.get(&caller.principal).is_none_or(|own| own.has(upstream))
    }

    #[must_use]
    pub fn tools_of(&self, caller: &Caller, _upstream: &str) -> ToolAccess {
        ToolAccess(self.own.get(&caller.principal).and_then(|own| own.tools.clone()))
    }

    /// Whether a caller may use an upstream and its tool, for a call or for a task of it.
    #[must_use]
    pub fn has_tool(&self, caller: &Caller, upstream: &str, tool: &str) -> bool {
        self.has_upstream(caller, upstream) && self.tools_of(caller, upstream).has(tool)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> BTreeSet<Arc<str>> {
        texts.iter().map(|text| Arc::from(*text)).collect()
    }

    /// A key's upstreams and tools; an upstream and a tool, and whether the key's holder may use both.
    #[test]
    fn whoever_has_lists_uses_what_fits_both_and_everybody_else_uses_all() {
        let ada = Principal::holding("ada");
        for (upstreams, tools, upstream, tool, expected) in [
            (None, None, "reports", "write_x", true),
            (Some(["reports"].as_slice()), None, "reports", "write_x", true),
            (Some(&["reports"]), None, "files", "write_x", false),
            (Some(&["reports", "files"]), None, "files", "read_x", true),
            (None, Some(["read_*"].as_slice()), "reports", "read_x", true),
            (None, Some(&["read_*"]), "reports", "write_x", false),
            (None, Some(&["read_*"]), "reports", "READ_x", false),
            (None, Some(&["read_*"]), "reports", " read_x", false),
            (None, Some(&["read_?", "write"]), "reports", "read_xy", false),
            (None, Some(&["read_?", "write"]), "reports", "write", true),
            (Some(&["reports"]), Some(&["read_*"]), "files", "read_x", false),
            (None, Some(&["*"]), "files", "", true),
            (None, Some(&["nothing-of-the-kind"]), "files", "read_x", false),
        ] {
            let access = PrincipalAccess {
                upstreams: upstreams.map(texts),
                tools: tools.map(texts).map(|texts| Arc::new(ToolPatterns::new(texts))),
            };
            let table = PrincipalAccessTable { own: HashMap::from([(ada.clone(), access)]) };
            let (ada, bob) = (Caller::of(ada.clone()), Caller::of(Principal::holding("bob")));
            assert_eq!(table.has_tool(&ada, upstream, tool), expected, "{upstreams:?} {tools:?} {upstream} {tool}");
            assert!(table.has_tool(&bob, upstream, tool), "others");
        }
    }
}
