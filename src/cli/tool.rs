//! The one tool that is called, as `tools/list` describes it.

use crate::dialect::relay_core_2025_11_25::ToolTaskSupport;
use crate::upstream::header_annotations::{self, HeaderAnnotations};
use crate::wire::{Object, Payload};

/// Pages of a tool list that are read. A server that has more of them goes round in circles.
pub(super) const PAGES_MAX: usize = 100;

/// Where a search for the tool stands after one more page.
#[derive(Debug)]
pub(super) enum ToolSearch {
    Found(Tool),
    /// The list goes on behind this cursor.
    Next(Payload),
    Missing,
}

/// What this client has to know of a tool.
#[derive(Debug)]
pub(super) struct Tool {
    /// Whether it may be called at all: annotations that break the rules forbid it.
    pub(super) is_callable: bool,
    /// Whether a call may become a task of 2025-11-25: `optional` and `required` ask for nothing else of a client.
    pub(super) takes_tasks: bool,
}

/// Looks for the tool `name` on a page of `tools/list`.
pub(super) fn search(page: &Object, name: &str) -> ToolSearch {
    let tools = page.get("tools").filter(|tools| tools.as_str().starts_with('['));
    let mut tools = tools.iter().flat_map(Payload::items).filter_map(|tool| Object::of(&tool));
    if let Some(tool) = tools.find(|tool| tool.get_str("name").as_deref() == Some(name)) {
        let annotations = tool.get("inputSchema").as_ref().map(header_annotations::read);
        let is_callable = !matches!(annotations, Some(HeaderAnnotations::Stripped { .. }));
        return ToolSearch::Found(Tool {
            is_callable,
            takes_tasks: ToolTaskSupport::of(&tool) != ToolTaskSupport::Forbidden,
        });
    }
    // An empty cursor is one (UPC-04).
    page.get("nextCursor").filter(|cursor| cursor.as_str() != "null").map_or(ToolSearch::Missing, ToolSearch::Next)
}
