//! Names the tool, prompt or resource that a request is about, for a later check of its caller's rights.

use std::borrow::Cow;
use std::sync::Arc;

use crate::dialect::RequestError;
use crate::task::AccessItem;
use crate::wire::{Object, method};

/// The longest name that is kept with the events or questions of a request.
pub(super) const NAME_BYTES_MAX: usize = 1_024;

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
                // Servers read the member that the type names.
                match reference.get_str("type").as_deref() {
                    Some("ref/resource") => text(&reference, "uri").map(Self::Resource),
                    _ => text(&reference, "name").map(Self::Prompt),
                }
            }
            _ => None,
        }
    }

    /// Whether its name is short enough to be kept.
    pub(super) fn is_short(&self) -> bool {
        let (Self::Tool(name) | Self::Prompt(name) | Self::Resource(name)) = self;
        name.len() <= NAME_BYTES_MAX
    }

    pub(super) fn as_access_item(&self) -> AccessItem<'_> {
        match self {
            Self::Tool(name) => AccessItem::Tool(name),
            Self::Prompt(name) => AccessItem::Prompt(name),
            Self::Resource(uri) => AccessItem::Resource(uri),
        }
    }
}

/// The name of the called tool; an error if it is missing or ambiguous (B81, B98).
pub(super) fn tool_name(params: Option<&Object>) -> Result<Cow<'_, str>, RequestError> {
    let invalid = RequestError::params;
    let params = params.ok_or_else(|| invalid("params must be an object"))?;
    if params.contains("arguments") && !params.has_object("arguments") {
        return Err(invalid("arguments must be an object"));
    }
    let name = params.get_str("name").filter(|name| !name.contains('\0'));
    name.ok_or_else(|| invalid("name must be a string without null characters"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::Payload;

    #[test]
    fn requests_name_a_tool_a_prompt_or_a_resource() {
        let named = |method: &str, params: Value| NamedItem::of(method, &Object::of(&Payload::of(&params)).unwrap());
        let (prompt, resource) = (NamedItem::Prompt(Arc::from("p")), NamedItem::Resource(Arc::from("x://r")));
        for (method, params, expected) in [
            (method::TOOLS_CALL, json!({ "name": "t" }), Some(NamedItem::Tool(Arc::from("t")))),
            (method::PROMPTS_GET, json!({ "name": "p" }), Some(prompt.clone())),
            (method::RESOURCES_READ, json!({ "uri": "x://r" }), Some(resource.clone())),
            (method::COMPLETE, json!({ "ref": { "type": "ref/prompt", "name": "p" } }), Some(prompt)),
            (method::COMPLETE, json!({ "ref": { "type": "ref/resource", "uri": "x://r" } }), Some(resource)),
            (
                method::COMPLETE,
                json!({ "ref": { "type": "ref/prompt", "name": "p", "uri": "x://other" } }),
                Some(NamedItem::Prompt(Arc::from("p"))),
            ),
            (method::TOOLS_LIST, json!({ "name": "t" }), None),
        ] {
            assert_eq!(named(method, params), expected, "{method}");
        }
        for (length, is_short) in [(NAME_BYTES_MAX, true), (NAME_BYTES_MAX + 1, false)] {
            let item = named(method::RESOURCES_READ, json!({ "uri": "x".repeat(length) })).unwrap();
            assert_eq!(item.is_short(), is_short, "{length}");
        }
    }
}
