//! Arguments that a tool wants repeated in headers (`x-mcp-header`, protocol.md 1.13).
//!
//! The annotation stands in the tool's input schema, so it is read once per tool list, and each call's
//! headers are compared with its arguments.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::HeaderName;
use serde_json::Value;

use super::headers;
use crate::dialect::Complaint;
use crate::wire::{Object, Payload};

const ANNOTATION: &str = "x-mcp-header";

/// One argument that is repeated in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrored {
    /// Member names from `arguments` inwards.
    path: Vec<String>,
    header: HeaderName,
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
            let header = HeaderName::try_from(format!("{}{header}", headers::PARAM_PREFIX)).ok()?;
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

/// Compares a call's headers with its arguments (MOD-06, MOD-07, B116). Headers that no annotation
/// names are nobody's business (B76).
///
/// # Errors
/// [`Complaint::Header`] or [`Complaint::Params`] that names the header.
pub fn check(mirrored: &[Mirrored], all: &HeaderMap, arguments: Option<&Object>) -> Result<(), Complaint> {
    for one in mirrored {
        let complain = |what: &str| Complaint::Header(Cow::Owned(format!("{} {what}", one.header)));
        let header = headers::single(all, &one.header)?;
        match (header, one.argument(arguments)) {
            (None, None) => (),
            (None, Some(_)) => return Err(complain("is missing")),
            (Some(_), None) => return Err(complain("is there, but its argument is not")),
            (Some(header), Some(argument)) => {
                let header = headers::decode(header).ok_or_else(|| complain("is not validly encoded"))?;
                if !one.kind.agree(&header, &argument) {
                    return Err(complain("differs from its argument"));
                }
                // Another server may take the text to end there (B81).
                if header.contains('\0') {
                    let what = format!("the argument of {} holds a null character", one.header);
                    return Err(Complaint::Params(Cow::Owned(what)));
                }
            }
        }
    }
    Ok(())
}

impl Mirrored {
    /// The argument's value; `null` counts as absent.
    fn argument(&self, arguments: Option<&Object>) -> Option<Payload> {
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
    use http::HeaderValue;

    use super::*;
    use crate::wire::ScanLimits;

    fn payload(text: &str) -> Payload {
        Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::UPSTREAM).unwrap()
    }

    const SCHEMA: &str = r#"{"type":"object","properties":{
        "region":{"type":"string","x-mcp-header":"Region"},
        "deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"Count"}}},
        "dry":{"type":"boolean","x-mcp-header":"Dry"}}}"#;

    #[track_caller]
    fn check_call(header: &[(&'static str, &'static str)], arguments: &str, accepted: bool) {
        let Annotations::Valid(mirrored) = read(&payload(SCHEMA)) else { panic!("the schema is valid") };
        let mut all = HeaderMap::new();
        for (name, value) in header {
            all.append(*name, HeaderValue::from_static(value));
        }
        let arguments = Object::of(&payload(arguments));
        assert_eq!(check(&mirrored, &all, arguments.as_ref()).is_ok(), accepted, "{header:?} {arguments:?}");
    }

    /// MOD-06, MOD-07, B76, B116.
    #[test]
    fn headers_must_repeat_the_arguments_that_are_there() {
        check_call(&[], "{}", true);
        check_call(&[], r#"{"region":null}"#, true);
        check_call(&[("mcp-param-region", "eu")], r#"{"region":"eu"}"#, true);
        check_call(&[("mcp-param-region", "=?base64?ZXU=?=")], r#"{"region":"eu"}"#, true);
        check_call(&[("mcp-param-region", "=?base64?ZXU?=")], r#"{"region":"eu"}"#, false);
        check_call(&[("mcp-param-region", "EU")], r#"{"region":"eu"}"#, false);
        check_call(&[], r#"{"region":"eu"}"#, false);
        check_call(&[("mcp-param-region", "eu")], "{}", false);
        check_call(&[("mcp-param-region", "eu"), ("mcp-param-region", "eu")], r#"{"region":"eu"}"#, false);
        check_call(&[("mcp-param-count", "7")], r#"{"deep":{"n":7}}"#, true);
        check_call(&[("mcp-param-count", "7")], r#"{"deep":{"n":7.0}}"#, true);
        check_call(&[("mcp-param-count", "8")], r#"{"deep":{"n":7}}"#, false);
        check_call(&[("mcp-param-dry", "true")], r#"{"dry":true}"#, true);
        check_call(&[("mcp-param-dry", "True")], r#"{"dry":true}"#, false);
        check_call(&[("mcp-param-other", "x")], "{}", true);
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
