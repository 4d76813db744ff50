//! Mirrors a tool's annotated arguments in headers (`x-mcp-header`, UPC-15). Annotations are read once per tool list;
//! clients' headers are checked against them, and the gateway's headers are generated from them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::wire::walk::{self, ValueWalk};
use crate::wire::{Object, Payload, method};

pub const METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub const NAME: HeaderName = HeaderName::from_static("mcp-name");

const ANNOTATION: &str = "x-mcp-header";
pub const PARAM_PREFIX: &str = "mcp-param-";
/// Most annotations of one schema. Each is a header of every call; with more, all are removed.
const ANNOTATIONS_MAX: usize = 64;
/// Longest path to an annotated argument: each annotation keeps a copy.
const PATH_BYTES_MAX: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderArgument {
    /// Member names from `arguments` inwards.
    path: Vec<String>,
    pub header: HeaderName,
    kind: HeaderValueKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderValueKind {
    Text,
    Integer,
    Boolean,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderAnnotations {
    /// All are valid; usually there are none.
    Valid(Vec<HeaderArgument>),
    /// Some break the rules, and clients would drop the tool (UPC-16).
    Stripped {
        /// The schema without the invalid ones, else verbatim.
        schema: Payload,
        kept: Vec<HeaderArgument>,
    },
}

/// Reads the annotations of an input schema, in one walk. Only a schema that may contain one is parsed.
pub fn read(schema: &Payload) -> HeaderAnnotations {
    let text = schema.as_str();
    // A name may be written with escapes.
    if !text.contains(ANNOTATION) && !text.contains('\\') {
        return HeaderAnnotations::Valid(Vec::new());
    }
    let mut reader = SchemaReader { walk: ValueWalk::of(schema), path: Vec::new(), found: Vec::new() };
    reader.schema(SchemaReach::Root);
    judge(schema, reader.found)
}

/// Whether an HTTP client may use a tool: an invalid annotation forbids it.
pub fn are_valid(tool: &Object) -> bool {
    let annotations = tool.get("inputSchema").as_ref().map(read);
    !matches!(annotations, Some(HeaderAnnotations::Stripped { .. }))
}

fn judge(schema: &Payload, mut found: Vec<FoundAnnotation>) -> HeaderAnnotations {
    let mut named: HashMap<HeaderName, usize> = HashMap::new();
    for one in found.iter().filter_map(|found| found.mirrored.as_ref()) {
        *named.entry(one.header.clone()).or_default() += 1;
    }
    let too_many = found.len() > ANNOTATIONS_MAX;
    found.sort_unstable_by_key(|found| found.place.start);
    let (mut kept, mut gone) = (Vec::new(), Vec::new());
    for FoundAnnotation { place, mirrored } in found {
        match mirrored.filter(|one| !too_many && named[&one.header] == 1) {
            Some(one) => kept.push(one),
            None => gone.push(place),
        }
    }
    if gone.is_empty() {
        return HeaderAnnotations::Valid(kept);
    }
    HeaderAnnotations::Stripped { schema: walk::without(schema, &gone), kept }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchemaReach {
    Root,
    /// Through `properties` only: an argument's schema, which may be annotated.
    Property,
    /// Through other keywords. Whether it applies to an argument depends on the call.
    Elsewhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeywordContent {
    Properties,
    Named,
    /// A schema, or an array of them.
    Schemas,
    /// No schema: an annotation in it is a value.
    Data,
}

const SCHEMA_KEYWORDS: &str = "allOf anyOf oneOf prefixItems items additionalItems contains additionalProperties \
    propertyNames unevaluatedItems unevaluatedProperties not if then else contentSchema";

impl KeywordContent {
    fn of(keyword: &str) -> Self {
        match keyword {
            "properties" => Self::Properties,
            "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies" => Self::Named,
            _ if SCHEMA_KEYWORDS.split(' ').any(|known| known == keyword) => Self::Schemas,
            _ => Self::Data,
        }
    }
}

#[derive(Debug)]
struct FoundAnnotation {
    /// The text to remove if it breaks the rules.
    place: Range<usize>,
    mirrored: Option<HeaderArgument>,
}

/// Walks through a schema. Recursion is as deep as the schema's nesting, which the scan has bounded.
#[derive(Debug)]
struct SchemaReader<'t> {
    walk: ValueWalk<'t>,
    path: Vec<Cow<'t, str>>,
    found: Vec<FoundAnnotation>,
}

impl SchemaReader<'_> {
    fn schema(&mut self, reach: SchemaReach) {
        if self.walk.kind() != walk::WalkedKind::Object {
            self.walk.skip();
            return;
        }
        self.walk.enter();
        let (mut annotation, mut kind) = (None, None);
        while let Some(key) = self.walk.member() {
            match &*key.name {
                ANNOTATION => {
                    let text = self.walk.skip();
                    annotation = Some((text, self.walk.extent(&key)));
                }
                "type" => kind = HeaderValueKind::of(self.walk.skip()),
                keyword => self.below(KeywordContent::of(keyword), reach),
            }
        }
        if let Some((text, place)) = annotation {
            let mirrored = if reach == SchemaReach::Property { self.mirrored(text, kind) } else { None };
            self.found.push(FoundAnnotation { place, mirrored });
        }
    }

    fn below(&mut self, holds: KeywordContent, reach: SchemaReach) {
        match (holds, self.walk.kind()) {
            (KeywordContent::Properties | KeywordContent::Named, walk::WalkedKind::Object) => {
                let is_property = holds == KeywordContent::Properties && reach != SchemaReach::Elsewhere;
                let reach = if is_property { SchemaReach::Property } else { SchemaReach::Elsewhere };
                self.walk.enter();
                while let Some(key) = self.walk.member() {
                    self.path.push(key.name);
                    self.schema(reach);
                    self.path.pop();
                }
            }
            (KeywordContent::Schemas, walk::WalkedKind::Object) => self.schema(SchemaReach::Elsewhere),
            (KeywordContent::Schemas, walk::WalkedKind::Array) => {
                self.walk.enter();
                while self.walk.advance_to_item() {
                    self.schema(SchemaReach::Elsewhere);
                }
            }
            _ => {
                self.walk.skip();
            }
        }
    }

    fn mirrored(&self, annotation: &str, kind: Option<HeaderValueKind>) -> Option<HeaderArgument> {
        let name: Cow<'_, str> = serde_json::from_str(annotation).ok()?;
        let path_bytes = self.path.iter().map(|name| name.len()).sum::<usize>();
        if name.is_empty() || self.found.len() > ANNOTATIONS_MAX || path_bytes > PATH_BYTES_MAX {
            return None;
        }
        let header = HeaderName::try_from(format!("{PARAM_PREFIX}{name}")).ok()?;
        let path = self.path.iter().map(|name| name.clone().into_owned()).collect();
        Some(HeaderArgument { path, header, kind: kind? })
    }
}

pub fn naming_member(method: &str) -> Option<&'static str> {
    match method {
        method::TOOLS_CALL | method::PROMPTS_GET => Some("name"),
        method::RESOURCES_READ => Some("uri"),
        method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL => Some("taskId"),
        _ => None,
    }
}

/// The headers that repeat a request's method, name and mirrored arguments (UPC-10, UPC-15).
pub fn repeating(method: &str, params: &Object, mirrored: &[HeaderArgument]) -> Vec<(HeaderName, HeaderValue)> {
    let name = naming_member(method).and_then(|member| encode(&params.get_str(member)?));
    let arguments = (!mirrored.is_empty()).then(|| params.get_object("arguments")).flatten();
    let known = [(METHOD, HeaderValue::from_str(method).ok()), (NAME, name)].into_iter();
    let mut headers: Vec<_> = known.filter_map(|(name, value)| Some((name, value?))).collect();
    headers.extend(headers_of(mirrored, arguments.as_ref()).iter().map(|(name, value)| (name.clone(), value.clone())));
    headers
}

/// The headers that mirror a call's arguments, except absent and `null` ones (UPC-15).
pub fn headers_of(mirrored: &[HeaderArgument], arguments: Option<&Object>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for one in mirrored {
        let Some(argument) = one.argument(arguments) else { continue };
        let text = match one.kind {
            HeaderValueKind::Text => argument.read::<Cow<'_, str>>().ok(),
            HeaderValueKind::Integer | HeaderValueKind::Boolean => Some(Cow::Borrowed(argument.as_str())),
        };
        if let Some(value) = text.and_then(|text| encode(&text)) {
            headers.insert(one.header.clone(), value);
        }
    }
    headers
}

/// A text as a header value: verbatim if it is read back unchanged, else wrapped (UPC-27).
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

impl HeaderArgument {
    pub(crate) fn text_bytes(&self) -> usize {
        self.path.iter().map(String::len).sum::<usize>() + self.header.as_str().len()
    }

    pub fn agrees(&self, header: &str, argument: &Payload) -> bool {
        self.kind.agree(header, argument)
    }

    /// The argument's value; `null` counts as absent.
    pub fn argument(&self, arguments: Option<&Object>) -> Option<Payload> {
        let (last, outer) = self.path.split_last()?;
        let mut object = arguments?.clone();
        for name in outer {
            object = object.get_object(name)?;
        }
        object.get(last).filter(|value| value.as_str() != "null")
    }
}

impl HeaderValueKind {
    fn of(text: &str) -> Option<Self> {
        match &*serde_json::from_str::<Cow<'_, str>>(text).ok()? {
            "string" => Some(Self::Text),
            "integer" => Some(Self::Integer),
            "boolean" => Some(Self::Boolean),
            _ => None,
        }
    }

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

    /// UPC-15, UPC-27.
    #[test]
    fn upc15_arguments_that_are_there_are_repeated_and_odd_ones_wrapped() {
        let schema = r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},
            "n":{"type":"integer","x-mcp-header":"N"},"d":{"properties":{"b":{"type":"boolean","x-mcp-header":"B"}}}}}"#;
        let HeaderAnnotations::Valid(mirrored) = read(&payload(schema)) else { panic!("the schema is valid") };
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

    #[test]
    fn u51_an_annotation_at_the_end_of_a_long_path_is_taken_out() {
        for (length, is_kept) in [(PATH_BYTES_MAX, true), (PATH_BYTES_MAX + 1, false)] {
            let name = "x".repeat(length - 1);
            let inner = r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}"#;
            let found = read(&payload(&format!(r#"{{"properties":{{"{name}":{inner}}}}}"#)));
            assert_eq!(matches!(found, HeaderAnnotations::Valid(kept) if kept.len() == 1), is_kept, "{length}");
        }
    }

    /// UPC-16.
    #[test]
    fn annotations_that_break_the_rules_are_taken_out() {
        for schema in [
            r#"{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":""}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}"#,
            r#"{"properties":{"a":{"type":"array","items":{"type":"string","x-mcp-header":"A"}}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}"#,
            r#"{"properties":{"a":{"type":"string","x-mcp\u002dheader":"a b"}}}"#,
            r#"{"x-mcp-header":"A","type":"string"}"#,
            r#"{"$defs":{"a":{"type":"string","x-mcp-header":"A"}},"anyOf":[{"properties":{"b":{"type":"string","x-mcp-header":"B"}}}]}"#,
        ] {
            let HeaderAnnotations::Stripped { schema: stripped, kept } = read(&payload(schema)) else {
                panic!("{schema} was accepted")
            };
            assert!(!stripped.as_str().contains("header"), "{}", stripped.as_str());
            payload(stripped.as_str());
            assert_eq!(kept, []);
        }
        assert_eq!(read(&payload(r#"{"properties":{}}"#)), HeaderAnnotations::Valid(vec![]));
    }

    fn names(mirrored: &[HeaderArgument]) -> Vec<String> {
        mirrored.iter().map(|one| format!("{}={}", one.header, one.path.join("."))).collect()
    }

    #[test]
    fn a_member_that_is_no_schema_is_a_value_under_any_name() {
        for schema in [
            r#"{"properties":{"x-mcp-header":{"type":"string"},"b":{"type":"string","x-mcp-header":"B"}}}"#,
            r#"{"default":{"x-mcp-header":1},"properties":{"b":{"type":"string","x-mcp-header":"B","examples":[{"x-mcp-header":"C"}]}}}"#,
            r#"{"properties":{"b":{"x-mcp-header":"B","type":"string","const":{"x-mcp-header":""},"enum":[{"x-mcp-header":7}]}}}"#,
        ] {
            let HeaderAnnotations::Valid(mirrored) = read(&payload(schema)) else { panic!("{schema} was changed") };
            assert_eq!(names(&mirrored), ["mcp-param-b=b"], "{schema}");
        }
    }

    #[test]
    fn only_invalid_annotations_are_removed_and_the_rest_is_unchanged() {
        let schema = r#"{ "type":"object", "properties":{"z":{"x-mcp-header":"no token", "type":"string", "maximum":1.0},
            "a":{"type":"string" ,"x-mcp-header":"A"},"d":{"properties":{"n":{"type":"integer","x-mcp-header":"N"},
            "m":{"type":"integer","x-mcp-header":"n" }}},"default":{"x-mcp-header":"x"}} }"#;
        let HeaderAnnotations::Stripped { schema: stripped, kept } = read(&payload(schema)) else {
            panic!("it was accepted")
        };
        let expected = schema
            .replace(r#""x-mcp-header":"no token","#, "")
            .replace(r#","x-mcp-header":"N""#, "")
            .replace(r#","x-mcp-header":"n""#, "")
            .replace(r#""x-mcp-header":"x""#, "");
        assert_eq!(stripped.as_str(), expected, "two of one name are both taken out");
        assert_eq!(names(&kept), ["mcp-param-a=a"]);
    }

    #[test]
    fn more_annotations_than_a_call_may_have_headers_are_all_taken_out() {
        for (count, is_valid) in [(ANNOTATIONS_MAX, true), (ANNOTATIONS_MAX + 1, false)] {
            let one = |n| format!(r#""a{n}":{{"type":"string","x-mcp-header":"H{n}"}}"#);
            let all = (0..count).map(one).collect::<Vec<_>>().join(",");
            match read(&payload(&format!(r#"{{"properties":{{{all}}}}}"#))) {
                HeaderAnnotations::Valid(mirrored) => assert!(is_valid && mirrored.len() == count),
                HeaderAnnotations::Stripped { schema, kept } => {
                    assert!(!is_valid && kept.is_empty() && !schema.as_str().contains(ANNOTATION));
                }
            }
        }
    }
}
