//! Names the tool, prompt or resource that a request is about, for a later look at its caller's rights.

use std::sync::Arc;

use crate::task::AccessItem;
use crate::wire::{Object, method};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamedItem {
    Tool(Arc<str>),
    Prompt(Arc<str>),
    Resource(Arc<str>),
}

impl NamedItem {
    pub(super) fn of(method: &str, params: &Object) -> Option<Self> {
        let text = |params: &Object, member| params.get_str(member).map(|text| Arc::from(&*text));
        match method {
            method::TOOLS_CALL => text(params, "name").map(Self::Tool),
            method::PROMPTS_GET => text(params, "name").map(Self::Prompt),
            method::RESOURCES_READ => text(params, "uri").map(Self::Resource),
            method::COMPLETE => {
                let reference = params.get_object("ref")?;
                let resource = text(&reference, "uri").map(Self::Resource);
                resource.or_else(|| text(&reference, "name").map(Self::Prompt))
            }
            _ => None,
        }
    }

    pub(super) fn as_access_item(&self) -> AccessItem<'_> {
        match self {
            Self::Tool(name) => AccessItem::Tool(name),
            Self::Prompt(name) => AccessItem::Prompt(name),
            Self::Resource(uri) => AccessItem::Resource(uri),
        }
    }
}
