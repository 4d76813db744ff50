//! Locates the values of a host's file: JSON with comments, TOML or YAML. The file is edited by the byte ranges found
//! here, so comments, order and spaces of all other text stay.

mod json;
mod toml;
mod yaml;

use std::ops::Range;

/// Deeper files are refused.
const DEPTH_MAX: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// JSON with comments and trailing commas.
    Json,
    Toml,
    Yaml,
}

#[derive(Debug)]
pub(super) struct LocatedNode {
    /// The value as written, with its quotes or brackets; for a table of TOML its header.
    pub(super) range: Range<usize>,
    pub(super) kind: NodeKind,
}

#[derive(Debug)]
pub(super) enum NodeKind {
    Text(String),
    List(Vec<LocatedNode>),
    Table(Vec<LocatedMember>),
    /// A YAML value with an anchor, or an alias of one: a change would change other values, or lose the link to them.
    Shared,
    /// A number, a boolean, a null or a date.
    Other,
}

#[derive(Debug)]
pub(super) struct LocatedMember {
    pub(super) key: String,
    pub(super) key_range: Range<usize>,
    pub(super) value: LocatedNode,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {what}")]
pub(super) struct SyntaxError {
    line: usize,
    column: usize,
    what: String,
}

impl SyntaxError {
    fn at(text: &str, offset: usize, what: impl Into<String>) -> Self {
        let before = text.get(..offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.matches('\n').count() + 1;
        Self { line, column: before[line_start..].chars().count() + 1, what: what.into() }
    }
}

impl LocatedNode {
    /// Fails if the text is not valid, is nested too deeply, or names a member twice.
    pub(super) fn parse(text: &str, syntax: Syntax) -> Result<Self, SyntaxError> {
        let root = match syntax {
            Syntax::Json => json::parse(text)?,
            Syntax::Toml => toml::parse(text)?,
            Syntax::Yaml => yaml::parse(text)?,
        };
        root.check(text, DEPTH_MAX)?;
        Ok(root)
    }

    pub(super) fn members(&self) -> Option<&[LocatedMember]> {
        if let NodeKind::Table(members) = &self.kind { Some(members) } else { None }
    }

    pub(super) fn items(&self) -> Option<&[Self]> {
        if let NodeKind::List(items) = &self.kind { Some(items) } else { None }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        if let NodeKind::Text(text) = &self.kind { Some(text) } else { None }
    }

    pub(super) fn member(&self, key: &str) -> Option<&LocatedMember> {
        self.members()?.iter().find(|member| member.key == key)
    }

    fn check(&self, text: &str, depth: usize) -> Result<(), SyntaxError> {
        if depth == 0 {
            return Err(SyntaxError::at(text, self.range.start, "nested too deeply"));
        }
        for item in self.items().unwrap_or_default() {
            item.check(text, depth - 1)?;
        }
        let mut keys = std::collections::BTreeSet::new();
        for member in self.members().unwrap_or_default() {
            if !keys.insert(&member.key) {
                let what = format!("`{}` is there twice; remove one of them", member.key);
                return Err(SyntaxError::at(text, member.key_range.start, what));
            }
            member.value.check(text, depth - 1)?;
        }
        Ok(())
    }
}
