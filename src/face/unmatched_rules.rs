//! Warns operators of tool rules that match no tool of a server's list. A misspelt name hides no tool, which would stay
//! unnoticed. Each reader of a list passes its pages here. Once a list is complete, the rules without a match are
//! logged, once per upstream: a server may list other tools later, or to other clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use wildmatch::WildMatch;

use crate::wire::list_pages::next_cursor;
use crate::wire::{Message, Object, ScanLimits, envelope};

/// The most rules with a log line each; one line counts the rest.
const LOGGED_MAX: usize = 32;

/// The rules of one upstream that have matched no tool yet.
#[derive(Debug)]
pub struct UnmatchedRules {
    upstream: Arc<str>,
    patterns: Mutex<Vec<WildMatch>>,
    is_logged: AtomicBool,
}

impl UnmatchedRules {
    /// Patterns are compared with the names in the lists.
    pub fn new<'p>(upstream: &Arc<str>, patterns: impl Iterator<Item = &'p WildMatch>) -> Self {
        let patterns: Vec<WildMatch> = patterns.cloned().collect();
        let is_logged = AtomicBool::new(patterns.is_empty());
        Self { upstream: Arc::clone(upstream), patterns: Mutex::new(patterns), is_logged }
    }

    /// For an upstream without rules, or with lists that another instance compares.
    pub fn none(upstream: &Arc<str>) -> Self {
        Self::new(upstream, std::iter::empty())
    }

    /// Reads a result of `tools/list`, which may be one page of several.
    pub(super) fn look_at(&self, page: &Object) {
        let unmatched = self.after(page);
        for pattern in unmatched.iter().take(LOGGED_MAX) {
            tracing::warn!(
                upstream = %self.upstream, pattern = pattern.pattern(),
                "a tool rule matches no tool of the server; compare its `match` with the names of the tools"
            );
        }
        if let Some(more) = unmatched.len().checked_sub(LOGGED_MAX).filter(|more| *more > 0) {
            tracing::warn!(upstream = %self.upstream, more, "further tool rules match no tool of the server");
        }
    }

    pub(super) fn look_at_answer(&self, message: &Bytes) {
        if self.is_logged.load(Ordering::Relaxed) {
            return;
        }
        if let Ok(Message::Response(response)) = envelope::read(message, ScanLimits::UPSTREAM)
            && let Some(page) = &response.result
        {
            self.look_at(page);
        }
    }

    /// The rules to report after this page.
    fn after(&self, page: &Object) -> Vec<WildMatch> {
        if self.is_logged.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let Some(tools) = page.get("tools") else { return Vec::new() };
        let mut patterns = self.patterns.lock();
        for name in tools.items().filter_map(|tool| Object::of(&tool)?.get_string("name")) {
            patterns.retain(|pattern| !pattern.matches(&name));
        }
        if next_cursor(page).is_some() && !patterns.is_empty() {
            return Vec::new();
        }
        self.is_logged.store(true, Ordering::Relaxed);
        std::mem::take(&mut *patterns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Payload;

    fn rules(patterns: &[&str]) -> UnmatchedRules {
        let patterns: Vec<WildMatch> = patterns.iter().map(|pattern| WildMatch::new(pattern)).collect();
        UnmatchedRules::new(&Arc::from("up"), patterns.iter())
    }

    #[track_caller]
    fn check(rules: &UnmatchedRules, page: serde_json::Value, logged: &[&str]) {
        let page = Object::of(&Payload::of(&page)).unwrap();
        let found: Vec<String> = rules.after(&page).iter().map(WildMatch::pattern).collect();
        assert_eq!(found, logged, "{page:?}");
    }

    #[test]
    fn a_rule_that_fits_no_tool_of_a_whole_list_is_told_of_once() {
        let tools = serde_json::json!({"tools": [{"name": "generate_report"}, {"name": "delete"}, {"title": "?"}]});
        let three = rules(&["generatereport", "delete*", "Delete"]);
        check(&three, serde_json::json!({"content": []}), &[]);
        check(&three, tools.clone(), &["generatereport", "Delete"]);
        check(&three, tools, &[]);
        check(&rules(&["*"]), serde_json::json!({"tools": []}), &["*"]);
    }

    #[test]
    fn a_list_in_pages_is_judged_at_its_end() {
        let rules = rules(&["first", "second", "third"]);
        check(&rules, serde_json::json!({"tools": [{"name": "first"}], "nextCursor": ""}), &[]);
        check(&rules, serde_json::json!({"tools": [{"name": "second"}], "nextCursor": null}), &["third"]);
    }
}
