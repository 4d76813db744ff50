//! Arguments that a tool wants repeated in headers (`x-mcp-header`, protocol.md 1.13).
//!
//! The annotation stands in the tool's input schema, so it is read once per tool list. What clients send is
//! compared with it, and what the gateway itself sends is made by it.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use crate::wire::{Object, Payload};

const ANNOTATION: &str = "x-mcp-header";
/// In front of the name of a header that mirrors an argument.
pub const PARAM_PREFIX: &str = "mcp-param-";

/// One argument that is repeated in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrored {
    /// Member names from `arguments` inwards.
    path: Vec<String>,
    pub header: HeaderName,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Integer,
    Boolean,
}

/// What a schema says about headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Annotations {
    /// All of them may be relied on; usually there are none.
    Valid(Vec<Mirrored>),
    /// Some break the rules, and clients would drop the tool (UPC-16): the schema without any.
    Stripped(Payload),
}

/// Reads the annotations of an input schema. Only a schema that names the annotation at all is opened.
#[must_use]
pub fn read(schema: &Payload) -> Annotations {
    if !schema.as_str().contains(ANNOTATION) {
        return Annotations::Valid(Vec::new());
    }
    let Ok(mut tree) = schema.read::<Value>() else {
        return Annotations::Valid(Vec::new());
    };
    let mut found = Vec::new();
    let all_named = collect(&tree, &mut Vec::new(), &mut found).is_some();
    let unique = found.iter().enumerate().all(|(at, one)| found[..at].iter().all(|other| other.header != one.header));
    if all_named && unique && found.len() == count(&tree) {
        return Annotations::Valid(found);
    }
    strip(&mut tree);
    Annotations::Stripped(Payload::of(&tree))
}

/// Follows `properties` alone: an annotation reached in any other way is invalid and stays uncounted.
fn collect(schema: &Value, path: &mut Vec<String>, found: &mut Vec<Mirrored>) -> Option<()> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return Some(());
    };
    for (name, property) in properties {
        path.push(name.clone());
        if let Some(annotation) = property.get(ANNOTATION) {
            let header = annotation.as_str().filter(|text| !text.is_empty())?;
            let header = HeaderName::try_from(format!("{}{header}", PARAM_PREFIX)).ok()?;
            let kind = match property.get("type").and_then(Value::as_str) {
                Some("string") => Kind::Text,
                Some("integer") => Kind::Integer,
                Some("boolean") => Kind::Boolean,
                _ => return None,
            };
            found.push(Mirrored { path: path.clone(), header, kind });
        }
        collect(property, path, found)?;
        path.pop();
    }
    Some(())
}

fn count(tree: &Value) -> usize {
    match tree {
        Value::Object(members) => {
            usize::from(members.contains_key(ANNOTATION)) + members.values().map(count).sum::<usize>()
        }
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn strip(tree: &mut Value) {
    match tree {
        Value::Object(members) => {
            members.remove(ANNOTATION);
            members.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => (),
    }
}

/// The headers that repeat a call's arguments, those that are there and not `null` (UPC-15).
#[must_use]
pub fn headers_of(mirrored: &[Mirrored], arguments: Option<&Object>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for one in mirrored {
        let Some(argument) = one.argument(arguments) else { continue };
        let text = match one.kind {
            Kind::Text => argument.read::<Cow<'_, str>>().ok(),
            Kind::Integer | Kind::Boolean => Some(Cow::Borrowed(argument.as_str())),
        };
        if let Some(value) = text.and_then(|text| encode(&text)) {
            headers.insert(one.header.clone(), value);
        }
    }
    headers
}

/// A text as a header's value: itself where that is read back as it is, else wrapped (protocol.md 1.6).
#[must_use]
pub fn encode(text: &str) -> Option<HeaderValue> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
        && text.trim_matches(' ').len() == text.len()
        && !text.starts_with("=?base64?");
    if is_plain {
        HeaderValue::from_str(text)
    } else {
        HeaderValue::from_str(&format!("=?base64?{}?=", STANDARD.encode(text)))
    }
    .ok()
}

impl Mirrored {
    /// Whether a header's text, decoded, says what the argument says.
    #[must_use]
    pub fn agrees(&self, header: &str, argument: &Payload) -> bool {
        self.kind.agree(header, argument)
    }

    /// The argument's value; `null` counts as absent.
    #[must_use]
    pub fn argument(&self, arguments: Option<&Object>) -> Option<Payload> {
        let (last, outer) = self.path.split_last()?;
        let mut object = arguments?.clone();
        for name in outer {
            object = object.get_object(name)?;
        }
        object.get(last).filter(|value| value.as_str() != "null")
    }
}

impl Kind {
    fn agree(self, header: &str, argument: &Payload) -> bool {
        match self {
            Self::Text => argument.read::<String>().is_ok_and(|text| text == header),
            Self::Boolean => argument.as_str() == header,
            // Compared as numbers: `1` is `01` in neither notation, but `1.0` and `1e0` are 1.
            Self::Integer => match (header.parse::<i64>(), argument.as_str().parse::<i64>()) {
                (Ok(header), Ok(argument)) => header == argument,
                _ => match (header.parse::<f64>(), argument.as_str().parse::<f64>()) {
                    (Ok(header), Ok(argument)) => header.is_finite() && header == argument,
                    _ => false,
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::ScanLimits;

    fn payload(text: &str) -> Payload {
        Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::UPSTREAM).unwrap()
    }

    /// UPC-15, protocol.md 1.6 and 1.13.
    #[test]
    fn upc15_arguments_that_are_there_are_repeated_and_odd_ones_wrapped() {
        let schema = r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},
            "n":{"type":"integer","x-mcp-header":"N"},"d":{"properties":{"b":{"type":"boolean","x-mcp-header":"B"}}}}}"#;
        let Annotations::Valid(mirrored) = read(&payload(schema)) else { panic!("the schema is valid") };
        for (arguments, headers) in [
            ("{}", ""),
            (r#"{"a":null}"#, ""),
            (r#"{"a":"eu west","n":7,"d":{"b":false}}"#, "a: eu west; b: false; n: 7"),
            (r#"{"a":" x"}"#, "a: =?base64?IHg=?="),
            (r#"{"a":"\u00e9\n"}"#, "a: =?base64?w6kK?="),
            (r#"{"a":"=?base64?eA==?="}"#, "a: =?base64?PT9iYXNlNjQ/ZUE9PT89?="),
            (r#"{"a":""}"#, "a: "),
        ] {
            let all = headers_of(&mirrored, Object::of(&payload(arguments)).as_ref());
            let mut lines: Vec<_> = all
                .iter()
                .map(|(name, value)| {
                    format!("{}: {}", name.as_str().trim_start_matches(PARAM_PREFIX), value.to_str().unwrap())
                })
                .collect();
            lines.sort();
            assert_eq!(lines.join("; "), headers, "{arguments}");
        }
    }

    /// UPC-16, protocol.md 1.13.
    #[test]
    fn annotations_that_break_the_rules_are_taken_out() {
        for schema in [
            r#"{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":""}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}"#,
            r#"{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}"#,
        ] {
            let Annotations::Stripped(stripped) = read(&payload(schema)) else { panic!("{schema} was accepted") };
            assert!(!stripped.as_str().contains(ANNOTATION), "{}", stripped.as_str());
        }
        assert_eq!(read(&payload(r#"{"properties":{}}"#)), Annotations::Valid(vec![]));
    }
}
