//! Locates the values of a YAML document.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::{DEPTH_MAX, LocatedMember, LocatedNode, NodeKind, SyntaxError};

pub(super) fn parse(text: &str) -> Result<LocatedNode, SyntaxError> {
    // The parser counts characters.
    let offsets = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut reader = EventReader { text, offsets, parser: Parser::new_from_str(text) };
    let mut root = None;
    while let Some((event, span)) = reader.next()? {
        match event {
            Event::DocumentStart(_) if root.is_some() => {
                return Err(reader.error(span, "a second document begins; keep one"));
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => (),
            Event::Alias(_) | Event::Scalar(..) | Event::SequenceStart(..) | Event::MappingStart(..) => {
                root = Some(reader.node(event, span, DEPTH_MAX)?);
            }
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

    fn bytes(&self, span: Span) -> std::ops::Range<usize> {
        let offset = |index: usize| self.offsets.get(index).copied().unwrap_or(self.text.len());
        offset(span.start.index())..offset(span.end.index())
    }

    fn error(&self, span: Span, what: &str) -> SyntaxError {
        SyntaxError::at(self.text, self.bytes(span).start, what)
    }
}
