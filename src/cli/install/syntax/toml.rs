//! Locates the values of TOML.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{LocatedMember, LocatedNode, NodeKind, SyntaxError};

pub(super) fn parse(text: &str) -> Result<LocatedNode, SyntaxError> {
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(text.len(), |span| span.start);
        SyntaxError::at(text, at, error.message())
    })?;
    let range = table.span();
    Ok(LocatedNode { range, kind: members(table.into_inner()) })
}

fn members(table: DeTable<'_>) -> NodeKind {
    let members = table.into_iter().map(|(key, value)| LocatedMember {
        key_range: key.span(),
        key: key.into_inner().into_owned(),
        value: located(value),
    });
    NodeKind::Table(members.collect())
}

fn located(value: Spanned<DeValue<'_>>) -> LocatedNode {
    let range = value.span();
    let kind = match value.into_inner() {
        DeValue::String(text) => NodeKind::Text(text.into_owned()),
        DeValue::Array(items) => NodeKind::List(items.into_iter().map(located).collect()),
        DeValue::Table(table) => members(table),
        DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => NodeKind::Other,
    };
    LocatedNode { range, kind }
}
