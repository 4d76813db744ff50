//! Forms as a table: schema, typed lines, answer.

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::wire::{Payload, ScanLimits};

fn params(params: &Value) -> Object {
    let text = Bytes::from(params.to_string());
    Object::of(&Payload::parse(&text, ScanLimits::UPSTREAM).unwrap()).unwrap()
}

/// A form with the one field `f`.
fn form_of(schema: &Value, required: &[&str]) -> Result<ElicitationForm, UnsupportedSchema> {
    let schema = json!({ "type": "object", "properties": { "f": schema }, "required": required });
    ElicitationForm::read(&params(&json!({ "mode": "form", "message": "?", "requestedSchema": schema })))
}

#[test]
fn a_line_becomes_a_value_or_the_reason_why_not() {
    let text = json!({ "type": "string" });
    let short = json!({ "type": "string", "minLength": 2, "maxLength": 3 });
    let format = |name: &str| json!({ "type": "string", "format": name });
    let number = json!({ "type": "number", "minimum": -1.5, "maximum": 10 });
    let integer = json!({ "type": "integer", "minimum": 1, "maximum": 3 });
    let boolean = json!({ "type": "boolean" });
    let plain = json!({ "type": "string", "enum": ["red", "2", "blue"] });
    let named = json!({ "type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"] });
    let titled =
        json!({ "type": "string", "oneOf": [{ "const": "r", "title": "Red" }, { "const": "g", "title": "Green" }] });
    let many = json!({ "type": "array", "minItems": 1, "maxItems": 2, "items": { "type": "string", "enum": ["a", "b", "c"] } });
    let many_titled = json!({ "type": "array", "items": { "anyOf": [{ "const": "a", "title": "A, or so" }, { "const": "b", "title": "B" }] } });
    for (schema, line, expected) in [
        (&text, "Ada  ", Ok(json!("Ada"))),
        (&text, "\"\"", Ok(json!(""))),
        (&text, "", Err("an answer is required")),
        (&short, "é", Err("expected at least 2 characters")),
        (&short, "éé", Ok(json!("éé"))),
        (&short, "four", Err("expected at most 3 characters")),
        (&format("email"), "a@b.example", Ok(json!("a@b.example"))),
        (&format("email"), "a b@c", Err("expected: email address")),
        (&format("email"), "@c", Err("expected: email address")),
        (&format("uri"), "https://example.com/a", Ok(json!("https://example.com/a"))),
        (&format("uri"), "example", Err("expected: address with its scheme")),
        (&format("date"), "2024-02-29", Ok(json!("2024-02-29"))),
        (&format("date"), "2023-02-29", Err("expected: date, YYYY-MM-DD")),
        (&format("date"), "2023-2-9", Err("expected: date, YYYY-MM-DD")),
        (&format("date-time"), "2024-01-02T03:04:05.6+01:00", Ok(json!("2024-01-02T03:04:05.6+01:00"))),
        (&format("date-time"), "2024-01-02T03:04:05Z", Ok(json!("2024-01-02T03:04:05Z"))),
        (&format("date-time"), "2024-01-02T03:04:05", Err("expected: time, YYYY-MM-DDThh:mm:ssZ")),
        (&format("date-time"), "2024-01-02T24:04:05Z", Err("expected: time, YYYY-MM-DDThh:mm:ssZ")),
        (&number, "2.5", Ok(json!(2.5))),
        (&number, "-1.6", Err("expected at least -1.5")),
        (&number, "11", Err("expected at most 10")),
        (&number, "NaN", Err("expected a number")),
        (&integer, "3", Ok(json!(3))),
        (&integer, "2.0", Ok(json!(2))),
        (&integer, "2.5", Err("expected a whole number")),
        (&integer, "4", Err("expected at most 3")),
        (&integer, "two", Err("expected a whole number")),
        (&boolean, "Y", Ok(json!(true))),
        (&boolean, "no", Ok(json!(false))),
        (&boolean, "maybe", Err("expected yes or no")),
        (&plain, "red", Ok(json!("red"))),
        (&plain, "2", Ok(json!("2"))), // a value first, though it could be a place
        (&plain, "3", Ok(json!("blue"))),
        (&plain, "0", Err("0 is none of the choices")),
        (&plain, "4", Err("4 is none of the choices")),
        (&named, "Green", Ok(json!("g"))),
        (&titled, "Red", Ok(json!("r"))),
        (&titled, "2", Ok(json!("g"))),
        (&many, "a, c,a", Ok(json!(["a", "c"]))),
        (&many, "1,2,3", Err("expected at most 2 choices")),
        (&many, ",", Err("expected at least 1 choices")),
        (&many, "", Err("expected at least 1 choices")),
        (&many, "a,x", Err("x is none of the choices")),
        (&many_titled, "1,B", Ok(json!(["a", "b"]))),
        (&many_titled, "", Ok(json!([]))),
    ] {
        let form = form_of(schema, &["f"]).unwrap();
        let found = form.fields[0].value(line);
        assert_eq!(found, expected.map(Some).map_err(str::to_owned), "{schema} {line:?}");
    }
}

#[test]
fn an_empty_line_means_the_default_or_skips_an_optional_field() {
    let long = json!({ "type": "string", "maxLength": 2, "default": "long" });
    for (schema, required, expected) in [
        (json!({ "type": "string", "default": "x" }), true, Ok(Some(json!("x")))),
        (json!({ "type": "string", "default": "" }), true, Ok(Some(json!("")))),
        (json!({ "type": "string" }), false, Ok(None)),
        (json!({ "type": "boolean", "default": false }), true, Ok(Some(json!(false)))),
        (json!({ "type": "integer", "default": 3 }), false, Ok(Some(json!(3)))),
        (json!({ "type": "string", "enum": ["a"], "default": "a" }), true, Ok(Some(json!("a")))),
        (
            json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "default": ["a"] }),
            true,
            Ok(Some(json!(["a"]))),
        ),
        (json!({ "type": "array", "items": { "type": "string", "enum": ["a"] } }), false, Ok(None)),
        // A default that violates the field's own rules is ignored.
        (long.clone(), false, Ok(None)),
        (long, true, Err("an answer is required".to_owned())),
        (json!({ "type": "integer", "default": 1.5 }), false, Ok(None)),
        (json!({ "type": "string", "enum": ["a"], "default": "b" }), false, Ok(None)),
        (json!({ "type": "boolean", "default": "yes" }), false, Ok(None)),
    ] {
        let form = form_of(&schema, if required { &["f"] } else { &[] }).unwrap();
        assert_eq!(form.fields[0].value("  "), expected, "{schema}");
    }
}

#[test]
fn fields_keep_the_servers_order_and_skipped_ones_stay_out() {
    let text = r#"{"message":"?","requestedSchema":{"type":"object","properties":{
        "z":{"type":"string"},"a":{"type":"integer"},"m":{"type":"boolean"}},"required":["a"]}}"#;
    let params = Object::of(&Payload::parse(&Bytes::from_static(text.as_bytes()), ScanLimits::UPSTREAM).unwrap());
    let form = ElicitationForm::read(&params.unwrap()).unwrap();
    let names: Vec<_> = form.fields.iter().map(|field| (field.name.as_str(), field.required)).collect();
    assert_eq!(names, [("z", false), ("a", true), ("m", false)]);
    let content = form.content(vec![None, Some(json!(1)), Some(json!(true))]);
    assert_eq!(content, json!({ "a": 1, "m": true }));
}

#[test]
fn prompts_name_the_expected_input() {
    for (schema, required, prompt) in [
        (json!({ "type": "string", "title": "Name" }), true, "Name (text): "),
        (
            json!({ "type": "string", "maxLength": 5, "pattern": "^a" }),
            false,
            "f (text, at most 5 characters like ^a, optional): ",
        ),
        (json!({ "type": "boolean", "default": false }), true, "f (yes/no) [no]: "),
        (
            json!({ "type": "integer", "minimum": 1, "maximum": 3, "default": 2 }),
            true,
            "f (whole number, 1 to 3) [2]: ",
        ),
        (json!({ "type": "string", "format": "date" }), true, "f (date, YYYY-MM-DD): "),
        (
            json!({ "type": "array", "minItems": 1, "items": { "type": "string", "enum": ["a", "b"] }, "default": ["a", "b"] }),
            true,
            "f (some of these, with commas, at least 1) [a, b]: ",
        ),
    ] {
        let form = form_of(&schema, if required { &["f"] } else { &[] }).unwrap();
        assert_eq!(form.fields[0].prompt(), prompt);
    }
}

#[test]
fn a_form_with_an_unknown_part_is_refused_as_a_whole() {
    for (schema, why) in [
        (json!({ "type": "object", "properties": {} }), "the field f is of type object"),
        (json!({ "type": "null" }), "the field f is of type null"),
        (json!({ "type": ["string", "null"] }), "the field f has no type"),
        (json!({ "$ref": "#/x" }), "the field f has no type"),
        (json!({ "type": "string", "format": "password" }), "the field f has the format password"),
        (json!({ "type": "string", "contentEncoding": "base64" }), "the field f has the keyword contentEncoding"),
        (json!({ "type": "number", "multipleOf": 3 }), "the field f has the keyword multipleOf"),
        (json!({ "type": "string", "enum": [1] }), "the enum of the field f is not of the kind that MCP knows"),
        (json!({ "type": "string", "enum": [] }), "the field f names no choices"),
        (
            json!({ "type": "string", "minLength": -1 }),
            "the minLength of the field f is not of the kind that MCP knows",
        ),
        (json!({ "type": "array", "items": { "type": "string" } }), "the field f names no choices"),
        (json!({ "type": "array" }), "the field f is a list of anything"),
        (json!(true), "the field f is not a schema"),
    ] {
        assert_eq!(form_of(&schema, &[]), Err(UnsupportedSchema::new(why)), "{schema}");
    }
    let missing = form_of(&json!({ "type": "string" }), &["g"]);
    assert_eq!(missing, Err(UnsupportedSchema::new("the field g is required and not described")));
    for (params_of, why) in [
        (json!({ "requestedSchema": {} }), "the question has no message"),
        (json!({ "message": "?" }), "the form has no schema"),
        (
            json!({ "message": "?", "requestedSchema": { "type": "object", "allOf": [] } }),
            "the form has the keyword allOf",
        ),
        (json!({ "message": "?", "requestedSchema": { "properties": {} } }), "the form is not an object"),
    ] {
        assert_eq!(ElicitationForm::read(&params(&params_of)), Err(UnsupportedSchema::new(why)));
    }
}
