//! Reads a tool's arguments from the command line: JSON, a file, stdin, or `key=value`.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read};

use bytes::Bytes;

use super::tool_schema::{ArgumentSchema, ToolSchema};
use crate::wire::object::ObjectWriter;
use crate::wire::{Object, Payload, ScanLimits};

const BYTES_MAX: u64 = 64 << 20;

#[derive(Clone, Debug)]
pub enum ToolArguments {
    /// An object.
    Whole(Payload),
    /// By name; the tool's schema gives their types.
    Named(Vec<NamedArgument>),
}

#[derive(Clone, Debug)]
pub struct NamedArgument {
    name: String,
    value: TypedValue,
}

#[derive(Clone, Debug)]
enum TypedValue {
    Text(String),
    Json(Payload),
}

impl ToolArguments {
    pub fn none() -> Self {
        Self::Whole(Payload::empty_object())
    }

    /// Reads the words after the tool's name, and the files that they name.
    pub fn read(words: &[String]) -> Result<Self, String> {
        let whole = |text: String| json(text).and_then(|payload| as_object(payload, "the tool's arguments"));
        match words {
            [] => Ok(Self::none()),
            [word] if word == "-" && io::stdin().is_terminal() => {
                Err("- takes the arguments from standard input, which is a terminal: pipe a JSON object into it"
                    .to_owned())
            }
            [word] if word == "-" => whole(text_of(io::stdin(), "standard input", BYTES_MAX)?).map(Self::Whole),
            [word] if word.starts_with('@') => whole(text_of_file(&word[1..])?).map(Self::Whole),
            [word] if word.trim_start().starts_with('{') || !word.contains('=') => whole(word.clone())
                .map(Self::Whole)
                .map_err(|why| format!("{why}; write {{\"key\": ...}} or key=value")),
            words => {
                let mut named: Vec<NamedArgument> = Vec::new();
                for word in words {
                    let argument = NamedArgument::read(word)?;
                    if named.iter().any(|other| other.name == argument.name) {
                        return Err(format!("the argument `{}` is given twice", argument.name));
                    }
                    named.push(argument);
                }
                Ok(Self::Named(named))
            }
        }
    }

    /// The arguments as an object; `schema` is the tool's, if known.
    pub(super) fn as_payload(&self, tool: &str, schema: Option<&ToolSchema>) -> Result<Payload, String> {
        let named = match self {
            Self::Whole(payload) => return Ok(payload.clone()),
            Self::Named(named) => named,
        };
        let mut object = ObjectWriter::new();
        for NamedArgument { name, value } in named {
            let known = schema.and_then(|schema| schema.argument(name));
            if let (None, Some(schema)) = (known, schema)
                && !schema.is_open
            {
                let others: Vec<_> = schema.arguments.iter().map(|argument| argument.name.as_str()).collect();
                let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
                return Err(format!("`{tool}` takes no argument `{name}`; it takes {others}"));
            }
            let value = match (value, known) {
                (TypedValue::Json(payload), _) => payload.clone(),
                (TypedValue::Text(text), Some(argument)) => convert(text, argument)?,
                (TypedValue::Text(text), None) => Payload::text(text),
            };
            object = object.any_member(name, &value);
        }
        Ok(object.finish())
    }
}

impl NamedArgument {
    fn read(word: &str) -> Result<Self, String> {
        let split = word.split_once('=').filter(|(name, _)| !matches!(*name, "" | ":"));
        let Some((name, value)) = split else {
            return Err(format!(
                "`{word}` is not an argument: write key=text, key:=JSON or key=@FILE; a JSON object, @FILE and - stand alone"
            ));
        };
        if let Some(name) = name.strip_suffix(':') {
            let value = json(value.to_owned()).map_err(|why| format!("the value of `{name}:=`: {why}"))?;
            return Ok(Self { name: name.to_owned(), value: TypedValue::Json(value) });
        }
        let text = value.strip_prefix('@').map_or_else(|| Ok(value.to_owned()), text_of_file)?;
        Ok(Self { name: name.to_owned(), value: TypedValue::Text(text) })
    }
}

/// A text as a value of this argument: a string if the schema accepts one, else JSON of its type.
fn convert(text: &str, argument: &ArgumentSchema) -> Result<Payload, String> {
    let string = Payload::text(text);
    let takes = |name: &str| argument.types.iter().any(|one| one == name);
    let is_value = |payload: &Payload| {
        argument.values.is_empty()
            || payload.read::<serde_json::Value>().is_ok_and(|value| argument.values.contains(&value))
    };
    let may_be_text = takes("string") || argument.types.is_empty();
    if may_be_text && is_value(&string) {
        return Ok(string);
    }
    let value = json(text.trim().to_owned()).ok();
    let fits = |value: &Payload| is_value(value) && (argument.types.is_empty() || takes_json(&takes, value.as_str()));
    value.filter(fits).ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        format!("the argument `{}` takes {}, and not `{shown}`", argument.name, argument.words())
    })
}

fn takes_json(takes: &impl Fn(&str) -> bool, json: &str) -> bool {
    match json.as_bytes()[0] {
        b'{' => takes("object"),
        b'[' => takes("array"),
        b'"' => takes("string"),
        b't' | b'f' => takes("boolean"),
        b'n' => takes("null"),
        _ => takes("number") || takes("integer") && json.parse::<f64>().is_ok_and(|number| number.fract() == 0.0),
    }
}

fn json(text: String) -> Result<Payload, String> {
    Payload::parse(&Bytes::from(text), ScanLimits::CLIENT).map_err(|error| error.to_string())
}

fn as_object(payload: Payload, what: &str) -> Result<Payload, String> {
    if Object::of(&payload).is_some() { Ok(payload) } else { Err(format!("{what} must be a JSON object")) }
}

fn text_of_file(path: &str) -> Result<String, String> {
    if path.is_empty() {
        return Err("@ needs a file's name after it: @FILE".to_owned());
    }
    let file = File::open(path).map_err(|error| format!("{path}: {error}"))?;
    text_of(file, path, BYTES_MAX)
}

/// The whole text of a reader, up to a limit; `name` is its name in errors.
pub(super) fn text_of(reader: impl Read, name: &str, bytes_max: u64) -> Result<String, String> {
    let mut text = Vec::new();
    reader.take(bytes_max + 1).read_to_end(&mut text).map_err(|error| format!("{name}: {error}"))?;
    if text.len() as u64 > bytes_max {
        return Err(format!("{name}: this is more than {} MiB", bytes_max >> 20));
    }
    String::from_utf8(text).map_err(|_| format!("{name}: this is not UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn schema() -> ToolSchema {
        let tool = Payload::of(&json!({ "inputSchema": { "properties": {
            "text": { "type": "string" },
            "n": { "type": "number" },
            "count": { "type": "integer" },
            "flag": { "type": "boolean" },
            "list": { "type": "array" },
            "map": { "type": "object" },
            "maybe": { "anyOf": [{ "type": "integer" }, { "type": "null" }] },
            "mode": { "enum": ["fast", 2] },
            "any": {},
        } } }));
        ToolSchema::of(&Object::of(&tool).unwrap())
    }

    fn object(words: &[&str]) -> Result<Value, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let object = ToolArguments::read(&words)?.as_payload("tool", Some(&schema()))?;
        Ok(object.read().unwrap())
    }

    #[test]
    fn words_are_converted_to_the_types_of_the_schema() {
        for (words, expected) in [
            (&[][..], json!({})),
            (&[r#" {"a":"b=c"}"#], json!({ "a": "b=c" })),
            (&["text=5"], json!({ "text": "5" })),
            (&["text="], json!({ "text": "" })),
            (&["text=a=b", "n=1.50"], json!({ "text": "a=b", "n": 1.5 })),
            (&["count=3", "flag=true"], json!({ "count": 3, "flag": true })),
            (&["list=[1,2]", r#"map={"a":1}"#], json!({ "list": [1, 2], "map": { "a": 1 } })),
            (&["maybe=null"], json!({ "maybe": null })),
            (&["mode=fast"], json!({ "mode": "fast" })),
            (&["mode=2"], json!({ "mode": 2 })),
            (&["any=5", "text:=null"], json!({ "any": "5", "text": null })),
        ] {
            assert_eq!(object(words), Ok(expected), "{words:?}");
        }
        let unknown = ToolArguments::read(&["a=5".to_owned()]).unwrap().as_payload("tool", None).unwrap();
        assert_eq!(unknown.as_str(), r#"{"a":"5"}"#, "a tool that is not listed");
    }

    #[test]
    fn words_of_a_wrong_type_are_refused_with_the_right_one() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name).display().to_string();
        std::fs::write(path("list"), "[]").unwrap();
        std::fs::write(path("bytes"), b"\xff").unwrap();
        File::create(path("large")).unwrap().set_len(BYTES_MAX + 1).unwrap();
        for (words, part) in [
            (vec!["[]"], "the tool's arguments must be a JSON object; write {\"key\": ...} or key=value"),
            (vec!["{"], "not valid JSON"),
            (vec![r#"{"a":1,"a":2}"#], "twice"),
            (vec!["greet"], "write {\"key\": ...} or key=value"),
            (vec!["text=a", "text=b"], "the argument `text` is given twice"),
            (vec!["text=a", "b"], "`b` is not an argument: write key=text, key:=JSON or key=@FILE"),
            (vec!["text=a", "{}"], "stand alone"),
            (vec!["text=a", "-"], "stand alone"),
            (vec!["=a"], "`=a` is not an argument"),
            (vec!["other=a"], "`tool` takes no argument `other`; it takes any, count, flag"),
            (vec!["other:=1"], "`tool` takes no argument `other`"),
            (vec!["n=x"], "the argument `n` takes number, and not `x`"),
            (vec!["count=1.5"], "the argument `count` takes integer"),
            (vec!["count=\"1\""], "the argument `count` takes integer"),
            (vec!["flag=yes"], "the argument `flag` takes boolean"),
            (vec!["list={}"], "the argument `list` takes array"),
            (vec!["mode=slow"], "the argument `mode` takes \"fast\" | 2"),
            (vec!["n:=x"], "the value of `n:=`: not valid JSON"),
            (vec!["@"], "@ needs a file's name"),
            (vec!["text=@"], "@ needs a file's name"),
            (vec!["@/nowhere"], "/nowhere: No such file"),
            (vec!["text=@/nowhere"], "/nowhere: No such file"),
            (vec![&format!("@{}", path("list"))], "must be a JSON object"),
            (vec![&format!("@{}", path("bytes"))], "not UTF-8 text"),
            (vec![&format!("text=@{}", path("large"))], "more than 64 MiB"),
        ] {
            let why = object(&words).unwrap_err();
            assert!(why.contains(part), "{words:?}: {why}");
        }
    }

    #[test]
    fn a_file_is_one_argument_or_all_of_them() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("f").display().to_string();
        std::fs::write(&path, r#"{"n":1}"#).unwrap();
        assert_eq!(object(&[&format!("@{path}")]), Ok(json!({ "n": 1 })));
        assert_eq!(object(&[&format!("text=@{path}")]), Ok(json!({ "text": r#"{"n":1}"# })));
        assert_eq!(object(&[&format!("map=@{path}")]), Ok(json!({ "map": { "n": 1 } })));
    }
}
