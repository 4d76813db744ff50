//! Summarises a tool's `inputSchema` for a line of text.

use std::fmt::Write as _;

use serde_json::Value;

use super::printable::printable;
use crate::wire::{Object, Payload};

const VALUES_MAX: usize = 6;

#[derive(Debug)]
pub(super) struct ToolSchema {
    /// In the order of the schema.
    pub(super) arguments: Vec<ArgumentSchema>,
    /// Whether it accepts further arguments.
    pub(super) is_open: bool,
}

#[derive(Debug)]
pub(super) struct ArgumentSchema {
    pub(super) name: String,
    /// The accepted JSON Schema types; empty if the schema has none.
    pub(super) types: Vec<String>,
    /// The only accepted values, if enumerated.
    pub(super) values: Vec<Value>,
    pub(super) is_required: bool,
    items: Option<String>,
    default: Option<Value>,
}

impl ToolSchema {
    pub(super) fn of(tool: &Object) -> Self {
        let nothing = Self { arguments: Vec::new(), is_open: true };
        let Some(schema) = tool.get_object("inputSchema") else { return nothing };
        let whole: Value = schema.payload().read().unwrap_or_default();
        let properties = schema.get_object("properties");
        let required = whole["required"].as_array();
        let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|one| one == name));
        let arguments = properties.iter().flat_map(Object::entries).map(|(name, property)| {
            let is_required = is_required(&name);
            ArgumentSchema::of(name.into_owned(), &property, is_required, &whole)
        });
        let has_more = |key: &str| matches!(&whole[key], Value::Bool(true) | Value::Object(_));
        let is_open = properties.is_none() || has_more("additionalProperties") || has_more("patternProperties");
        Self { arguments: arguments.collect(), is_open }
    }

    pub(super) fn argument(&self, name: &str) -> Option<&ArgumentSchema> {
        self.arguments.iter().find(|argument| argument.name == name)
    }

    pub(super) fn signature(&self) -> String {
        let arguments: Vec<String> = self.arguments.iter().map(ArgumentSchema::signature).collect();
        let more = if self.is_open && !arguments.is_empty() { ", ..." } else { "" };
        format!("({}{more})", arguments.join(", "))
    }
}

impl ArgumentSchema {
    fn of(name: String, property: &Payload, is_required: bool, whole: &Value) -> Self {
        let property: Value = property.read().unwrap_or_default();
        let mut argument = Self {
            name,
            types: Vec::new(),
            values: Vec::new(),
            is_required,
            items: None,
            default: property.get("default").cloned(),
        };
        argument.add_types(&property, whole, 0);
        argument
    }

    /// Adds the types that a schema and its parts allow.
    fn add_types(&mut self, schema: &Value, whole: &Value, depth: usize) {
        /// Schemas may be recursive.
        const DEPTH_MAX: usize = 4;
        if depth > DEPTH_MAX {
            return;
        }
        let named = match &schema["type"] {
            Value::String(name) => vec![name.clone()],
            Value::Array(names) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
        };
        self.types.extend(named.into_iter().filter(|name| !self.types.contains(name)).collect::<Vec<_>>());
        self.values.extend(schema["enum"].as_array().into_iter().flatten().chain(schema.get("const")).cloned());
        if let Some(items) = schema["items"]["type"].as_str() {
            self.items = Some(items.to_owned());
        }
        let referred = schema["$ref"].as_str().and_then(|place| whole.pointer(place.strip_prefix('#')?));
        let parts = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
        for part in referred.into_iter().chain(parts) {
            self.add_types(part, whole, depth + 1);
        }
    }

    pub(super) fn words(&self) -> String {
        if !self.values.is_empty() {
            let shown: Vec<String> = self.values.iter().take(VALUES_MAX).map(Value::to_string).collect();
            let more = if self.values.len() > VALUES_MAX { " | ..." } else { "" };
            return shown.join(" | ") + more;
        }
        let types = self.types.iter().map(|name| match (name.as_str(), &self.items) {
            ("array", Some(items)) => format!("{items}[]"),
            (name, _) => name.to_owned(),
        });
        let types: Vec<String> = types.filter(|name| name != "null").collect();
        if types.is_empty() { "any".to_owned() } else { types.join(" | ") }
    }

    fn signature(&self) -> String {
        let mark = if self.is_required { "" } else { "?" };
        let mut text = format!("{}{mark}: {}", printable(&self.name), printable(&self.words()));
        if let Some(default) = self.default.as_ref().filter(|default| !default.is_null()) {
            let _ = write!(text, " = {}", printable(&default.to_string()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ScanLimits;
    use bytes::Bytes;

    #[test]
    fn a_signature_has_a_tools_arguments_in_a_line() {
        for (schema, expected) in [
            ("null", "()"),
            (r#"{"type":"object"}"#, "()"),
            (
                r#"{"properties":{"b":{"type":"number"},"a":{"type":"string"}},"required":["a"]}"#,
                "(b?: number, a: string)",
            ),
            (r#"{"properties":{"n":{"type":"integer","default":3}}}"#, "(n?: integer = 3)"),
            (r#"{"properties":{"l":{"type":"array","items":{"type":"string"}}}}"#, "(l?: string[])"),
            (r#"{"properties":{"u":{"anyOf":[{"type":"integer"},{"type":"null"}],"default":null}}}"#, "(u?: integer)"),
            (r#"{"properties":{"m":{"enum":["x","y"]}}}"#, r#"(m?: "x" | "y")"#),
            (r##"{"$defs":{"M":{"enum":["x"]}},"properties":{"m":{"$ref":"#/$defs/M"}}}"##, r#"(m?: "x")"#),
            (r#"{"properties":{"a\u001b":{}},"additionalProperties":true}"#, "(a ?: any, ...)"),
            (r##"{"properties":{"r":{"$ref":"#/properties/r"}}}"##, "(r?: any)"),
        ] {
            let tool = Bytes::from(format!(r#"{{"name":"t","inputSchema":{schema}}}"#));
            let tool = Object::of(&Payload::parse(&tool, ScanLimits::UPSTREAM).unwrap()).unwrap();
            assert_eq!(ToolSchema::of(&tool).signature(), expected, "{schema}");
        }
    }
}
