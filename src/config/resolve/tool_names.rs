//! Resolves the tool names of one upstream as clients see them.

use wildmatch::WildMatch;

use super::super::error::MistakeCollector;
use super::super::raw::RawTool;
use super::super::section::LocatedValue;
use crate::task::{NamePattern, NameRule, ToolNames};

/// Resolves the names, and refuses ambiguous ones.
pub(super) fn resolve(tools: &[RawTool], report: &mut MistakeCollector) -> ToolNames {
    let mut rules = Vec::new();
    let mut given: Vec<(NamePattern, usize)> = Vec::new();
    for tool in tools {
        let Some(pattern) = &tool.own.pattern else { continue };
        let is_hidden = tool.own.hide.value;
        let naming = match &tool.own.rename {
            Some(rename) if is_hidden => {
                report.mistake(&rename.location, "the tool is hidden as well; leave out `hide` or `rename`");
                NameRule::Hidden
            }
            Some(rename) => renamed(pattern, rename, &mut given, report),
            None if is_hidden => NameRule::Hidden,
            None => NameRule::Kept,
        };
        rules.push((WildMatch::new(&pattern.value), naming));
    }
    ToolNames::new(rules)
}

fn renamed(
    pattern: &LocatedValue<String>,
    rename: &LocatedValue<String>,
    given: &mut Vec<(NamePattern, usize)>,
    report: &mut MistakeCollector,
) -> NameRule {
    let Some(from) = NamePattern::parse(&pattern.value) else {
        let message = "`match` has more than one *, or a ?, so the new name is ambiguous; write one * at most";
        report.mistake(&rename.location, message);
        return NameRule::Kept;
    };
    // The reader has validated it.
    let Some(to) = NamePattern::parse(&rename.value) else { return NameRule::Kept };
    if from.has_star() != to.has_star() {
        let message = match to.has_star() {
            true => "has a *, but `match` has none; write the whole name",
            false => "has no *, so all tools that fit `match` would have this one name; write a * in both or in none",
        };
        report.mistake(&rename.location, message);
        return NameRule::Kept;
    }
    if let Some((_, line)) = given.iter().find(|(other, _)| other.overlaps(&to)) {
        let message = format!("line {line} can give the same name to another tool; let the names differ");
        report.mistake(&rename.location, message);
    }
    if to.is_any() && !from.is_any() {
        let message = "takes every name: other tools than `match` are hidden, except the tools of blocks above";
        report.warning(&rename.location, message);
    }
    given.push((to.clone(), rename.location.line));
    NameRule::Renamed { from, to }
}
