//! Members, edits and the writer.

use bytes::Bytes;
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::wire::envelope::{self, Message};
use crate::wire::scan::ScanLimits;

#[track_caller]
fn payload(text: &str) -> Payload {
    Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT).expect(text)
}

#[track_caller]
fn object(text: &str) -> Object {
    Object::of(&payload(text)).expect(text)
}

/// Objects that the scan of their message located; a detached one holds none of the message's other members.
#[test]
fn a_detached_object_has_the_members_that_it_had_in_its_message() {
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"a","params":{"z":[1],"_meta":{"k":2,"io.modelcontextprotocol/clientCapabilities":
        {"roots":{},"extensions":{"\u0065":{"x":1}}}}}}"#;
    let Message::Request(request) = envelope::read(&Bytes::from(text), ScanLimits::CLIENT).unwrap() else { panic!() };
    let params = request.params.object().unwrap();
    let meta = params.get_object("_meta").unwrap();
    let capabilities = meta.get_object("io.modelcontextprotocol/clientCapabilities").unwrap();
    let extensions = capabilities.get_object("extensions").unwrap();
    let declared = "io.modelcontextprotocol/clientCapabilities";
    for (object, keys, child, within) in [
        (params, vec!["z", "_meta"], "_meta", 7),
        (&meta, vec!["k", declared], declared, 5),
        (&capabilities, vec!["roots", "extensions"], "extensions", 3),
        (&extensions, vec!["e"], "e", 1),
    ] {
        let detached = object.detached();
        assert_eq!(detached.keys().collect::<Vec<_>>(), keys);
        assert_eq!(object.keys().collect::<Vec<_>>(), keys);
        assert_eq!(detached.located.members.len(), within, "of {}", object.located.members.len());
        let entries = |object: &Object| object.entries().map(|(_, value)| value).collect::<Vec<_>>();
        assert_eq!(entries(&detached), entries(object));
        let child_of = |object: &Object| entries(&object.get_object(child).unwrap());
        assert_eq!(child_of(&detached), child_of(object));
    }
}

#[test]
fn members_are_given_verbatim_and_null_is_not_absent() {
    let object = object(r#"{ "a" : 1.10 ,"b":{ "c": [1 , 2] },"n":null,"\u00e4\n":"x","s":"q\"\u00e4","t":"plain"}"#);
    let get = |key: &str| object.get(key).map(|value| value.as_str().to_owned());
    assert_eq!(get("a").as_deref(), Some("1.10"));
    assert_eq!(get("b").as_deref(), Some(r#"{ "c": [1 , 2] }"#));
    assert_eq!(get("n").as_deref(), Some("null"));
    assert_eq!(get("ä\n").as_deref(), Some("\"x\""));
    assert_eq!(get("\\u00e4\\n"), None);
    assert_eq!(get("c"), None);
    assert_eq!(object.get_string("s").as_deref(), Some("q\"ä"));
    assert!(matches!(object.get_str("t"), Some(Cow::Borrowed("plain"))));
    assert_eq!(object.get_string("a"), None);
    assert_eq!(object.keys().collect::<Vec<_>>(), ["a", "b", "n", "ä\n", "s", "t"]);
    let entries: Vec<_> = object.entries().map(|(key, value)| (key.into_owned(), value)).collect();
    assert_eq!(
        entries,
        object.keys().map(|key| (key.clone().into_owned(), object.get(&key).unwrap())).collect::<Vec<_>>()
    );
    assert!(object.contains("n") && !object.contains("m"));
    assert_eq!(object.get_object("b").unwrap().get("c").unwrap().as_str(), "[1 , 2]");
    assert!(object.get_object("a").is_none());
}

#[test]
fn only_objects_have_members() {
    for text in ["[{}]", "\"{}\"", "1", "null"] {
        assert!(Object::of(&payload(text)).is_none(), "{text}");
    }
    assert_eq!(object("{ }").keys().count(), 0);
    assert_eq!(object(r#"{"_meta":{"k":"\u0076"}}"#).get_str_in("_meta", "k").as_deref(), Some("v"));
}

#[test]
fn params_and_their_meta_share_the_table_of_the_message() {
    let text = r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta": {"k":"v","_meta":{"z":1}},"arguments":{"_meta":{"y":2}}}}"#;
    let Ok(Message::Request(request)) = envelope::read(&Bytes::from_static(text.as_bytes()), ScanLimits::CLIENT) else {
        panic!("{text}");
    };
    let params = request.params.object().unwrap();
    for params in [params.clone(), params.detached()] {
        assert_eq!(params.keys().collect::<Vec<_>>(), ["_meta", "arguments"]);
        let meta = params.get_object("_meta").unwrap();
        assert!(Arc::ptr_eq(&meta.located.members, &params.located.members), "no second walk");
        assert_eq!(meta.payload().as_str(), r#"{"k":"v","_meta":{"z":1}}"#);
        assert_eq!(meta.get_string("k").as_deref(), Some("v"));
        assert_eq!(meta.get_object("_meta").unwrap().get("z").unwrap().as_str(), "1");
        let arguments = params.get_object("arguments").unwrap();
        assert_eq!(arguments.get_object("_meta").unwrap().get("y").unwrap().as_str(), "2");
        let text_in = |outer: &str, key: &str| params.get_str_in(outer, key).map(Cow::into_owned);
        assert_eq!(text_in("_meta", "k").as_deref(), Some("v"));
        for (outer, key) in [("_meta", "z"), ("_meta", "_meta"), ("arguments", "k"), ("arguments", "y"), ("k", "k")] {
            assert_eq!(text_in(outer, key), None, "{outer} {key}");
        }
        assert_eq!(arguments.get_str_in("_meta", "y"), None, "a number");
        let edited = meta.edit().remove("k").set("n", payload("0")).finish();
        assert_eq!(edited.as_str(), r#"{"_meta":{"z":1},"n":0}"#);
    }
}

/// B85.
#[test]
fn names_that_differ_in_case_alone_are_found() {
    const NAMES: [&str; 5] = ["name", "arguments", "taskId", "uri", "_meta"];
    for (text, expected) in [
        (r#"{"name":1,"arguments":{},"taskId":1,"other":1}"#, None),
        (r#"{"Name":1}"#, Some("name")),
        (r#"{"name":1,"NAME":2}"#, Some("name")),
        (r#"{"argument\u017f":{}}"#, Some("arguments")),
        (r#"{"tas\u212aid":1}"#, Some("taskId")),
        (r#"{"_Meta":{},"uri":1}"#, Some("_meta")),
        (r#"{"names":1}"#, None),
    ] {
        assert_eq!(object(text).case_variant(&NAMES), expected, "{text}");
    }
}

#[test]
fn edits_change_the_named_members_alone() {
    #[track_caller]
    fn check(text: &str, edit: impl FnOnce(ObjectEdit<'_>) -> ObjectEdit<'_>, expected: &str) {
        assert_eq!(edit(object(text).edit()).finish().as_str(), expected);
        payload(expected);
    }
    let one = || payload("1");
    check("{}", |e| e.set("a", one()), r#"{"a":1}"#);
    check("{ }", |e| e.set("a\n", one()).set("b", one()), r#"{"a\n":1,"b":1}"#);
    check(r#"{ "x" : 2.0 , "y":[ ] }"#, |e| e.set("z", one()), r#"{ "x" : 2.0 , "y":[ ] ,"z":1}"#);
    check(r#"{ "x" : 2.0 , "y":[ ] }"#, |e| e.set("x", one()), r#"{ "x" : 1 , "y":[ ] }"#);
    check(r#"{ "x" : 2.0 , "y":[ ] }"#, |e| e.remove("x"), r#"{ "y":[ ] }"#);
    check(r#"{ "x" : 2.0 , "y":[ ] }"#, |e| e.remove("y"), r#"{ "x" : 2.0 }"#);
    check(r#"{ "x" : 2.0 , "y":[ ] }"#, |e| e.remove("y").remove("x"), "{}");
    check(r#"{ "x" : 2.0 , "y":[ ] }"#, |e| e.remove("y").set("w", one()).remove("x"), r#"{"w":1}"#);
    check(r#"{"a":0,"b":0,"c":0}"#, |e| e.remove("b").set("c", one()), r#"{"a":0,"c":1}"#);
    check(r#"{"\u0061":0}"#, |e| e.set("a", one()), r#"{"\u0061":1}"#);
    check(r#"{"a":0}"#, |e| e.remove("a").set("a", one()), r#"{"a":1}"#);
    check(r#"{"a":0}"#, |e| e.set("b", one()).remove("b").set("c", one()), r#"{"a":0,"c":1}"#);
    check(r#"{"a":"},{","b":{"b":1}}"#, |e| e.remove("b"), r#"{"a":"},{"}"#);
}

#[test]
fn an_edit_without_effect_returns_the_original_bytes() {
    let object = object(r#"{ "a" : 1 }"#);
    for edit in [object.edit(), object.edit().remove("b"), object.edit().set("a", payload("1"))] {
        let unchanged = edit.finish();
        assert_eq!(unchanged.bytes().as_ptr(), object.payload().bytes().as_ptr());
        assert_eq!(&unchanged, object.payload());
    }
}

#[test]
fn large_unchanged_members_are_not_copied() {
    let object = object(r#"{"large":"xxxxxxxxxxxxxxxx","small":1}"#);
    let pieces = object.edit().set("more", payload("2")).pieces(16);
    assert_eq!(pieces, [r#"{"#, r#""large":"xxxxxxxxxxxxxxxx""#, r#","small":1,"more":2}"#]);
    assert_eq!(pieces[1].as_ptr(), object.payload().bytes()[1..].as_ptr());
    assert_eq!(object.edit().pieces(16), [object.payload().bytes().clone()]);
}

#[test]
fn the_writer_keeps_the_order_given() {
    let written =
        ObjectWriter::new().text("z", "line\n").number("n", u64::MAX).member("m", &payload(r#"{"a":1.10}"#)).finish();
    assert_eq!(written.as_str(), r#"{"z":"line\n","n":18446744073709551615,"m":{"a":1.10}}"#);
    assert_eq!(ObjectWriter::new().finish(), Payload::empty_object());
}

#[test]
fn the_writer_escapes_as_serde_json_does() {
    for code in 0..0x100_u32 {
        let text = format!("a{}b", char::from_u32(code).unwrap());
        let written = ObjectWriter::new().any_member(&text, &Payload::text(&text)).text("t", &text).finish();
        assert_eq!(written.as_str(), serde_json::json!({ &text: text, "t": text }).to_string());
    }
}

#[test]
fn large_members_are_written_whole() {
    let large = payload(&format!(r#"{{ "text":"{}"}}"#, "x".repeat(100_000)));
    let written = ObjectWriter::new().member("m", &large).member_led_by("l", "k", "v", &large).number("n", 1).finish();
    let inside = large.as_str().trim_start_matches('{').trim_start();
    assert_eq!(written.as_str(), format!(r#"{{"m":{},"l":{{"k":"v",{inside},"n":1}}"#, large.as_str()));
}

/// An edit of one member: its key, and the value to set; `None` removes it.
type EditStep = (String, Option<i64>);

fn steps() -> impl Strategy<Value = Vec<EditStep>> {
    prop::collection::vec(("[a-f\"ä]{1,2}", prop::option::of(any::<i64>())), 0..6)
}

fn map() -> impl Strategy<Value = serde_json::Map<String, Value>> {
    let value = prop_oneof![
        any::<i64>().prop_map(Value::from),
        "[,{}\"\\\\ a]{0,6}".prop_map(Value::from),
        prop::collection::vec(any::<bool>(), 0..3).prop_map(Value::from),
        prop::collection::btree_map("[a,:}]{0,2}", any::<u8>(), 0..3).prop_map(|map| serde_json::json!(map)),
    ];
    prop::collection::btree_map("[a-f\"ä]{1,2}", value, 0..8).prop_map(|map| map.into_iter().collect())
}

proptest! {
    #[test]
    fn edits_equal_those_of_a_tree(map in map(), steps in steps(), pretty in any::<bool>(), large in 0..12_usize) {
        let text = if pretty { serde_json::to_string_pretty(&map) } else { serde_json::to_string(&map) }.unwrap();
        let object = object(&text);
        let mut expected = map.clone();
        let (mut edit, mut again) = (object.edit(), object.edit());
        for (key, value) in &steps {
            match value {
                Some(value) => {
                    expected.insert(key.clone(), Value::from(*value));
                    (edit, again) = (edit.set(key, Payload::of(value)), again.set(key, Payload::of(value)));
                }
                None => {
                    expected.remove(key);
                    (edit, again) = (edit.remove(key), again.remove(key));
                }
            }
        }
        let edited = edit.finish();
        prop_assert_eq!(again.pieces(large).concat(), &**edited.bytes());
        let edited = Object::of(&payload(edited.as_str())).unwrap();
        prop_assert_eq!(edited.payload().read::<Value>().unwrap(), Value::from(expected));
        for key in object.keys().filter(|key| steps.iter().all(|(named, _)| named != key)) {
            prop_assert_eq!(edited.get(&key), object.get(&key));
        }
        if !pretty {
            let key_names = |object: &Object| object.keys().map(Cow::into_owned).collect::<Vec<_>>();
            let kept: Vec<_> = key_names(&object).into_iter().filter(|key| edited.contains(key)).collect();
            prop_assert_eq!(&key_names(&edited)[..kept.len()], kept.as_slice());
        }
    }
}
