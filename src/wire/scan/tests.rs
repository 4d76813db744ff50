//! Invalid JSON text, and the comparison with `serde_json`.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::wire::Payload;

const WIDE: ScanLimits = ScanLimits { depth_max: 100, ..ScanLimits::UPSTREAM };

fn verdict(text: &[u8], limits: ScanLimits) -> Result<(), ScanError> {
    Payload::parse(&Bytes::copy_from_slice(text), limits).map(|_| ())
}

#[track_caller]
fn check(text: &str, expected: Result<(), ScanError>) {
    assert_eq!(verdict(text.as_bytes(), ScanLimits::CLIENT), expected, "{}", &text[..text.len().min(80)]);
}

#[track_caller]
fn check_syntax(text: &str, at: usize) {
    check(text, Err(ScanError::Syntax { at }));
}

#[test]
fn every_kind_of_value_is_accepted_with_whitespace_around_it() {
    for text in ["{}", "[]", "\"\"", "0", "-0", "1.10", "1e5", "1E+5", "-12.5e-3", "true", "false", "null"] {
        check(text, Ok(()));
        let padded = format!(" \t\r\n{text}\n\r\t ");
        let payload = Payload::parse(&Bytes::from(padded), ScanLimits::CLIENT).unwrap();
        assert_eq!(payload.as_str(), text);
    }
    check(r#"{ "a" : [ 1 , { "b" : null } , [ ] , { } ] , "" : "" }"#, Ok(()));
}

#[test]
fn a_string_ends_at_the_first_quotation_mark_that_is_not_escaped_near_and_far() {
    for (length, backslashes) in (0..200).flat_map(|length| (0..4).map(move |count| (length, count))) {
        let inside = ["a".repeat(length), "\\".repeat(backslashes)].concat();
        let escaped = backslashes % 2;
        let end = inside.len() + 2 + 2 * escaped;
        assert_eq!(string_end(format!(r#""{inside}"b"]"#).as_bytes(), 1), end, "{inside}");
        assert_eq!(string_end(format!(r#""{inside}"#).as_bytes(), 1), inside.len() + 2 + escaped, "no end: {inside}");
    }
}

/// A borrow of one byte must not hide or invent a stop in the next one, also across the words.
#[test]
fn a_search_of_eight_bytes_at_a_time_agrees_with_a_search_byte_by_byte() {
    let pairs = (0..=u8::MAX).flat_map(|first| (0..=u8::MAX).map(move |second| [first, second]));
    for (pair, at) in pairs.flat_map(|pair| [3_usize, 7].map(|at| (pair, at))) {
        let mut quoted = [b'x'; 19];
        (quoted[0], quoted[18]) = (b'"', b'"');
        quoted[1 + at..3 + at].copy_from_slice(&pair);
        let text = &quoted[1..18];
        let is_mark = |&byte: &u8| matches!(byte, b'"' | b'\\');
        let first_mark = text.iter().position(is_mark);
        let first_stop = text.iter().position(|byte| is_mark(byte) || *byte < 0x20);
        assert_eq!(mark(text, 0), first_mark.unwrap_or(text.len()), "{pair:?} at {at}");
        assert_eq!(needs_no_escape(text), first_stop.is_none(), "{pair:?} at {at}");
        let end = 1 + first_stop.unwrap_or(text.len());
        if quoted[end] == b'"' {
            let read = lexeme::string(&quoted, 0).unwrap();
            assert_eq!((read.end, read.escaped), (end + 1, false), "{pair:?} at {at}");
        }
    }
}

/// B78 and U07.
#[test]
fn text_that_is_not_one_json_value_is_refused_where_it_goes_wrong() {
    for (text, at) in [
        ("", 0),
        ("   ", 3),
        ("{", 1),
        ("[", 1),
        ("[1", 2),
        ("[1,", 3),
        ("{\"a\"", 4),
        ("{\"a\":", 5),
        ("{\"a\":1", 6),
        ("{\"a\":1,", 7),
        ("{} x", 3),
        ("{}{}", 2),
        ("\u{feff}{}", 0),
        ("/* c */ {}", 0),
        ("{} // c", 3),
        ("NaN", 0),
        ("-Infinity", 1),
        ("{'a':1}", 1),
        ("['a']", 1),
        ("{a:1}", 1),
        ("[1,]", 3),
        ("{\"a\":1,}", 7),
        ("{,}", 1),
        ("[,]", 1),
        ("[1 2]", 3),
        ("{\"a\" 1}", 5),
        ("{\"a\":1 \"b\":2}", 7),
        ("[1}", 2),
        ("{\"a\":1]", 6),
        ("]", 0),
        ("tru", 0),
        ("nulll", 4),
        ("True", 0),
        ("\u{a0}1", 0),
        ("1\u{0c}", 1),
    ] {
        check_syntax(text, at);
    }
}

#[test]
fn numbers_follow_the_grammar() {
    for (text, at) in [
        ("01", 1),
        ("-", 1),
        ("-01", 2),
        ("+1", 0),
        (".5", 0),
        ("1.", 2),
        ("1.e3", 2),
        ("1e", 2),
        ("1e+", 3),
        ("0x10", 1),
        ("1_000", 1),
        ("--1", 1),
    ] {
        check_syntax(text, at);
    }
}

/// B79.
#[test]
fn bytes_that_are_not_utf8_are_refused() {
    for (text, at) in [
        (b"\"\xff\"".as_slice(), 1),
        (b"{\"a\":\"\xc0\xaf\"}", 6), // overlong
        (b"\"\xe0\x80\xaf\"", 1),     // overlong
        (b"\"\xed\xa0\x80\"", 1),     // a surrogate
        (b"\"\xf4\x90\x80\x80\"", 1), // past the last character
        (b"\"ab\xe2\x82", 3),         // cut short
    ] {
        assert_eq!(verdict(text, ScanLimits::CLIENT), Err(ScanError::Utf8 { at }), "{text:x?}");
    }
}

/// B79: at every distance from the start of a block that is compared at once, in keys too.
#[test]
fn raw_control_characters_in_strings_are_refused_wherever_they_stand() {
    for control in 0..0x20_u8 {
        for before in 0..110 {
            let text =
                format!("\"{}{}{}\"", "ä".repeat(before % 3) + &"x".repeat(before), char::from(control), "y".repeat(9));
            check_syntax(&text, text.bytes().position(|b| b == control).unwrap());
        }
    }
    check_syntax("{\"a\tb\":1}", 3);
    check("\"\u{7f}\u{80}\"", Ok(()));
}

#[test]
fn strings_of_every_length_end_where_they_end() {
    for length in 0..70 {
        for filler in ["x", "ß", "\\\"", "\\\\", "\u{10ffff}"] {
            check(&format!("[\"{0}\",\"{0}\"]", filler.repeat(length)), Ok(()));
        }
    }
}

#[test]
fn escapes_follow_the_grammar() {
    check(r#""\"\\\/\b\f\n\r\t\u00e4\u00E4\u0000""#, Ok(()));
    for (text, at) in
        [(r#""\x""#, 1), (r#""\u12""#, 1), (r#""\u12g4""#, 1), (r#""\u+123""#, 1), (r#""\"#, 1), (r#""\U0041""#, 1)]
    {
        check_syntax(text, at);
    }
}

/// B80 and U28: lone surrogates in any order. As a value they pass, since tools and clients write and read them; in a key they do
/// not.
#[test]
fn lone_surrogate_escapes_pass_in_values_and_are_refused_in_keys() {
    for (text, at) in [
        (r"\ud800", 0),
        (r"\udc00", 0),
        (r"\uDBFF x", 0),
        (r"\ud800\ud800", 0),
        (r"\udc00\ud800", 0),
        (r"\ud800\u0041", 0),
        (r"\ud800\n", 0),
        (r"\ud83d\ude00\ud83d", 12),
        (r"x\ud800y", 1),
    ] {
        check(&format!(r#""{text}""#), Ok(()));
        check(&format!(r#"{{"a":[{{"b":"{text}"}}]}}"#), Ok(()));
        check(&format!(r#"{{"{text}":1}}"#), Err(ScanError::LoneSurrogate { at: at + 2 }));
        check(&format!(r#"{{"a":[{{"{text}":1}}]}}"#), Err(ScanError::LoneSurrogate { at: at + 8 }));
        assert_eq!(decode_string(format!(r#""{text}""#).as_bytes()), None, "nothing is decided by it");
    }
    check_syntax(r#""\ud800\u12""#, 7);
    check(r#""\ud83d\ude00 \uD800\uDC00 \udbff\udfff""#, Ok(()));
    check(r#""\\ud800""#, Ok(()));
    assert_eq!(decode_lossy(br#""\u00e4\ud83d\ude00\ud83d.\udc00""#).as_deref(), Some("ä😀\u{fffd}.\u{fffd}"));
}

/// B81: any text passes the scan; names are checked elsewhere.
#[test]
fn an_escaped_zero_is_carried() {
    check(r#"{"a":"\u0000"}"#, Ok(()));
}

/// B82 and U27.
#[test]
fn nesting_is_refused_one_level_past_the_limit() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    check(&nested(64), Ok(()));
    check(&nested(65), Err(ScanError::TooDeep { at: 64 }));
    assert_eq!(verdict(nested(128).as_bytes(), ScanLimits::UPSTREAM), Ok(()));
    assert_eq!(verdict(nested(129).as_bytes(), ScanLimits::UPSTREAM), Err(ScanError::TooDeep { at: 128 }));
    let objects = format!("{}1{}", "{\"a\":".repeat(65), "}".repeat(65));
    check(&objects, Err(ScanError::TooDeep { at: 64 * 5 }));
}

/// B82 and U27: the walk stops at the limit, and without a limit it does not use the processor's stack.
#[test]
fn two_million_levels_neither_overflow_nor_take_long() {
    let text = "[".repeat(2_000_000);
    check(&text, Err(ScanError::TooDeep { at: 64 }));
    let bottomless = ScanLimits { depth_max: usize::MAX, ..ScanLimits::UPSTREAM };
    assert_eq!(verdict(text.as_bytes(), bottomless), Err(ScanError::Syntax { at: 2_000_000 }));
}

/// B83, B84 and U28.
#[test]
fn a_key_that_comes_twice_is_refused_at_every_level() {
    for (text, at) in [
        (r#"{"a":1,"a":1}"#, 7),
        (r#"{"a":1,"b":2,"a":3}"#, 13),
        (r#"{"":1,"":2}"#, 6),
        (r#"[{"x":{"a":1,"a":1}}]"#, 13),
        (r#"{"a":{"b":1},"c":[{"d":1,"d":2}]}"#, 25),
        (r#"{"a":{"a":1,"b":{"a":1}},"a":2}"#, 25),
    ] {
        check(text, Err(ScanError::DuplicateKey { at }));
    }
    check(r#"{"a":{"a":{"a":1}},"b":{"a":1},"c":[{"a":1},{"a":1}]}"#, Ok(()));
}

/// B84: receivers compare decoded keys.
#[test]
fn keys_are_compared_decoded_and_no_further() {
    check(r#"{"a":1,"\u0061":2}"#, Err(ScanError::DuplicateKey { at: 7 }));
    check(r#"{"\u00e4":1,"ä":2}"#, Err(ScanError::DuplicateKey { at: 12 }));
    check(r#"{"\ud83d\ude00":1,"😀":2}"#, Err(ScanError::DuplicateKey { at: 18 }));
    check(r#"{"\/":1,"/":2}"#, Err(ScanError::DuplicateKey { at: 8 }));
    check(r#"{"a\\u0062":1,"ab":2,"a\u0062c":3}"#, Ok(()));
    check("{\"ä\":1,\"a\u{308}\":2,\"A\":3,\"a\":4}", Ok(()));
}

/// B84 on both sides of the change from comparing to a set, with a nested object in between.
#[test]
fn large_objects_notice_a_repeated_key_too() {
    for count in 1..40 {
        let members: Vec<_> = (0..count).map(|n| format!("\"key{n}\":{{\"key0\":1}}")).collect();
        check(&format!("{{{}}}", members.join(",")), Ok(()));
        for repeated in [0, count / 2, count - 1] {
            let text = format!("{{{},\"key{repeated}\":1}}", members.join(","));
            let at = text.rfind("\"key").unwrap();
            check(&text, Err(ScanError::DuplicateKey { at }));
        }
    }
}

/// B86.
#[test]
fn numbers_that_are_no_finite_double_are_refused() {
    for text in ["1e400", "-1e400", "1e309", "1.8e308", "123e9999999999999999999"] {
        check(text, Err(ScanError::NumberRange { at: 0 }));
        assert_eq!(verdict(text.as_bytes(), ScanLimits::UPSTREAM), Err(ScanError::NumberRange { at: 0 }));
    }
    for text in ["1e308", "-1.7e308", "1e-400", "0e400", "0.0e99999"] {
        check(text, Ok(()));
    }
    let digits = "9".repeat(400);
    assert_eq!(verdict(digits.as_bytes(), ScanLimits::UPSTREAM), Err(ScanError::NumberRange { at: 0 }));
}

/// B87.
#[test]
fn numbers_are_carried_digit_for_digit_up_to_64_characters() {
    let longest = "1".repeat(64);
    for number in ["9007199254740993", "12345678901234567890123", "1.0", "-0", "1.10", longest.as_str()] {
        check(&format!("[{number}]"), Ok(()));
    }
    check(&format!("[{longest}1]"), Err(ScanError::NumberRange { at: 1 }));
    check(&"1".repeat(1000), Err(ScanError::NumberRange { at: 0 }));
    assert_eq!(verdict("1".repeat(300).as_bytes(), ScanLimits::UPSTREAM), Ok(()));
}

/// B88.
#[test]
fn members_items_and_values_are_counted() {
    let object = |count: usize| {
        let members: Vec<_> = (0..count).map(|n| format!("\"{n}\":0")).collect();
        format!("{{{}}}", members.join(","))
    };
    let array = |count: usize| format!("[{}]", vec!["0"; count].join(","));
    check(&object(10_000), Ok(()));
    check(&object(10_001), Err(ScanError::TooManyNodes { at: object(10_000).len() }));
    check(&array(199_999), Ok(()));
    check(&array(200_000), Err(ScanError::TooManyNodes { at: 2 * 200_000 - 1 }));
    let items = ScanLimits { nodes_max: usize::MAX, ..ScanLimits::CLIENT };
    assert_eq!(verdict(array(1_000_000).as_bytes(), items), Ok(()));
    assert_eq!(
        verdict(array(1_000_001).as_bytes(), items),
        Err(ScanError::TooManyNodes { at: 2 * 1_000_000 }),
        "the comma before the item"
    );
}

/// B207: a result of 32 MiB may be all short members.
#[test]
fn b207_members_of_an_upstreams_objects_are_counted() {
    let object = |count: usize| {
        let members: Vec<_> = (0..count).map(|n| format!("\"{n:x}\":0")).collect();
        format!("{{{}}}", members.join(","))
    };
    assert_eq!(verdict(object(500_000).as_bytes(), ScanLimits::UPSTREAM), Ok(()));
    let refused = verdict(object(500_001).as_bytes(), ScanLimits::UPSTREAM);
    assert!(matches!(refused, Err(ScanError::TooManyNodes { .. })), "{refused:?}");
}

/// B89: many members of one length with equal ends take a set's time, not quadratic time.
#[test]
fn two_hundred_thousand_like_keys_take_linear_time() {
    let members: Vec<_> = (0..200_000).map(|n| format!("\"a{n:06}a\":0")).collect();
    assert_eq!(verdict(format!("{{{}}}", members.join(",")).as_bytes(), ScanLimits::UPSTREAM), Ok(()));
}

/// The id is found after a flaw, but unreadable text wins over it.
#[test]
fn a_flaw_is_kept_while_the_rest_is_read() {
    let outline = scan(br#"{"params":{"a":1,"a":2,"n":1e400},"id":7}"#, ScanLimits::CLIENT).unwrap();
    assert_eq!(outline.flaw, Some(ScanError::DuplicateKey { at: 17 }));
    assert_eq!(outline.members.last().map(|member| member.value.clone()), Some(39..40));
    check(r#"{"a":1e400"#, Err(ScanError::Syntax { at: 10 }));
    check(r#"{"n":1e400,"b":1,"b":1}"#, Err(ScanError::DuplicateKey { at: 17 }));
}

#[test]
fn members_are_located_in_the_root_the_payload_objects_and_their_meta_alone() {
    let text = br#" {"params" : {"_meta":{"k" : 1},"arguments":{"x":{"_meta":{"y":1}}}},"other":{"z":1},
        "r\u0065sult":{"_meta":{},"a":[{"b":1}]}} "#;
    let outline = scan(text, ScanLimits::CLIENT).unwrap();
    let located = |place: ObjectPlace| -> Vec<_> {
        let at = |range: &Range<usize>| std::str::from_utf8(&text[range.clone()]).unwrap();
        let of_place = outline.members.iter().filter(|member| member.place == place);
        of_place.map(|member| (at(&member.key), at(&member.value))).collect()
    };
    let root: Vec<_> = located(ObjectPlace::Root).into_iter().map(|(key, _)| key).collect();
    assert_eq!(root, ["params", "other", "r\\u0065sult"]);
    assert_eq!(located(ObjectPlace::Params), [("_meta", r#"{"k" : 1}"#), ("arguments", r#"{"x":{"_meta":{"y":1}}}"#)]);
    assert_eq!(located(ObjectPlace::ParamsMeta), [("k", "1")]);
    assert_eq!(located(ObjectPlace::Result), [("_meta", "{}"), ("a", r#"[{"b":1}]"#)]);
    assert_eq!(located(ObjectPlace::ResultMeta), []);
    assert_eq!(outline.root, 1..text.len() - 1);
}

#[test]
fn the_clients_capabilities_and_their_extensions_are_located_in_the_metadata_of_params_alone() {
    let declared = r#"{"extensions":{"a":{"b":1}},"roots":{}}"#;
    let key = CLIENT_CAPABILITIES;
    let text = format!(r#"{{"params":{{"{key}":{{"x":1}},"_meta":{{"{key}":{declared}}}}},"{key}":{{"y":1}}}}"#);
    let outline = scan(text.as_bytes(), ScanLimits::CLIENT).unwrap();
    let located = |place: ObjectPlace| -> Vec<_> {
        let of_place = outline.members.iter().filter(|member| member.place == place);
        of_place.map(|member| (&text[member.key.clone()], &text[member.value.clone()])).collect()
    };
    assert_eq!(located(ObjectPlace::Capabilities), [("extensions", r#"{"a":{"b":1}}"#), ("roots", "{}")]);
    assert_eq!(located(ObjectPlace::CapabilityExtensions), [("a", r#"{"b":1}"#)]);
}

/// Text that is JSON or nearly JSON.
fn nearly_json() -> impl Strategy<Value = String> {
    let token = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\"a\"",
        "\"b\":",
        "\"\\u0061\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud800\"",
        "\\",
        "1",
        "-",
        "0",
        ".",
        "e",
        "1.5e3",
        "1e400",
        "true",
        "false",
        "null",
        " ",
        "\n",
        "\t",
        "\u{b}",
        "ä",
        "\u{feff}",
        "\0",
    ]);
    prop::collection::vec(token, 0..24).prop_map(|tokens| tokens.concat())
}

fn json_value() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 24, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::btree_map(".{0,4}", inner, 0..24).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

/// `serde_json` reads every text that the scan accepts, and the scan refuses every text that `serde_json` refuses; except lone
/// surrogates, which another character replaces here.
fn assert_agrees(text: &str) -> Result<(), TestCaseError> {
    let whole = text.replace("\\ud800", "\\ufffd");
    let reference = serde_json::from_str::<serde_json::Value>(&whole);
    let parse = |text: &str| Payload::parse(&Bytes::copy_from_slice(text.as_bytes()), WIDE);
    match parse(text) {
        Ok(_) => {
            let reference = reference.map_err(|error| TestCaseError::fail(format!("{text:?}: {error}")))?;
            prop_assert_eq!(parse(&whole).unwrap().read::<serde_json::Value>().unwrap(), reference);
        }
        Err(ScanError::DuplicateKey { .. } | ScanError::TooDeep { .. } | ScanError::LoneSurrogate { .. }) => (),
        Err(error) => prop_assert!(reference.is_err(), "{text:?}: {error}"),
    }
    Ok(())
}

proptest! {
    #[test]
    fn texts_that_are_nearly_json_have_the_verdict_of_serde_json(text in nearly_json()) {
        assert_agrees(&text)?;
    }

    #[test]
    fn a_written_string_is_decoded_to_its_text(text in "[a-z\"\\\\\u{1}é]{0,80}") {
        let value = serde_json::to_string(&text).unwrap();
        let decoded = decode_string(value.as_bytes());
        prop_assert_eq!(decoded.as_deref(), Some(&*text));
    }

    #[test]
    fn every_value_is_accepted_and_every_cut_of_it_refused(value in json_value(), pretty in any::<bool>(), cut in any::<prop::sample::Index>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        prop_assert_eq!(verdict(text.as_bytes(), WIDE), Ok(()));
        let cut = cut.index(text.len());
        if text.is_char_boundary(cut) {
            assert_agrees(&text[..cut])?;
        }
    }

    #[test]
    fn a_walk_over_scanned_text_agrees_with_the_scan(value in json_value(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        let walked = members(text.as_bytes());
        prop_assert_eq!(walked.is_some(), value.is_object());
        let outline = scan(text.as_bytes(), WIDE).unwrap();
        let root = |member: &&Member| member.place == ObjectPlace::Root;
        let spans = |member: &Member| (member.key.clone(), member.value.clone(), member.escaped);
        let scanned: Vec<_> = outline.members.iter().filter(root).map(spans).collect();
        prop_assert_eq!(walked.unwrap_or_default().iter().map(spans).collect::<Vec<_>>(), scanned);
        let items: Vec<_> = items(text.as_bytes()).map(|span| text[span].to_owned()).collect();
        let reread: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = reread.as_array().cloned().unwrap_or_default();
        let read: Vec<serde_json::Value> = items.iter().map(|item| serde_json::from_str(item).unwrap()).collect();
        prop_assert_eq!(read, expected);
    }
}
