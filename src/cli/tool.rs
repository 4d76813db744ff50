//! The called tool, as `tools/list` describes it.

use super::tool_schema::ToolSchema;
use crate::dialect::relay_core_2025_11_25::ToolTaskSupport;
use crate::upstream::header_annotations::{self, HeaderAnnotations};
use crate::wire::{Object, Payload};

#[derive(Debug)]
pub(super) struct Tool {
    /// Whether it can be called: invalid annotations forbid it.
    pub(super) is_callable: bool,
    /// Whether a call may become a task of 2025-11-25, which both `optional` and `required` allow.
    pub(super) takes_tasks: bool,
    pub(super) schema: ToolSchema,
}

impl Tool {
    pub(super) fn on_page(page: &Object, name: &str) -> Option<Self> {
        let tools = page.get("tools").filter(|tools| tools.as_str().starts_with('['));
        let mut tools = tools.iter().flat_map(Payload::items).filter_map(|tool| Object::of(&tool));
        let tool = tools.find(|tool| tool.get_str("name").as_deref() == Some(name))?;
        let annotations = tool.get("inputSchema").as_ref().map(header_annotations::read);
        Some(Self {
            is_callable: !matches!(annotations, Some(HeaderAnnotations::Stripped { .. })),
            takes_tasks: ToolTaskSupport::of(&tool) != ToolTaskSupport::Forbidden,
            schema: ToolSchema::of(&tool),
        })
    }
}
