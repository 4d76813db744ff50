//! Locates the values of JSON with comments and trailing commas.

use jsonc_parser::ast::{ObjectPropName, Value};
use jsonc_parser::common::{Range, Ranged as _};
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::{LocatedMember, LocatedNode, NodeKind, SyntaxError};

/// As VS Code and Zed read it, and no looser: JSON5 stays a mistake.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_loose_object_property_names: false,
    allow_trailing_commas: true,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

pub(super) fn parse(text: &str) -> Result<LocatedNode, SyntaxError> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &OPTIONS)
        .map_err(|error| SyntaxError::at(text, error.range().start, error.kind().to_string()))?;
    match parsed.value {
        Some(value) => Ok(located(value)),
        None => Err(SyntaxError::at(text, text.len(), "there is no value")),
    }
}

fn located(value: Value<'_>) -> LocatedNode {
    let range = bytes(value.range());
    let kind = match value {
        Value::StringLit(text) => NodeKind::Text(text.value.into_owned()),
        Value::Array(list) => NodeKind::List(list.elements.into_iter().map(located).collect()),
        Value::Object(table) => {
            let members = table.properties.into_iter().map(|property| {
                let key_range = bytes(property.name.range());
                let key = match property.name {
                    ObjectPropName::String(name) => name.value.into_owned(),
                    ObjectPropName::Word(name) => name.value.to_owned(),
                };
                LocatedMember { key, key_range, value: located(property.value) }
            });
            NodeKind::Table(members.collect())
        }
        Value::NumberLit(_) | Value::BooleanLit(_) | Value::NullKeyword(_) => NodeKind::Other,
    };
    LocatedNode { range, kind }
}

fn bytes(range: Range) -> std::ops::Range<usize> {
    range.start..range.end
}
