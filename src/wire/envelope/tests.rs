//! Invalid envelopes, and the writers.

use super::*;

fn read_text(text: &str) -> Result<Message, EnvelopeError> {
    read(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT)
}

/// Checks the kind of error, `scan` or `shape`, and the id that may be echoed.
#[track_caller]
fn check_refused(text: &str, expected: &str, echoed: Option<&str>) {
    let (kind, id) = match read_text(text).expect_err(text) {
        EnvelopeError::Scan { error, id, .. } => (format!("{error:?}"), id),
        EnvelopeError::Shape { what, id, .. } => (what.into_owned(), id),
        EnvelopeError::Batch => ("batch".to_owned(), None),
    };
    assert!(kind.contains(expected), "{text}: {kind}");
    assert_eq!(id.as_ref().map(RequestId::as_json), echoed, "{text}");
}

#[track_caller]
fn request_of(text: &str) -> Request {
    match read_text(text).expect(text) {
        Message::Request(request) => request,
        other @ (Message::Notification(_) | Message::Response(_)) => panic!("{text}: {other:?}"),
    }
}

#[track_caller]
fn response_of(text: &str) -> Response {
    match read_text(text).expect(text) {
        Message::Response(response) => response,
        other @ (Message::Request(_) | Message::Notification(_)) => panic!("{text}: {other:?}"),
    }
}

#[test]
fn messages_are_told_apart_by_their_members() {
    let request = request_of(r#" {"params":{"name":"x"},"method":"tools/call","id":"a\n","jsonrpc":"2.0"} "#);
    assert_eq!((request.id.as_json(), &*request.method), (r#""a\n""#, "tools/call"));
    assert_eq!(request.params.object().and_then(|params| params.get_string("name")).as_deref(), Some("x"));

    let Ok(Message::Notification(notification)) = read_text(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#) else {
        panic!("a call without an id is a notification");
    };
    assert!(matches!(notification.params, Params::Absent));

    let response = response_of(r#"{"jsonrpc":"2.0","id":1,"result":{"a":1.10}}"#);
    assert_eq!(response.outcome.unwrap().as_str(), r#"{"a":1.10}"#);
    assert_eq!(response.result.and_then(|result| result.get("a")).unwrap().as_str(), "1.10");

    let response = response_of(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no","data":[1.0]}}"#);
    let fault = response.outcome.unwrap_err();
    assert_eq!((fault.code, fault.message.as_str()), (-32602, "no"));
    assert_eq!(fault.data.unwrap().as_str(), "[1.0]");
}

#[test]
fn of_a_result_beside_an_error_the_one_that_is_null_is_not_there() {
    let response = response_of(r#"{"jsonrpc":"2.0","id":1,"result":{"a":1},"error":null}"#);
    assert_eq!(response.outcome.unwrap().as_str(), r#"{"a":1}"#);
    let response = response_of(r#"{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":-1,"message":"no"}}"#);
    assert_eq!(response.outcome.unwrap_err().code, -1);
    check_refused(
        r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":-1,"message":"no"}}"#,
        "`result` and `error` are both present",
        Some("1"),
    );
}

/// B78 to B80, B82 and B83: nothing can be echoed.
#[test]
fn unreadable_text_echoes_no_id() {
    check_refused(r#"{"jsonrpc":"2.0","id":1,"method":"x""#, "Syntax", None);
    check_refused(r#"{"jsonrpc":"2.0","id":1,"method":"x"}{}"#, "Syntax", None);
    check_refused(r#"{"jsonrpc":"2.0","id":1,"method":"x","params":{"\ud800":1}}"#, "LoneSurrogate", Some("1"));
    check_refused(r#"{"jsonrpc":"2.0","id":1,"method":"x","\ud800":1}"#, "LoneSurrogate", None);
    let deep = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{}"#, "[".repeat(2_000_000));
    check_refused(&deep, "TooDeep", None);
    check_refused(r#"{"jsonrpc":"2.0","id":1,"id":1,"method":"x"}"#, "DuplicateKey", None);
    check_refused(r#"{"jsonrpc":"2.0","id":1,"method":"x","m\u0065thod":"x"}"#, "DuplicateKey", None);
    check_refused(r#"{"jsonrpc":"2.0","id":1,"params":{},"method":"x","params":{}}"#, "DuplicateKey", None);
}

/// B84, B86 to B88: the id is echoed wherever it stands.
#[test]
fn a_flaw_below_the_envelope_echoes_the_id() {
    let many: Vec<_> = (0..10_001).map(|n| format!("\"{n}\":0")).collect();
    let flaws = [
        (r#"{"a":1,"a":2}"#.to_owned(), "DuplicateKey"),
        (r#"{"_meta":{"a":1,"a":2}}"#.to_owned(), "DuplicateKey"),
        (r#"{"arguments":[{"b":{"a":1,"\u0061":2}}]}"#.to_owned(), "DuplicateKey"),
        (r#"{"n":1e400}"#.to_owned(), "NumberRange"),
        (format!(r#"{{"n":{}}}"#, "1".repeat(1000)), "NumberRange"),
        (format!("{{{}}}", many.join(",")), "TooManyNodes"),
        (format!("[{}]", vec!["0"; 200_001].join(",")), "TooManyNodes"),
    ];
    for (params, error) in &flaws {
        check_refused(&format!(r#"{{"jsonrpc":"2.0","id":"x","method":"m","params":{params}}}"#), error, Some("\"x\""));
        check_refused(&format!(r#"{{"params":{params},"jsonrpc":"2.0","method":"m","id":7}}"#), error, Some("7"));
        check_refused(&format!(r#"{{"params":{params},"jsonrpc":"2.0","method":"m","id":null}}"#), error, None);
    }
}

/// B85 in the envelope; inside `params` see `Object::case_variant`.
#[test]
fn unknown_envelope_members_are_refused() {
    for name in ["Method", "METHOD", "Id", "ID", "param\u{17f}", "Params", "jsonRpc", "extra", ""] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","{name}":{{}}}}"#);
        check_refused(&text, "unknown member", Some("1"));
    }
    check_refused(r#"{"jsonrpc":"2.0","id":1,"Method":"x"}"#, "unknown member", Some("1"));
    assert_eq!(request_of(r#"{"jsonrpc":"2.0","\u0069d":1,"m\u0065thod":"\u0078"}"#).method, "x");
}

/// B87: digit for digit.
#[test]
fn numbers_in_arguments_stay_as_written() {
    let params = r#"{"arguments" : {"a":9007199254740993 ,"b":1.0,"c":-0,"d":1.10,"e":12345678901234567890123}}"#;
    let request = request_of(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{params}}}"#));
    assert_eq!(request.params.object().unwrap().payload().as_str(), params);
}

/// B90 and B91.
#[test]
fn a_text_that_is_no_object_is_no_message() {
    check_refused(r#"[{"jsonrpc":"2.0","id":1,"method":"x"}]"#, "batch", None);
    check_refused(" []", "batch", None);
    for text in ["\"x\"", "1", "null", "true"] {
        check_refused(text, "the message is not a JSON object", None);
    }
}

/// B92.
#[test]
fn the_version_of_json_rpc_is_exactly_2_0() {
    for version in ["", r#""jsonrpc":"1.0","#, r#""jsonrpc":2.0,"#, r#""jsonrpc":"2.00","#, r#""jsonrpc":null,"#] {
        check_refused(&format!(r#"{{{version}"id":1,"method":"x"}}"#), "jsonrpc", Some("1"));
        check_refused(&format!(r#"{{{version}"id":true,"method":"x"}}"#), "jsonrpc", None);
    }
}

/// B93 and B94.
#[test]
fn an_id_is_a_string_or_a_whole_number_of_64_bits() {
    let longest = format!("\"{}\"", "x".repeat(254));
    let too_long = format!("\"{}\"", "x".repeat(255));
    let number = "123456789012345678901234567890";
    for id in ["null", "true", "{}", "[]", "1.5", "1.0", "1e3", number, "9223372036854775808", too_long.as_str()] {
        check_refused(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x"}}"#), "`id`", None);
    }
    for id in ["\"\"", "0", "-1", "9223372036854775807", "\"1\"", r#""\u00e4""#, longest.as_str()] {
        let request = request_of(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x"}}"#));
        assert_eq!(request.id.as_json(), id);
    }
}

/// B95.
#[test]
fn a_method_is_a_short_text_without_control_characters() {
    check_refused(r#"{"jsonrpc":"2.0","id":1}"#, "`method` is missing", Some("1"));
    check_refused(r#"{"jsonrpc":"2.0","id":1,"params":{}}"#, "`method` is missing", Some("1"));
    let too_long = format!("\"{}\"", "x".repeat(129));
    for method in ["1", "null", "\"\"", r#""a\nb""#, r#""\u0000""#, r#""\u007f""#, r#""\u0085""#, too_long.as_str()] {
        check_refused(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":{method}}}"#), "`method`", Some("1"));
        check_refused(&format!(r#"{{"jsonrpc":"2.0","method":{method}}}"#), "`method`", None);
    }
    let longest = "x".repeat(128);
    assert_eq!(request_of(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{longest}"}}"#)).method, longest);
}

/// B96: a response is read as a response; whether its sender may send one is for the face.
#[test]
fn a_response_without_a_usable_id_belongs_to_no_request() {
    for id in ["null", "true", "1.5"] {
        assert_eq!(response_of(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)).id, None);
    }
    let fault = response_of(r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"parse"}}"#);
    assert_eq!((fault.id, fault.outcome.unwrap_err().code), (None, -32700));
    let scalar = response_of(r#"{"jsonrpc":"2.0","id":1,"result":null}"#);
    assert!(scalar.result.is_none());
    assert_eq!(scalar.outcome.unwrap().as_str(), "null");
}

/// B97 and U08.
#[test]
fn members_that_exclude_one_another_are_refused() {
    for members in [
        r#""method":"x","result":{}"#,
        r#""method":"x","error":{"code":1,"message":""}"#,
        r#""result":{},"error":{"code":1,"message":""}"#,
        r#""result":{},"params":{}"#,
    ] {
        check_refused(&format!(r#"{{"jsonrpc":"2.0","id":1,{members}}}"#), "are both present", Some("1"));
    }
}

/// U08.
#[test]
fn an_error_is_an_object_with_a_whole_code_and_a_text_message() {
    for error in [
        "null",
        "\"no\"",
        "{}",
        r#"{"code":1}"#,
        r#"{"message":"x"}"#,
        r#"{"code":"1","message":"x"}"#,
        r#"{"code":1.5,"message":"x"}"#,
        r#"{"code":1,"message":null}"#,
    ] {
        check_refused(&format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#), "`error` is not", Some("1"));
    }
}

/// B98: other kinds than objects are left to the caller; `null` is not an absence.
#[test]
fn params_of_another_kind_are_kept_as_they_are() {
    for params in ["null", "[1]", "\"x\"", "0"] {
        let request = request_of(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{params}}}"#));
        let Params::Other(payload) = request.params else { panic!("{params}") };
        assert_eq!(payload.as_str(), params);
    }
}

#[test]
fn a_batch_is_read_item_by_item() {
    let text = Bytes::from_static(
        br#" [ {"jsonrpc":"2.0","id":1,"result":{"_meta":{"k":1}}} , 5,[ ] ,{"jsonrpc":"2.0","method":"x"}] "#,
    );
    let messages = read_batch(&text, ScanLimits::UPSTREAM, 4).unwrap();
    let [
        Ok(Message::Response(response)),
        Err(EnvelopeError::Shape { .. }),
        Err(EnvelopeError::Batch),
        Ok(Message::Notification(_)),
    ] = messages.as_slice()
    else {
        panic!("{messages:?}");
    };
    let meta = response.result.as_ref().and_then(|result| result.get_object("_meta"));
    assert_eq!(meta.unwrap().get("k").unwrap().as_str(), "1");
    let single = Bytes::from_static(br#" {"jsonrpc":"2.0","method":"x"}"#);
    assert_eq!(read_batch(&single, ScanLimits::UPSTREAM, 1).unwrap().len(), 1);
}

#[test]
fn a_batch_is_bounded_and_refused_as_a_whole_if_its_text_is() {
    #[track_caller]
    fn check(text: &str, expected: &str) {
        let error = read_batch(&Bytes::copy_from_slice(text.as_bytes()), ScanLimits::CLIENT, 3).expect_err(text);
        assert!(format!("{error:?}").contains(expected), "{text}: {error:?}");
    }
    check("[]", "a batch is empty");
    check("[1,2,3,4]", "TooManyNodes { at: 7 }");
    check("[1", "Syntax");
    check(r#"[{"a":1,"a":1}]"#, "DuplicateKey");
    check(&format!("[{}", "[".repeat(65)), "TooDeep");
}

#[test]
fn writers_put_payloads_in_verbatim_and_read_back() {
    let params = Payload::parse(&Bytes::from_static(br#"{ "b" : 1.10, "a":"\u00e4" }"#), ScanLimits::CLIENT).unwrap();
    let (text, number) = (RequestId::text("a\"b"), RequestId::number(-7));
    let fault = RpcError { code: -32602, message: "no \"x\"\n".to_owned(), data: Some(params.clone()) };
    for (written, expected) in [
        (
            request(&text, "tools/call", Some(&params)),
            r#"{"jsonrpc":"2.0","id":"a\"b","method":"tools/call","params":{ "b" : 1.10, "a":"\u00e4" }}"#,
        ),
        (request(&number, "ping", None), r#"{"jsonrpc":"2.0","id":-7,"method":"ping"}"#),
        (
            notification("a/b", Some(&params)),
            r#"{"jsonrpc":"2.0","method":"a/b","params":{ "b" : 1.10, "a":"\u00e4" }}"#,
        ),
        (notification("a/b", None), r#"{"jsonrpc":"2.0","method":"a/b"}"#),
        (result(&number, &params), r#"{"jsonrpc":"2.0","id":-7,"result":{ "b" : 1.10, "a":"\u00e4" }}"#),
        (
            error(Some(&number), &fault),
            r#"{"jsonrpc":"2.0","id":-7,"error":{"code":-32602,"message":"no \"x\"\n","data":{ "b" : 1.10, "a":"\u00e4" }}}"#,
        ),
        (
            error(None, &RpcError::new(-32700, "parse")),
            r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"parse"}}"#,
        ),
    ] {
        assert_eq!(written, expected);
        read(&written, ScanLimits::CLIENT).expect(expected);
    }
}

#[test]
fn a_result_in_pieces_is_the_same_message_and_is_not_copied_unless_shared() {
    let id = RequestId::text("a");
    let text = format!(r#"{{"text":"{}"}}"#, "x".repeat(10_000));
    let object = Object::of(&Payload::parse(&Bytes::from(text), ScanLimits::CLIENT).unwrap()).unwrap();
    let own = object.edit().set("n", Payload::of(&1)).finish();
    let (whole, address) = (result(&id, &own), own.bytes().as_ptr());
    let shared = own.clone();
    let (head, tail) = result_in_pieces(&id, shared.clone());
    assert_eq!([head, tail].concat(), whole);
    drop(shared);
    let (head, tail) = result_in_pieces(&id, own);
    assert_eq!(tail.as_ptr(), address);
    assert_eq!([head, tail].concat(), whole);
}
