//! Locates the values of a host's file: JSON with comments, TOML or YAML. The file is edited by the byte ranges found
//! here, so comments, order and spaces of all other text stay.

use std::ops::Range;

use jsonc_parser::ast::{ObjectPropName, Value};
use jsonc_parser::common::Ranged as _;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

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
            Syntax::Json => json(text)?,
            Syntax::Toml => toml(text)?,
            Syntax::Yaml => yaml(text)?,
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

/// As VS Code and Zed read it, and no looser: JSON5 stays a mistake.
const JSON_OPTIONS: ParseOptions = ParseOptions {
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

fn json(text: &str) -> Result<LocatedNode, SyntaxError> {
    let parsed = parse_to_ast(text, &CollectOptions::default(), &JSON_OPTIONS)
        .map_err(|error| SyntaxError::at(text, error.range().start, error.kind().to_string()))?;
    parsed.value.map(json_node).ok_or_else(|| SyntaxError::at(text, text.len(), "there is no value"))
}

fn json_node(value: Value<'_>) -> LocatedNode {
    let range = value.start()..value.end();
    let kind = match value {
        Value::StringLit(text) => NodeKind::Text(text.value.into_owned()),
        Value::Array(list) => NodeKind::List(list.elements.into_iter().map(json_node).collect()),
        Value::Object(table) => {
            let members = table.properties.into_iter().map(|property| {
                let key_range = property.name.start()..property.name.end();
                let key = match property.name {
                    ObjectPropName::String(name) => name.value.into_owned(),
                    ObjectPropName::Word(name) => name.value.to_owned(),
                };
                LocatedMember { key, key_range, value: json_node(property.value) }
            });
            NodeKind::Table(members.collect())
        }
        Value::NumberLit(_) | Value::BooleanLit(_) | Value::NullKeyword(_) => NodeKind::Other,
    };
    LocatedNode { range, kind }
}

fn toml(text: &str) -> Result<LocatedNode, SyntaxError> {
    let table = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(text.len(), |span| span.start);
        SyntaxError::at(text, at, error.message())
    })?;
    let range = table.span();
    Ok(LocatedNode { range, kind: toml_members(table.into_inner()) })
}

fn toml_members(table: DeTable<'_>) -> NodeKind {
    let members = table.into_iter().map(|(key, value)| LocatedMember {
        key_range: key.span(),
        key: key.into_inner().into_owned(),
        value: toml_node(value),
    });
    NodeKind::Table(members.collect())
}

fn toml_node(value: Spanned<DeValue<'_>>) -> LocatedNode {
    let range = value.span();
    let kind = match value.into_inner() {
        DeValue::String(text) => NodeKind::Text(text.into_owned()),
        DeValue::Array(items) => NodeKind::List(items.into_iter().map(toml_node).collect()),
        DeValue::Table(table) => toml_members(table),
        DeValue::Integer(_) | DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => NodeKind::Other,
    };
    LocatedNode { range, kind }
}

fn yaml(text: &str) -> Result<LocatedNode, SyntaxError> {
    // The parser counts characters.
    let offsets = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut reader = EventReader { text, offsets, parser: Parser::new_from_str(text) };
    let mut root = None;
    while let Some((event, span)) = reader.next()? {
        if root.is_some() && matches!(event, Event::DocumentStart(_)) {
            return Err(reader.error(span, "a second document begins; keep one"));
        }
        if matches!(event, Event::Alias(_) | Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..)) {
            root = Some(reader.node(event, span, DEPTH_MAX)?);
        }
    }
    root.ok_or_else(|| SyntaxError::at(text, text.len(), "there is no value"))
}

struct EventReader<'t> {
    text: &'t str,
    offsets: Vec<usize>,
    parser: Parser<'t, StrInput<'t>>,
}

impl<'t> EventReader<'t> {
    fn next(&mut self) -> Result<Option<(Event<'t>, Span)>, SyntaxError> {
        let text = self.text;
        let offsets = &self.offsets;
        let refused = |error: ScanError| {
            let at = offsets.get(error.marker().index()).copied().unwrap_or(text.len());
            SyntaxError::at(text, at, error.info())
        };
        self.parser.next_event().transpose().map_err(refused)
    }

    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<LocatedNode, SyntaxError> {
        if depth == 0 {
            return Err(self.error(span, "nested too deeply"));
        }
        let mut range = self.bytes(span);
        let (kind, anchor) = match event {
            // Only text on one line can be moved.
            Event::Scalar(_, ScalarStyle::Literal | ScalarStyle::Folded, anchor, _) => (NodeKind::Other, anchor),
            Event::Scalar(text, style, anchor, _) => {
                // The parser's range of a quoted scalar has the comment behind it.
                match style {
                    ScalarStyle::SingleQuoted => range.end = self.behind_quote(range.start, '\''),
                    ScalarStyle::DoubleQuoted => range.end = self.behind_quote(range.start, '"'),
                    ScalarStyle::Plain | ScalarStyle::Literal | ScalarStyle::Folded => (),
                }
                (NodeKind::Text(text.into_owned()), anchor)
            }
            Event::SequenceStart(anchor, _) => {
                let mut items = Vec::new();
                while let Some((event, span)) = self.next()? {
                    if event == Event::SequenceEnd {
                        range.end = self.behind_bracket(span);
                        break;
                    }
                    items.push(self.node(event, span, depth - 1)?);
                }
                (NodeKind::List(items), anchor)
            }
            Event::MappingStart(anchor, _) => {
                let mut members = Vec::new();
                while let Some((event, span)) = self.next()? {
                    if event == Event::MappingEnd {
                        range.end = self.behind_bracket(span);
                        break;
                    }
                    let key = self.node(event, span, depth - 1)?;
                    let Some((event, span)) = self.next()? else { break };
                    let value = self.node(event, span, depth - 1)?;
                    let NodeKind::Text(name) = key.kind else { continue };
                    members.push(LocatedMember { key: name, key_range: key.range, value });
                }
                (NodeKind::Table(members), anchor)
            }
            Event::Alias(_) => (NodeKind::Shared, 0),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => (NodeKind::Other, 0),
        };
        let kind = if anchor == 0 { kind } else { NodeKind::Shared };
        Ok(LocatedNode { range, kind })
    }

    /// The offset behind the quote that ends the scalar at `start`.
    fn behind_quote(&self, start: usize, quote: char) -> usize {
        let mut rest = self.text[start..].char_indices().skip(1).peekable();
        while let Some((at, c)) = rest.next() {
            let is_doubled = quote == '\'' && rest.peek().is_some_and(|(_, next)| *next == quote);
            if (c == '\\' && quote == '"') || (c == quote && is_doubled) {
                rest.next();
            } else if c == quote {
                return start + at + c.len_utf8();
            }
        }
        self.text.len()
    }

    /// The end of a collection; the parser's range of a bracket has the comment behind it.
    fn behind_bracket(&self, span: Span) -> usize {
        let at = self.bytes(span).start;
        if self.text[at..].starts_with([']', '}']) { at + 1 } else { at }
    }

    fn bytes(&self, span: Span) -> Range<usize> {
        let offset = |index: usize| self.offsets.get(index).copied().unwrap_or(self.text.len());
        offset(span.start.index())..offset(span.end.index())
    }

    fn error(&self, span: Span, what: &str) -> SyntaxError {
        SyntaxError::at(self.text, self.bytes(span).start, what)
    }
}
