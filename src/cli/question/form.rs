//! Reads elicitation forms: the fields of a schema, and the value of a typed line. Supports the schemas of
//! `elicitation/create` (2025-11-25). Any other form is refused, so that answers break no rule.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Number, Value};

use crate::wire::dates::{date_of, numbers};
use crate::wire::{Object, Payload};

/// The most fields of a form that a user can fill in line by line.
const FIELDS_MAX: usize = 64;
const CHOICES_MAX: usize = 512;

/// A form's fields, in the server's order.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cli) struct ElicitationForm {
    pub(in crate::cli) message: String,
    pub(in crate::cli) fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::cli) struct Field {
    /// The member of the answer.
    pub(in crate::cli) name: String,
    pub(in crate::cli) title: Option<String>,
    pub(in crate::cli) description: Option<String>,
    pub(in crate::cli) required: bool,
    /// The value of an empty line. Set only if the field accepts it.
    pub(in crate::cli) default: Option<Value>,
    kind: FieldKind,
}

#[derive(Clone, Debug, PartialEq)]
enum FieldKind {
    Text {
        length: ValueBounds<u64>,
        format: Option<Format>,
        /// Shown to the user; the server checks it.
        pattern: Option<String>,
    },
    Number(ValueBounds<f64>),
    Integer(ValueBounds<f64>),
    Boolean,
    One(Vec<Choice>),
    Many {
        choices: Vec<Choice>,
        count: ValueBounds<u64>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Choice {
    pub(in crate::cli) value: String,
    pub(in crate::cli) title: Option<String>,
}

/// Both bounds are inclusive.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ValueBounds<T> {
    min: Option<T>,
    max: Option<T>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(in crate::cli) struct UnsupportedSchema(String);

impl UnsupportedSchema {
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl ElicitationForm {
    /// Reads the parameters of `elicitation/create` in form mode; fails if MCP does not allow a part of the schema.
    pub(in crate::cli) fn read(params: &Object) -> Result<Self, UnsupportedSchema> {
        let message =
            params.get_string("message").ok_or_else(|| UnsupportedSchema::new("the question has no message"))?;
        let schema =
            params.get_object("requestedSchema").ok_or_else(|| UnsupportedSchema::new("the form has no schema"))?;
        known(&schema, "the form", &["type", "properties", "required", "additionalProperties"])?;
        if schema.get_string("type").as_deref() != Some("object") {
            return Err(UnsupportedSchema::new("the form is not an object"));
        }
        let properties =
            schema.get_object("properties").ok_or_else(|| UnsupportedSchema::new("the form has no fields"))?;
        let required: BTreeSet<String> = match schema.get("required") {
            Some(names) => read(&names, "the form's list of required fields")?,
            None => BTreeSet::new(),
        };
        let names: HashSet<_> = properties.keys().collect();
        if let Some(name) = required.iter().find(|name| !names.contains(name.as_str())) {
            return Err(UnsupportedSchema::new(format!("the field {name} is required and not described")));
        }
        if names.len() > FIELDS_MAX {
            return Err(UnsupportedSchema::new(format!("the form has more than {FIELDS_MAX} fields")));
        }
        let field = |(name, schema): (Cow<'_, str>, Payload)| {
            let what = format!("the field {name}");
            let no_schema = || UnsupportedSchema::new(format!("{what} is not a schema"));
            let schema = Object::of(&schema).ok_or_else(no_schema)?;
            Field::of_schema(&name, required.contains(&*name), &schema, &what)
        };
        Ok(Self { message, fields: properties.entries().map(field).collect::<Result<_, _>>()? })
    }

    /// The content of the answer. `None` is a skipped field.
    pub(in crate::cli) fn content(&self, values: Vec<Option<Value>>) -> Value {
        let named = self.fields.iter().zip(values).filter_map(|(field, value)| Some((field.name.clone(), value?)));
        Value::Object(named.collect::<Map<_, _>>())
    }
}

impl Field {
    fn of_schema(name: &str, required: bool, schema: &Object, what: &str) -> Result<Self, UnsupportedSchema> {
        let kind = FieldKind::of_schema(schema, what)?;
        let default = schema.get("default").and_then(|default| default.read().ok());
        let default = default.filter(|value| kind.takes(value));
        let (title, description) = (schema.get_string("title"), schema.get_string("description"));
        Ok(Self { name: name.to_owned(), title, description, required, default, kind })
    }

    /// The value of a typed line, or `None` for a skipped field. The error is shown before the field is asked again.
    pub(in crate::cli) fn value(&self, line: &str) -> Result<Option<Value>, String> {
        let line = line.trim();
        if !line.is_empty() {
            return self.kind.parse(line).map(Some);
        }
        match (&self.default, &self.kind) {
            (Some(default), _) => Ok(Some(default.clone())),
            (None, FieldKind::Many { count, .. }) if self.required => {
                count.check(0, "choices").map(|()| Some(Value::Array(Vec::new())))
            }
            (None, _) if self.required => Err("an answer is required".to_owned()),
            (None, _) => Ok(None),
        }
    }

    /// The field's name and accepted values, on one line.
    pub(in crate::cli) fn prompt(&self) -> String {
        let title = self.title.as_deref().unwrap_or(&self.name);
        let mut hints = vec![self.kind.hint()];
        hints.extend((!self.required).then(|| "optional".to_owned()));
        let default = self.default.as_ref().map(|default| format!(" [{}]", shown(default))).unwrap_or_default();
        format!("{title} ({}){default}: ", hints.join(", "))
    }

    /// The choices; empty if any value may be typed.
    pub(in crate::cli) fn choices(&self) -> &[Choice] {
        match &self.kind {
            FieldKind::One(choices) | FieldKind::Many { choices, .. } => choices,
            FieldKind::Text { .. } | FieldKind::Number(_) | FieldKind::Integer(_) | FieldKind::Boolean => &[],
        }
    }
}

impl FieldKind {
    fn of_schema(schema: &Object, what: &str) -> Result<Self, UnsupportedSchema> {
        let kind = schema.get_string("type").ok_or_else(|| UnsupportedSchema::new(format!("{what} has no type")))?;
        match kind.as_str() {
            "string" if schema.contains("enum") => {
                known(schema, what, &["type", "default", "enum", "enumNames"])?;
                Ok(Self::One(enumerated(schema, what)?))
            }
            "string" if schema.contains("oneOf") => {
                known(schema, what, &["type", "default", "oneOf"])?;
                Ok(Self::One(titled(schema, "oneOf", what)?))
            }
            "string" => {
                known(schema, what, &["type", "default", "minLength", "maxLength", "format", "pattern"])?;
                let format = schema.get_string("format").map(|name| Format::parse(&name).ok_or(name));
                let format = format
                    .transpose()
                    .map_err(|name| UnsupportedSchema::new(format!("{what} has the format {name}")))?;
                let length = ValueBounds::of_schema(schema, "minLength", "maxLength", what)?;
                Ok(Self::Text { length, format, pattern: schema.get_string("pattern") })
            }
            "number" | "integer" => {
                known(schema, what, &["type", "default", "minimum", "maximum"])?;
                let range = ValueBounds::of_schema(schema, "minimum", "maximum", what)?;
                Ok(if kind == "number" { Self::Number(range) } else { Self::Integer(range) })
            }
            "boolean" => known(schema, what, &["type", "default"]).map(|()| Self::Boolean),
            "array" => {
                known(schema, what, &["type", "default", "items", "minItems", "maxItems", "uniqueItems"])?;
                let items = schema.get_object("items");
                let items = items.ok_or_else(|| UnsupportedSchema::new(format!("{what} is a list of anything")))?;
                known(&items, what, &["type", "enum", "anyOf"])?;
                let choices =
                    if items.contains("anyOf") { titled(&items, "anyOf", what)? } else { enumerated(&items, what)? };
                Ok(Self::Many { choices, count: ValueBounds::of_schema(schema, "minItems", "maxItems", what)? })
            }
            other => Err(UnsupportedSchema::new(format!("{what} is of type {other}"))),
        }
    }

    fn parse(&self, line: &str) -> Result<Value, String> {
        match self {
            Self::Text { length, format, .. } => {
                // The notation for an empty text, as an empty line means the default.
                let text = if line == "\"\"" { "" } else { line };
                length.check(text.chars().count() as u64, "characters")?;
                format.map_or(Ok(()), |format| format.check(text))?;
                Ok(Value::from(text))
            }
            Self::Number(range) => number(line, *range, "expected a number").map(Value::Number),
            Self::Integer(range) => {
                let number = number(line, *range, "expected a whole number")?;
                whole(&number).map(Value::Number).ok_or_else(|| "expected a whole number".to_owned())
            }
            Self::Boolean => match line.to_ascii_lowercase().as_str() {
                "y" | "yes" | "true" => Ok(Value::Bool(true)),
                "n" | "no" | "false" => Ok(Value::Bool(false)),
                _ => Err("expected yes or no".to_owned()),
            },
            Self::One(choices) => choose(choices, line).map(Value::from),
            Self::Many { choices, count } => {
                let mut chosen: Vec<&str> = Vec::new();
                for part in line.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                    let value = choose(choices, part)?;
                    if !chosen.contains(&value) {
                        chosen.push(value);
                    }
                }
                count.check(chosen.len() as u64, "choices")?;
                Ok(Value::from(chosen))
            }
        }
    }

    fn takes(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Text { length, format, .. }, Value::String(text)) => {
                length.has(text.chars().count() as u64) && format.is_none_or(|format| format.check(text).is_ok())
            }
            (Self::Number(range), Value::Number(number)) => number.as_f64().is_some_and(|number| range.has(number)),
            (Self::Integer(range), Value::Number(number)) => {
                whole(number).is_some() && number.as_f64().is_some_and(|number| range.has(number))
            }
            (Self::Boolean, Value::Bool(_)) => true,
            (Self::One(choices), Value::String(text)) => choices.iter().any(|choice| &choice.value == text),
            (Self::Many { choices, count }, Value::Array(items)) => {
                let known = |item: &Value| choices.iter().any(|choice| item == choice.value.as_str());
                count.has(items.len() as u64) && items.iter().all(known)
            }
            (
                _,
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_),
            ) => false,
        }
    }

    fn hint(&self) -> String {
        match self {
            Self::Text { length, format, pattern } => {
                let kind = format.map_or("text", Format::hint).to_owned();
                let pattern = pattern.as_ref().map(|pattern| format!(" like {pattern}")).unwrap_or_default();
                format!("{kind}{}{pattern}", length.hint(" characters"))
            }
            Self::Number(range) => format!("number{}", range.hint("")),
            Self::Integer(range) => format!("whole number{}", range.hint("")),
            Self::Boolean => "yes/no".to_owned(),
            Self::One(_) => "one of these".to_owned(),
            Self::Many { count, .. } => format!("some of these, with commas{}", count.hint("")),
        }
    }
}

impl<T: Copy + PartialOrd + std::fmt::Display + serde::de::DeserializeOwned> ValueBounds<T> {
    fn of_schema(schema: &Object, min: &str, max: &str, what: &str) -> Result<Self, UnsupportedSchema> {
        let end = |key: &str| schema.get(key).map(|end| read(&end, &format!("the {key} of {what}"))).transpose();
        Ok(Self { min: end(min)?, max: end(max)? })
    }

    fn has(&self, value: T) -> bool {
        self.min.is_none_or(|min| value >= min) && self.max.is_none_or(|max| value <= max)
    }

    fn check(&self, value: T, what: &str) -> Result<(), String> {
        let what = if what.is_empty() { String::new() } else { format!(" {what}") };
        match (self.min, self.max) {
            (Some(min), _) if value < min => Err(format!("expected at least {min}{what}")),
            (_, Some(max)) if value > max => Err(format!("expected at most {max}{what}")),
            _ => Ok(()),
        }
    }

    fn hint(&self, unit: &str) -> String {
        match (self.min, self.max) {
            (Some(min), Some(max)) => format!(", {min} to {max}{unit}"),
            (Some(min), None) => format!(", at least {min}{unit}"),
            (None, Some(max)) => format!(", at most {max}{unit}"),
            (None, None) => String::new(),
        }
    }
}

/// Refuses unknown keywords that restrict values. Annotations are accepted everywhere.
fn known(schema: &Object, what: &str, keys: &[&str]) -> Result<(), UnsupportedSchema> {
    const EXPLAINS: [&str; 7] = ["title", "description", "$schema", "$comment", "examples", "deprecated", "_meta"];
    let unknown = schema.keys().find(|key| !keys.contains(&key.as_ref()) && !EXPLAINS.contains(&key.as_ref()));
    unknown.map_or(Ok(()), |key| Err(UnsupportedSchema::new(format!("{what} has the keyword {key}"))))
}

fn read<T: serde::de::DeserializeOwned>(value: &Payload, what: &str) -> Result<T, UnsupportedSchema> {
    serde_json::from_str(value.as_str())
        .map_err(|_| UnsupportedSchema::new(format!("{what} is not of the kind that MCP knows")))
}

fn enumerated(schema: &Object, what: &str) -> Result<Vec<Choice>, UnsupportedSchema> {
    let values = schema.get("enum").ok_or_else(|| UnsupportedSchema::new(format!("{what} names no choices")))?;
    let values: Vec<String> = read(&values, &format!("the enum of {what}"))?;
    let names: Vec<String> = match schema.get("enumNames") {
        Some(names) => read(&names, &format!("the enumNames of {what}"))?,
        None => Vec::new(),
    };
    let mut names = names.into_iter();
    limited(values.into_iter().map(|value| Choice { value, title: names.next() }).collect(), what)
}

fn titled(schema: &Object, key: &str, what: &str) -> Result<Vec<Choice>, UnsupportedSchema> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TitledChoice {
        #[serde(rename = "const")]
        value: String,
        title: Option<String>,
        #[serde(rename = "description")]
        _description: Option<String>,
    }
    let choices = schema.get(key).ok_or_else(|| UnsupportedSchema::new(format!("{what} names no choices")))?;
    let choices: Vec<TitledChoice> = read(&choices, &format!("the {key} of {what}"))?;
    limited(choices.into_iter().map(|TitledChoice { value, title, .. }| Choice { value, title }).collect(), what)
}

fn limited(choices: Vec<Choice>, what: &str) -> Result<Vec<Choice>, UnsupportedSchema> {
    match choices.len() {
        0 => Err(UnsupportedSchema::new(format!("{what} names no choices"))),
        1..=CHOICES_MAX => Ok(choices),
        _ => Err(UnsupportedSchema::new(format!("{what} names more than {CHOICES_MAX} choices"))),
    }
}

/// A choice by value, title or number, in this order: a value may look like a number.
fn choose<'c>(choices: &'c [Choice], text: &str) -> Result<&'c str, String> {
    let by_value = choices.iter().find(|choice| choice.value == text);
    let by_title = || choices.iter().find(|choice| choice.title.as_deref() == Some(text));
    let by_place = || choices.get(text.parse::<usize>().ok()?.checked_sub(1)?);
    let found = by_value.or_else(by_title).or_else(by_place);
    found.map(|choice| choice.value.as_str()).ok_or_else(|| format!("{text} is none of the choices"))
}

fn number(line: &str, range: ValueBounds<f64>, why: &str) -> Result<Number, String> {
    let number: Number = serde_json::from_str(line).map_err(|_| why.to_owned())?;
    range.check(number.as_f64().ok_or_else(|| why.to_owned())?, "")?;
    Ok(number)
}

/// The number as an integer, if it is one (`3.0` is).
fn whole(number: &Number) -> Option<Number> {
    /// Above this, JSON parsers may not distinguish neighbouring integers.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    if number.is_i64() || number.is_u64() {
        return Some(number.clone());
    }
    let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < EXACT_MAX)?;
    Some(Number::from(float as i64))
}

fn shown(value: &Value) -> String {
    match value {
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(", "),
        Value::Null | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

named_variants! {
    enum Format, name {
        Email = "email",
        Uri = "uri",
        Date = "date",
        DateTime = "date-time",
    }
}

impl Format {
    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    const fn hint(self) -> &'static str {
        match self {
            Self::Email => "email address",
            Self::Uri => "address with its scheme",
            Self::Date => "date, YYYY-MM-DD",
            Self::DateTime => "time, YYYY-MM-DDThh:mm:ssZ",
        }
    }

    /// The error names the expected form.
    fn check(self, text: &str) -> Result<(), String> {
        let fits = match self {
            Self::Email => is_email(text),
            Self::Uri => url::Url::parse(text).is_ok(),
            Self::Date => date_of(text).is_some(),
            Self::DateTime => is_date_time(text),
        };
        if fits { Ok(()) } else { Err(format!("expected: {}", self.hint())) }
    }
}

fn is_email(text: &str) -> bool {
    let is_plain = |part: &str| !part.is_empty() && !part.contains(|c: char| c.is_whitespace() || c == '@');
    text.rsplit_once('@').is_some_and(|(user, host)| is_plain(user) && is_plain(host))
}

/// RFC 3339, section 5.6. Leap seconds are accepted.
fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't']) else { return false };
    let Some(at) = time.find(['Z', 'z', '+', '-']) else { return false };
    let (time, zone) = time.split_at(at);
    let zone_fits = zone.eq_ignore_ascii_case("z")
        || numbers(&zone[1..], ':', [2, 2]).is_some_and(|[hours, minutes]| hours < 24 && minutes < 60);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let fraction_fits = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    let time_fits =
        numbers(time, ':', [2, 2, 2]).is_some_and(|[hour, minute, second]| hour < 24 && minute < 60 && second <= 60);
    date_of(date).is_some() && time_fits && fraction_fits && zone_fits
}
